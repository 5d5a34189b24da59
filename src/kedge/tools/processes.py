"""What tools need of the machine's processes; `kedge.warden` is what stands behind it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO, Protocol


class ToolFailed(Exception):
    """The call did not work: the message goes to the model, and says what to do instead."""


class Process(Protocol):
    """A tool process and everything it starts. See kedge.warden."""

    @property
    def pid(self) -> int: ...

    async def read(self) -> bytes:
        """The next bytes of its output (stdout and stderr joined); empty at the end."""
        ...

    async def wait(self) -> int:
        """The exit code of the process itself, minus the signal's number if one ended it. Children that live on, with
        or without its output, are not waited for."""
        ...

    async def end(self, grace_s: float) -> tuple[int, ...]:
        """End the whole tree: TERM, then KILL after the grace. The pids that are left, normally none."""
        ...

    async def alive(self) -> int:
        """How many processes of the tree there are still."""
        ...


class Processes(Protocol):
    """Starts tool processes: with the listed environment, in the sandbox that is configured."""

    async def start(self, argv: tuple[str, ...], cwd: Path, *, stdin: BinaryIO | None = None) -> Process:
        """`stdin`: an open file that it reads, instead of nothing. ToolFailed when it cannot be started."""
        ...

    @property
    def environment(self) -> Mapping[str, str]:
        """What every tool process gets, and nothing else: part of what an approval is bound to."""
        ...
