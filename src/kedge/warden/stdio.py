"""The server's ends of a process's pipes. The kernel's pipe is the only buffer: who is not read from, waits."""

from __future__ import annotations

import asyncio
import os
from contextlib import ExitStack
from dataclasses import dataclass

from kedge.warden.base import ProcessFailed, ProcessSpec

#: Read at once. A pipe holds 64 KiB unless the process made it larger.
READ_BYTES = 256 * 1024


class _PipeEnd:
    """One non-blocking descriptor that one task at a time waits for."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor: int | None = descriptor
        self._waiting: asyncio.Future[None] | None = None

    async def _wait_ready(self, descriptor: int, to_write: bool) -> None:
        loop = asyncio.get_running_loop()
        if self._waiting is not None:
            raise RuntimeError("two tasks use the same stream of a process")
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
            # Closed under somebody who waits: the loop must forget the descriptor first.
            loop = self._waiting.get_loop()
            loop.remove_reader(self._descriptor)
            loop.remove_writer(self._descriptor)
            self._wake()
        descriptor, self._descriptor = self._descriptor, None
        os.close(descriptor)


class OutputPipe(_PipeEnd):
    """What a process writes."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor)
        self._rest = b""

    async def read(self) -> bytes:
        # A process that writes faster than we read must not keep the loop to itself.
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
        """Every writer is gone: takes over what is still in the pipe, at most its size, and frees the descriptor."""
        if self._descriptor is None:
            return
        parts = []
        try:
            while data := os.read(self._descriptor, READ_BYTES):
                parts.append(data)
        except BlockingIOError:
            pass  # somebody outside the tree was given the other end; it is not waited for
        self._rest = b"".join(parts)
        self.close()


class InputPipe(_PipeEnd):
    """What a process reads."""

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
    error: OutputPipe | None
    stdin: InputPipe | None
    #: The other ends, in the order in which they are sent: input if there is one, output, error if it is apart.
    theirs: tuple[int, ...]


def open_stdio(spec: ProcessSpec) -> Stdio:
    """OSError if there are no descriptors left; then nothing stays open."""
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
        error = None
        if spec.output == "apart":
            read, write = pipe()
            error = OutputPipe(read)
            theirs.append(write)
        undo.pop_all()
        return Stdio(OutputPipe(output), error, stdin, tuple(theirs))
