"""The hooks of one workspace: which ones an event concerns, their runs, and their states."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from kedge.config.claude_settings import SettingsFile, settings_files
from kedge.config.plugins import DIRECTORY, ROOT_VARIABLES
from kedge.config.schema import Config, HookEntry, origin_of, plugin_of_source
from kedge.core.extensions import ExtensionState
from kedge.core.hooks import HOOK_EVENTS, NO_ANSWER, HookAnswer, HookEvent, combined, matches_tool
from kedge.core.untrusted_text import one_line
from kedge.errors import BadConfig
from kedge.extensions.hook_process import run_hook
from kedge.extensions.part import ExtensionHost
from kedge.tools.base import Tool

log = logging.getLogger("kedge.extensions")

#: Hooks that run at the same time in one workspace; others wait. Each takes two processes. Items.
RUNNING_MAX = 20
#: A name: `PreToolUse bash: ./check.sh`. Characters.
NAME_CHARS_MAX = 200
#: Limit of a hook on a prompt, whatever its `timeout_s`: clients wait 30 s for the receipt. Seconds.
PROMPT_S_MAX = 25.0


class HookPart:
    has_processes = False  # each hook ends within the Run or request that it belongs to

    def __init__(self, host: ExtensionHost) -> None:
        self._host = host
        self._running = asyncio.Semaphore(RUNNING_MAX)
        self._config = Config()
        self._files: list[tuple[SettingsFile, bool]] = []

    async def refresh(self, config: Config) -> None:
        self._config = config
        self._files = await self._host.files.run(self._read_files)

    def _read_files(self) -> list[tuple[SettingsFile, bool]]:
        return [(file, self._is_trusted(file)) for file in settings_files(self._host.root)]

    def _is_trusted(self, file: SettingsFile) -> bool:
        try:
            return self._host.trust.contains(file.path, file.content)
        except BadConfig:
            return False

    def states(self) -> tuple[ExtensionState, ...]:
        return (*(self._state(name, hook) for name, _, hook in _named(self._config)), *self._inactive())

    def _state(self, name: str, hook: HookEntry) -> ExtensionState:
        error = self._host.hook_errors.get(self._host.root, name)
        path = str(self._plugin_root(hook) or hook.source)
        return ExtensionState("hook", name, "failed" if error else "ready", origin_of(hook.source), path, error=error)

    def _plugin_root(self, hook: HookEntry) -> Path | None:
        """Return the directory of the plugin that has the hook."""
        name = plugin_of_source(hook.source)
        return self._host.config_dir.absolute() / DIRECTORY / name if name else None

    def _inactive(self) -> Iterator[ExtensionState]:
        """Yield the hooks of settings files that do not run: not trusted, or not known to kedge."""
        for file, is_trusted in self._files:
            path = str(file.path)
            if file.problem:
                name = one_line(path, NAME_CHARS_MAX)
                yield ExtensionState("hook", name, "failed", "repository", path, error=file.problem)
            for number, hook in enumerate(file.hooks, 1):
                name = _name(hook.event, hook.matcher, hook.command, f" ({file.path.parent.parent.name} {number})")
                if hook.problem:
                    yield ExtensionState("hook", name, "disabled", "repository", path, error=hook.problem)
                elif not is_trusted:
                    yield ExtensionState("hook", name, "untrusted", "repository", path, error="run: kedge config trust")

    def tools(self) -> tuple[Tool, ...]:
        return ()

    def system_text(self) -> str:
        return ""

    async def close(self) -> None:
        pass

    async def run(
        self,
        config: Config,
        event: HookEvent,
        fields: Mapping[str, Any],
        tool: str = "",
        on_left: Callable[[tuple[int, ...]], None] = lambda pids: None,
    ) -> HookAnswer:
        """Run the hooks of an event at once, and return their common answer."""
        hooks = [
            (name, hook)
            for name, of, hook in _named(config)
            if of == event and (not tool or matches_tool(hook.matcher, tool))
        ]
        if not hooks:
            return NO_ANSWER
        payload = msgspec.json.encode({"hook_event_name": event, "cwd": str(self._host.root), **fields})
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._run_one(name, event, hook, payload, on_left)) for name, hook in hooks]
        return combined([task.result() for task in tasks])

    async def _run_one(
        self,
        name: str,
        event: HookEvent,
        hook: HookEntry,
        payload: bytes,
        on_left: Callable[[tuple[int, ...]], None],
    ) -> HookAnswer:
        timeout_s = min(hook.timeout_s, PROMPT_S_MAX) if event == "UserPromptSubmit" else hook.timeout_s
        async with self._running:
            processes = await self._host.processes()
            answer = await run_hook(
                processes, self._host.root, event, hook.command, self._variables(hook), payload, timeout_s, on_left
            )
        self._note(name, hook, " ".join(answer.errors))
        return msgspec.structs.replace(answer, errors=tuple(f"The hook {name} {error}." for error in answer.errors))

    def _variables(self, hook: HookEntry) -> dict[str, str]:
        variables = dict.fromkeys(("CLAUDE_PROJECT_DIR", "KEDGE_PROJECT_DIR"), str(self._host.root))
        if root := self._plugin_root(hook):
            variables |= dict.fromkeys(ROOT_VARIABLES, str(root))
        return variables

    def _note(self, name: str, hook: HookEntry, error: str) -> None:
        """Keep the error of the last run, and notify the clients if it has changed."""
        if error:
            log.warning("workspace %s: the hook %s %s", self._host.root, name, error)
        errors = self._host.hook_errors
        if error == errors.get(self._host.root, name):
            return
        errors.put(self._host.root, name, error)
        self._host.announce(self._state(name, hook))


def _named(config: Config) -> Iterator[tuple[str, HookEvent, HookEntry]]:
    """Yield all hooks of a configuration with their events and names, which are unique."""
    known: dict[str, int] = {}
    for event in HOOK_EVENTS:
        for hook in config.hooks.of(event):
            name = _name(event, hook.matcher, hook.command)
            known[name] = known.get(name, 0) + 1
            yield (name if known[name] == 1 else f"{name} ({known[name]})"), event, hook


def _name(event: str, matcher: str, command: str, end: str = "") -> str:
    return one_line(f"{event} {matcher}".strip() + f": {command.strip()}", NAME_CHARS_MAX - len(end)) + end
