"""The engine's port to the extensions of a workspace: what users, repositories and plugins add to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from kedge.config.schema import Config
from kedge.core.extensions import (
    AgentDefinition,
    CommandEntry,
    EditReport,
    Expansion,
    ExtensionKind,
    ExtensionState,
    ResourceText,
)
from kedge.core.hooks import NO_ANSWER, HookAnswer, HookEvent
from kedge.errors import ExtensionNotFound
from kedge.tools.base import Tool, WrittenFile


class Extensions(Protocol):
    """The extensions of one workspace."""

    async def refresh(self, config: Config) -> None:
        """Read what has changed: files, trust, configuration. Called when a Run starts, and before a listing.

        It starts no process, waits for no server, and does not raise."""
        ...

    def states(self) -> tuple[ExtensionState, ...]: ...

    def tools(self) -> tuple[Tool, ...]:
        """Return tools for the model, beside the built-in ones. Read before each Step, so it must be fast."""
        ...

    def system_text(self) -> str:
        """Return a text for the system prompt; empty: none."""
        ...

    async def edited(self, files: tuple[WrittenFile, ...], is_hidden: Callable[[str], bool]) -> EditReport:
        """Return what language servers report about files that a call wrote. It waits for a short time and does not
        raise; what comes later is in the next report. `is_hidden`: the rule for files that the model may not see."""
        ...

    def commands(self) -> tuple[CommandEntry, ...]:
        """Return what the user can send as `/name arguments`, sorted by name."""
        ...

    async def expand(self, name: str, arguments: str) -> Expansion | None:
        """Return the prompt for `/name arguments`; None: there is no such command. TooLarge if it is too long."""
        ...

    async def read_resources(self, references: tuple[str, ...]) -> tuple[ResourceText, ...]:
        """Return the texts of the resources `server:uri`. One without a configured server of this name is left out.
        Invalid if one cannot be read, TooLarge if there are too many."""
        ...

    def agent(self, name: str) -> AgentDefinition | None: ...

    def agents(self) -> tuple[str, ...]:
        """Return the names of the defined agents."""
        ...

    async def start(self, kind: ExtensionKind, name: str, *, again: bool = False) -> ExtensionState:
        """Start an extension that has a process, or with `again` restart it. Return its state, also if that failed."""
        ...

    @property
    def has_processes(self) -> bool:
        """True if `close` has something to end."""
        ...

    async def run_hooks(
        self,
        config: Config,
        event: HookEvent,
        fields: Mapping[str, Any],
        tool: str = "",
        on_left: Callable[[tuple[int, ...]], None] = lambda pids: None,
    ) -> HookAnswer:
        """Run the hooks of an event and return their common answer. If cancelled, their processes have ended.

        Call it only if `config.hooks` has some for the event. `fields`: the event, for the hooks. `on_left`: receives
        the pids of processes that could not be ended."""
        ...

    async def close(self) -> None:
        """End every process, when the workspace is closed."""
        ...


class NoExtensions:
    has_processes = False

    async def refresh(self, config: Config) -> None:
        pass

    def states(self) -> tuple[ExtensionState, ...]:
        return ()

    def tools(self) -> tuple[Tool, ...]:
        return ()

    def system_text(self) -> str:
        return ""

    async def run_hooks(
        self,
        config: Config,
        event: HookEvent,
        fields: Mapping[str, Any],
        tool: str = "",
        on_left: Callable[[tuple[int, ...]], None] = lambda pids: None,
    ) -> HookAnswer:
        return NO_ANSWER

    async def edited(self, files: tuple[WrittenFile, ...], is_hidden: Callable[[str], bool]) -> EditReport:
        return EditReport()

    def commands(self) -> tuple[CommandEntry, ...]:
        return ()

    async def expand(self, name: str, arguments: str) -> Expansion | None:
        return None

    async def read_resources(self, references: tuple[str, ...]) -> tuple[ResourceText, ...]:
        return ()

    def agent(self, name: str) -> AgentDefinition | None:
        return None

    def agents(self) -> tuple[str, ...]:
        return ()

    async def start(self, kind: ExtensionKind, name: str, *, again: bool = False) -> ExtensionState:
        raise ExtensionNotFound("This server has no extensions.")

    async def close(self) -> None:
        pass
