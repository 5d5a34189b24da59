"""Hooks in the format of other agents: of a repository's `.claude/settings.json`, and of plugins (`hooks/hooks.json`).

So the hooks of a team work in kedge as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from kedge.config.repository import read_configuration
from kedge.core.hooks import HOOK_EVENTS, matcher_mistake

SETTINGS_NAME = ".claude/settings.json"
#: Size of the file: far more than settings written by hand. A hostile one takes a millisecond to parse. Bytes.
SETTINGS_BYTES_MAX = 64 * 1024
#: Hooks of one file. Items.
SETTINGS_HOOKS_MAX = 100
#: Bounds of a hook, as in the schema of our own configuration. Characters, seconds.
_COMMAND_CHARS_MAX, _MATCHER_CHARS_MAX, _TIMEOUT_S_MAX = 4000, 500, 600.0


class _Hook(Struct):
    type: str = "command"
    command: str = ""
    #: Seconds.
    timeout: float | None = None


class _Group(Struct):
    matcher: str = ""
    hooks: list[_Hook] = []


class _Settings(Struct):
    hooks: dict[str, list[_Group]] = {}


class SettingsHook(Struct, frozen=True):
    event: str
    matcher: str
    command: str
    #: Why kedge cannot run it; empty: it can.
    problem: str = ""
    timeout_s: float = 60.0

    def entry(self) -> dict[str, Any]:
        """Return the hook as in our own configuration file."""
        return {"command": self.command, "matcher": self.matcher, "timeout_s": self.timeout_s}


class SettingsFile(Struct, frozen=True):
    path: Path
    content: bytes = b""
    hooks: tuple[SettingsHook, ...] = ()
    #: Why the file is not read; empty: it is.
    problem: str = ""


def settings_files(workspace: Path) -> list[SettingsFile]:
    """Return the settings files with hooks, from the repository's root down to the workspace. Blocking."""
    try:
        read = read_configuration(workspace, (SETTINGS_NAME,), SETTINGS_BYTES_MAX)
    except OSError:
        return []  # the configuration files report it
    files = [
        SettingsFile(file.path, problem=file.why) if file.content is None else parse_settings(file.path, file.content)
        for file in read
    ]
    return [file for file in files if file.hooks or file.problem]


def parse_settings(path: Path, content: bytes) -> SettingsFile:
    """Return the hooks of a file, also those that kedge cannot run."""
    if len(content) > SETTINGS_BYTES_MAX:
        return SettingsFile(path, content, problem=f"{path} is larger than {SETTINGS_BYTES_MAX} bytes.")
    try:
        groups = msgspec.json.decode(content, type=_Settings).hooks
    except msgspec.ValidationError as error:
        return SettingsFile(path, content, problem=f"{path}: its hooks are not valid: {error}.")
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return SettingsFile(path, content, problem=f"{path} is not valid JSON.")
    hooks = [
        _checked(event, group.matcher, hook) for event in groups for group in groups[event] for hook in group.hooks
    ]
    return SettingsFile(path, content, tuple(hooks[:SETTINGS_HOOKS_MAX]))


def _checked(event: str, matcher: str, hook: _Hook) -> SettingsHook:
    timeout_s = 60.0 if hook.timeout is None else hook.timeout
    if event not in HOOK_EVENTS:
        problem = f"kedge has no hooks for {event}"
    elif hook.type != "command":
        problem = f"kedge runs no hooks of type {hook.type}"
    elif not hook.command or len(hook.command) > _COMMAND_CHARS_MAX:
        problem = "its command is empty or too long"
    elif len(matcher) > _MATCHER_CHARS_MAX or matcher_mistake(matcher):
        problem = f"the matcher {matcher[:100]!r} {matcher_mistake(matcher) or 'is too long'}"
    elif not timeout_s > 0:
        problem = "its timeout is not positive"
    else:
        problem = ""
    return SettingsHook(event, matcher, hook.command, problem, min(timeout_s, _TIMEOUT_S_MAX))
