"""The configuration in effect in a directory, read from its files without a server."""

from __future__ import annotations

from pathlib import Path

from kedge import paths
from kedge.config.load import LoadedConfig, load_layers, load_user_layer
from kedge.config.trust import FILE_NAME, TrustList


def trusted_files() -> TrustList:
    return TrustList(paths.data_dir() / FILE_NAME)


def load_config(workspace: Path) -> LoadedConfig:
    """Merge the user's file and the repository's files. Raises BadConfig if the user's file is not valid."""
    return load_layers(load_user_layer(paths.config_file()), workspace, trusted_files(), strict=False)
