"""The server's ends of a process's pipes. The kernel's pipe is the only buffer: a process that is not read blocks."""

from __future__ import annotations

import asyncio
import os
from contextlib import ExitStack
from dataclasses import dataclass

from kedge.warden.base import ProcessFailed, ProcessSpec

#: Bytes per read. A pipe holds 64 KiB unless the process enlarged it.
READ_BYTES = 256 * 1024


class _PipeEnd:
    """A non-blocking descriptor. Only one task at a time may wait for it."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor: int | None = descriptor
        self._waiting: asyncio.Future[None] | None = None

    async def _wait_ready(self, descriptor: int, to_write: bool) -> None:
        loop = asyncio.get_running_loop()
        if self._waiting is not None:
            raise RuntimeError("two tasks wait for the same stream of a process")
        self._waiting = waiting = loop.create_future()
        (loop.add_writer if to_write else loop.add_reader)(descriptor, self._wake)
        try:
            await waiting
        finally:
            self._waiting = None
            if self._descriptor is not None:
                (loop.remove_writer if to_write else loop.remove_reader)(descriptor)

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def close(self) -> None:
        if self._descriptor is None:
            return
        if self._waiting is not None:
            # A task is waiting: the loop must forget the descriptor first.
            loop = self._waiting.get_loop()
            loop.remove_reader(self._descriptor)
            loop.remove_writer(self._descriptor)
            self._wake()
        descriptor, self._descriptor = self._descriptor, None
        os.close(descriptor)


class OutputPipe(_PipeEnd):
    """Output of a process."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor)
        self._rest = b""

    async def read(self) -> bytes:
        # A process that writes faster than we read must not block the event loop.
        await asyncio.sleep(0)
        while self._descriptor is not None:
            try:
                data = os.read(self._descriptor, READ_BYTES)
            except BlockingIOError:
                await self._wait_ready(self._descriptor, to_write=False)
                continue
            if not data:
                self.close()
            return data
        data, self._rest = self._rest, b""
        return data

    def finish(self) -> None:
        """Read the rest of the pipe after its writers are gone, and close the descriptor."""
        if self._descriptor is None:
            return
        parts = []
        try:
            while data := os.read(self._descriptor, READ_BYTES):
                parts.append(data)
        except BlockingIOError:
            pass  # a process outside the tree has the other end; do not wait for it
        self._rest = b"".join(parts)
        self.close()


class InputPipe(_PipeEnd):
    """Input of a process."""

    async def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            if self._descriptor is None:
                raise ProcessFailed("The process's input is closed.")
            try:
                view = view[os.write(self._descriptor, view) :]
            except BlockingIOError:
                await self._wait_ready(self._descriptor, to_write=True)
            except BrokenPipeError:
                self.close()
                raise ProcessFailed("The process no longer reads its input.") from None


@dataclass(frozen=True, slots=True)
class Stdio:
    output: OutputPipe
    stdin: InputPipe | None
    #: None: merged into the output.
    stderr: OutputPipe | None
    #: The other ends in the order of sending: input if there is one, output, error if there is one.
    theirs: tuple[int, ...]


def open_stdio(spec: ProcessSpec) -> Stdio:
    """Open the pipes of a process. Raises OSError, with all descriptors closed, if there are too many."""
    with ExitStack() as undo:

        def pipe() -> tuple[int, int]:
            read, write = os.pipe()
            undo.callback(os.close, read)
            undo.callback(os.close, write)
            return read, write

        theirs: list[int] = []
        stdin = None
        if spec.stdin == "pipe":
            read, write = pipe()
            stdin = InputPipe(write)
            theirs.append(read)
        elif spec.stdin is not None:
            theirs.append(os.dup(spec.stdin.fileno()))
            undo.callback(os.close, theirs[0])
        output, write = pipe()
        theirs.append(write)
        stderr = None
        if spec.separate_stderr:
            errors, write = pipe()
            stderr = OutputPipe(errors)
            theirs.append(write)
        undo.pop_all()
        return Stdio(OutputPipe(output), stdin, stderr, tuple(theirs))
