"""Configuration that follows its files. Nothing watches them: who needs the configuration asks for the current one, and
a file that looks different than last time is read again. An idle server stays idle.

A file that has become wrong changes nothing: the last good configuration stays in force, and `problem` says why.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from itertools import islice
from pathlib import Path

from kedge.config.idle_rules import idle_rules
from kedge.config.load import FILE_NAMES, Loaded, layered, user_layer
from kedge.config.repository import levels
from kedge.config.schema import Config
from kedge.config.trust import Trust
from kedge.core.untrusted_text import one_line
from kedge.errors import BadConfig

log = logging.getLogger("kedge.engine")

#: Rules that never match, told in the log when a configuration is read. One mistake is often repeated. Items.
IDLE_RULES_TOLD = 20
#: What tells one state of a file from another without reading it; None: it is not there.
Stamp = tuple[int, ...] | None


class UserConfig:
    """The user's file. The first reading raises BadConfig when the file is wrong; later ones never do."""

    def __init__(self, path: Path) -> None:
        self.path = path
        #: Why the file as it is now is not in force; None: it is.
        self.problem: str | None = None
        self._stamp = _stamp(path)
        self._loaded = user_layer(path)
        _warn_of_idle_rules(self._loaded.config)

    @property
    def config(self) -> Config:
        return self.current().config

    def current(self) -> Loaded:
        """The same object as last time if nothing has changed. It costs one `stat`."""
        stamp = _stamp(self.path)
        if stamp != self._stamp:
            # Before the reading: a change in between looks different next time, and is read then.
            self._stamp = stamp
            try:
                self._loaded = user_layer(self.path)
                self.problem = None
                _warn_of_idle_rules(self._loaded.config)
            except BadConfig as error:
                self.problem = error.message
                log.warning("%s What was read before stays in force.", error.message)
        return self._loaded


class WorkspaceConfig:
    """What is in force in one workspace: the user's file, the repository's, and what of that is trusted.

    The first reading raises BadConfig when a repository's file is wrong, unless `strict` is False: then such a file is
    left out. Later readings never raise."""

    def __init__(
        self,
        user: UserConfig,
        workspace: Path,
        trust: Trust,
        environment: Mapping[str, str] = os.environ,
        *,
        strict: bool = True,
    ) -> None:
        self._user = user
        self._workspace = workspace
        self._trust = trust
        self._environment = environment
        self._problem: str | None = None
        self._from = user.current()
        self._trusted, self._stamps = self._trust_stamp(), self._look()
        self._loaded = self._layered(strict=strict)

    @property
    def problem(self) -> str | None:
        """Why the files as they are now are not in force; None: they are."""
        return self._user.problem or self._problem

    @property
    def config(self) -> Config:
        return self.current().config

    def current(self) -> Loaded:
        """The same object as last time if nothing has changed. It costs a few `stat`s."""
        user, trusted, stamps = self._user.current(), self._trust_stamp(), self._look()
        is_users_change = user is not self._from or trusted != self._trusted
        if not is_users_change and stamps == self._stamps:
            return self._loaded
        self._from, self._trusted, self._stamps = user, trusted, stamps
        try:
            self._loaded = self._layered(strict=True)
            self._problem = None
        except BadConfig as error:
            self._problem = error.message
            log.warning("%s What was read before stays in force.", error.message)
            if is_users_change:  # theirs counts at once, a revoked trust too, whatever the repository's file looks like
                self._loaded = self._layered(strict=False)
        return self._loaded

    def _layered(self, *, strict: bool) -> Loaded:
        loaded = layered(self._from, self._workspace, self._trust, self._environment, strict=strict)
        _warn_of_idle_rules(loaded.config, self._from.config)
        return loaded

    def _look(self) -> tuple[Stamp, ...]:
        try:
            places = levels(self._workspace)
        except OSError:
            return ()
        return tuple(_stamp(place / name) for place in places for name in FILE_NAMES)

    def _trust_stamp(self) -> Stamp:
        return None if self._trust.file is None else _stamp(self._trust.file)


def _warn_of_idle_rules(config: Config, known: Config | None = None) -> None:
    """A line in the log for each rule that never matches, but for those of a configuration that was read before."""
    told = dict(idle_rules(known.permissions.rules())) if known is not None else {}
    news = ((rule, why) for rule, why in idle_rules(config.permissions.rules()) if rule not in told)
    for rule, why in islice(news, IDLE_RULES_TOLD):
        log.warning("The rule %s: %s. All are listed by: kedge config check", one_line(str(rule), 200), why)


def _stamp(path: Path) -> Stamp:
    try:
        about = path.stat()
    except (OSError, ValueError):
        return None
    return about.st_mtime_ns, about.st_ctime_ns, about.st_size, about.st_ino, about.st_dev
