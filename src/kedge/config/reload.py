"""Configuration that is reloaded when its files change.

Nothing watches the files: each access compares their `stat` results with the last ones, so that an idle server stays
idle. A file that has become invalid changes nothing: the last valid configuration stays in effect, and `problem` holds
the reason, which clients display. All access is blocking: a server calls it in a thread of the workspace.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from itertools import islice
from pathlib import Path

from kedge.config.claude_settings import SETTINGS_NAME
from kedge.config.load import FILE_NAMES, LoadedConfig, load_layers, load_user_layer, with_plugins
from kedge.config.plugins import InstalledPlugin, PluginStore, layers_of
from kedge.config.repository import repository_directories
from kedge.config.rule_checks import ineffective_rules
from kedge.config.schema import Config
from kedge.config.trust import TrustList
from kedge.core.untrusted_text import one_line
from kedge.errors import BadConfig

log = logging.getLogger("kedge.engine")

#: Warnings about ineffective rules per load: one mistake is often repeated. Items.
RULE_WARNINGS_MAX = 20
#: What happens in spite of an invalid file.
KEPT = "The last valid configuration stays in effect."
IGNORED = "The file is ignored."
#: The `stat` fields that change when a file changes; None: the file does not exist.
Stamp = tuple[int, ...] | None


class UserConfig:
    """The user's configuration, with the settings of plugins. The constructor raises BadConfig for an invalid file;
    reloads do not."""

    def __init__(self, path: Path, plugins: PluginStore | None = None) -> None:
        self.path = path
        self._plugins = plugins
        #: Why the current file is not in effect; empty: it is.
        self.problem = ""
        stamp, own, installed = _stamp(path), load_user_layer(path), self._installed()
        #: Stamp and content of the file, the plugins, and both together. Assigned together: the threads of all
        #: workspaces share this object. The worst case is a second load.
        self._last = stamp, own, installed, with_plugins(own, layers_of(installed))
        _log_ineffective_rules(own.config)

    @property
    def config(self) -> Config:
        return self.current().config

    def current(self) -> LoadedConfig:
        """Return the configuration, the same object if nothing has changed. Costs two `stat`s without plugins."""
        # Taken before the file is read: a change in between is noticed on the next call.
        stamp, installed = _stamp(self.path), self._installed()
        last_stamp, own, last_installed, loaded = self._last
        if stamp == last_stamp and installed == last_installed:
            return loaded
        if stamp != last_stamp:
            try:
                own = load_user_layer(self.path)
                self.problem = ""
                _log_ineffective_rules(own.config)
            except BadConfig as error:
                self.problem = f"{error.message} {KEPT}"
                log.warning("%s", self.problem)
        loaded = with_plugins(own, layers_of(installed))
        self._last = stamp, own, installed, loaded
        return loaded

    def _installed(self) -> list[InstalledPlugin]:
        try:
            return [] if self._plugins is None else self._plugins.installed()
        except BadConfig:  # the extensions of each workspace list it
            return []


class WorkspaceConfig:
    """The configuration of one workspace: the user's file and the repository's, as far as it is trusted. One thread at
    a time may use it.

    The constructor raises BadConfig for an invalid repository file; with `strict` False it ignores the file, which is
    then the problem. Reloads do not raise."""

    def __init__(
        self,
        user: UserConfig,
        workspace: Path,
        trust: TrustList,
        environment: Mapping[str, str] = os.environ,
        *,
        strict: bool = True,
    ) -> None:
        self._user = user
        self._workspace = workspace
        self._trust = trust
        self._environment = environment
        self._problem = ""
        self._user_layer = user.current()
        self._trusted, self._stamps = self._trust_stamp(), self._file_stamps()
        try:
            self._loaded = self._load(strict=True)
        except BadConfig as error:
            if strict:
                raise
            self._problem = f"{error.message} {IGNORED}"
            self._loaded = self._load(strict=False)

    @property
    def problem(self) -> str:
        """The reason why the current files are not in effect; empty: they are."""
        return " ".join(filter(None, (self._user.problem, self._problem)))

    @property
    def config(self) -> Config:
        return self.current().config

    def current(self) -> LoadedConfig:
        """Return the configuration, the same object if nothing has changed. Costs a few `stat`s."""
        user, trusted, stamps = self._user.current(), self._trust_stamp(), self._file_stamps()
        user_changed = user is not self._user_layer or trusted != self._trusted
        if not user_changed and stamps == self._stamps:
            return self._loaded
        self._user_layer, self._trusted, self._stamps = user, trusted, stamps
        try:
            self._loaded = self._load(strict=True)
            self._problem = ""
        except BadConfig as error:
            self._problem = f"{error.message} {IGNORED if user_changed else KEPT}"
            log.warning("%s", self._problem)
            if user_changed:  # takes effect at once, a revoked trust too, even if the repository's file is invalid
                self._loaded = self._load(strict=False)
        return self._loaded

    def _load(self, *, strict: bool) -> LoadedConfig:
        loaded = load_layers(self._user_layer, self._workspace, self._trust, self._environment, strict=strict)
        _log_ineffective_rules(loaded.config, self._user_layer.config)
        return loaded

    def _file_stamps(self) -> tuple[Stamp, ...]:
        try:
            directories = repository_directories(self._workspace)
        except OSError:
            return ()
        return tuple(_stamp(directory / name) for directory in directories for name in (*FILE_NAMES, SETTINGS_NAME))

    def _trust_stamp(self) -> Stamp:
        return None if self._trust.file is None else _stamp(self._trust.file)


def _log_ineffective_rules(config: Config, logged: Config | None = None) -> None:
    """Log a warning for each ineffective rule, except for those of a configuration that was logged before."""
    known = dict(ineffective_rules(logged.permissions.rules())) if logged is not None else {}
    new = ((rule, problem) for rule, problem in ineffective_rules(config.permissions.rules()) if rule not in known)
    for rule, problem in islice(new, RULE_WARNINGS_MAX):
        log.warning("The rule %s %s. List all with: kedge config check", one_line(str(rule), 200), problem)


def _stamp(path: Path) -> Stamp:
    try:
        status = path.stat()
    except (OSError, ValueError):
        return None
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino, status.st_dev
