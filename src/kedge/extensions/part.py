"""The contract of a part of the extensions, and the services that it may use."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from kedge.config.schema import Config
from kedge.config.trust import TrustList
from kedge.core.extensions import CommandEntry, Expansion, ExtensionState
from kedge.tools.base import Tool
from kedge.tools.file_threads import FileThreads
from kedge.tools.process_port import Processes

#: Errors of hooks that are kept: those of workspaces that were not used recently are dropped. Items.
HOOK_ERRORS_MAX = 1000


class HookErrors:
    """The errors of the last runs of hooks. It outlives a workspace, which is closed soon after its last client."""

    def __init__(self) -> None:
        self._errors: dict[tuple[Path, str], str] = {}

    def get(self, root: Path, name: str) -> str:
        return self._errors.get((root, name), "")

    def put(self, root: Path, name: str, error: str) -> None:
        self._errors.pop((root, name), None)
        if error:
            self._errors[root, name] = error
        if len(self._errors) > HOOK_ERRORS_MAX:
            del self._errors[next(iter(self._errors))]


@dataclass(frozen=True, slots=True)
class ExtensionHost:
    """The workspace, as the parts see it."""

    #: Absolute, without links.
    root: Path
    #: For all access to files of the workspace.
    files: FileThreads
    #: The processes of the workspace, as its configuration says now.
    processes: Callable[[], Awaitable[Processes]]
    #: Send a changed state to all clients.
    announce: Callable[[ExtensionState], None]
    #: The directory of the user's configuration.
    config_dir: Path
    #: kedge's own data, for caches.
    data_dir: Path
    trust: TrustList
    #: Files and directories of kedge that no tool may read or change.
    guarded: tuple[Path, ...] = ()
    #: Those of all workspaces.
    hook_errors: HookErrors = field(default_factory=HookErrors)


class ExtensionPart(Protocol):
    """One kind of extensions of one workspace. `engine.extension_port.Extensions` describes the methods."""

    async def refresh(self, config: Config) -> None: ...

    def states(self) -> tuple[ExtensionState, ...]: ...

    def tools(self) -> tuple[Tool, ...]: ...

    def system_text(self) -> str: ...

    @property
    def has_processes(self) -> bool: ...

    async def close(self) -> None: ...


@runtime_checkable
class CommandSource(Protocol):
    """A part that has prompts which the user sends as `/name arguments`."""

    def commands(self) -> tuple[CommandEntry, ...]: ...

    async def expand(self, name: str, arguments: str) -> Expansion | str | None:
        """Return the prompt; None: there is no such command. A KedgeError refuses the prompt."""
        ...
