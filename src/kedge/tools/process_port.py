"""The contract for processes that tools start. `kedge.warden` implements it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO, Protocol

from kedge.core.approvals import Confinement


class Process(Protocol):
    """A process of a tool, with all its descendants."""

    @property
    def pid(self) -> int: ...

    async def read(self) -> bytes:
        """Return the next bytes of its output (stdout and stderr merged); empty at the end."""
        ...

    async def wait(self) -> int:
        """Return the exit code of the process itself, or minus the signal number. Does not wait for descendants, even
        if they hold its output open."""
        ...

    async def end(self, grace_s: float) -> tuple[int, ...]:
        """End the whole tree: TERM, then KILL after the grace. Return the pids that survive, normally none."""
        ...

    async def alive(self) -> int:
        """Return the number of processes in the tree that still run."""
        ...


class Processes(Protocol):
    """Starts processes with the configured environment, each in its confinement."""

    async def start(
        self,
        argv: tuple[str, ...],
        cwd: Path,
        *,
        stdin: BinaryIO | None = None,
        confinement: Confinement = "configured",
    ) -> Process:
        """Start a process. `stdin` is an open file; without it the process has no input. ToolFailed on failure.

        On a machine that cannot confine, "read_only" and "workspace" are as "configured"."""
        ...

    @property
    def can_confine(self) -> bool:
        """True if this machine enforces "workspace" and "read_only", the network included."""
        ...

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment of every process; "read_only" adds to it. Approvals are bound to it."""
        ...
