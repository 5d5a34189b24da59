"""The configuration in effect in a directory, read from its files without a server."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from threading import Thread

from kedge import paths
from kedge.config.load import LoadedConfig, load_layers, load_user_layer, with_plugins
from kedge.config.plugins import PluginStore
from kedge.config.trust import FILE_NAME, TrustList
from kedge.errors import BadConfig

#: Limit for a check of files in a directory that may not answer: `kedge cancel` must work there. Seconds.
CHECK_S_MAX = 1.0


def trusted_files() -> TrustList:
    return TrustList(paths.data_dir() / FILE_NAME)


def plugin_store() -> PluginStore:
    return PluginStore(paths.config_file().parent, paths.data_dir())


def load_config(workspace: Path) -> LoadedConfig:
    """Merge plugins, the user's file and the repository's files. Raises BadConfig if the user's file is not valid."""
    user = with_plugins(load_user_layer(paths.config_file()), plugin_store().layers())
    return load_layers(user, workspace, trusted_files(), strict=False)


def config_problem(directory: str = "") -> str:
    """Return why a configuration file is not valid; empty: all are. `directory`: empty for the current one."""
    problems: list[str] = []

    def check() -> None:
        with suppress(OSError):  # the current directory was removed
            workspace = Path(directory) if directory else Path.cwd()
            try:
                load_layers(load_user_layer(paths.config_file()), workspace, trusted_files())
            except BadConfig as error:
                problems.append(error.message)

    checking = Thread(target=check, daemon=True)
    checking.start()
    checking.join(CHECK_S_MAX)
    return " ".join(problems)
