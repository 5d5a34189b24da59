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

    async def withhold(self) -> str:
        """Move new guarded files away that it must not leave behind, once the whole tree has ended. Return one line
        about them; empty: there are none. Must be awaited to its end."""
        ...


class PipedProcess(Process, Protocol):
    """A process that reads what the server writes."""

    async def write(self, data: bytes) -> None:
        """Write to its standard input. ToolFailed if it no longer reads."""
        ...

    def close_input(self) -> None: ...

    async def read_stderr(self) -> bytes:
        """Return the next bytes of its standard error; empty at the end, and if `read` has them."""
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

    async def start_piped(
        self,
        argv: tuple[str, ...],
        cwd: Path,
        *,
        environment: Mapping[str, str] | None = None,
        separate_stderr: bool = False,
        confinement: Confinement = "configured",
    ) -> PipedProcess:
        """Start a process whose input is a pipe. `environment`: more variables for it.

        `separate_stderr`: read both streams, or the process blocks."""
        ...

    @property
    def can_confine(self) -> bool:
        """True if this machine enforces "workspace" and "read_only", the network included."""
        ...

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment of every process; "read_only" adds to it. Approvals are bound to it."""
        ...
