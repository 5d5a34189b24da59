"""Many event streams in a separate process, so that its CPU time is not counted as the server's.

`Readers` controls the process. The process prints `ready` when all streams are open. For each line of input it waits
until every reader has received one more `run_complete`, and prints the totals since the last line as JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Self

import msgspec

from bench.load import WAIT_S, Body, request
from bench.server import Address, process


class Received(msgspec.Struct):
    """The totals of all readers of the process."""

    delta_frames: int = 0
    delta_bytes: int = 0
    #: All frames, including the durable ones.
    all_bytes: int = 0


class Readers:
    def __init__(self, child: subprocess.Popen[str]) -> None:
        self._child = child

    @classmethod
    @contextlib.contextmanager
    def open(cls, address: Address, path: str, count: int) -> Iterator[Self]:
        server = [address.host, str(address.port), address.token]
        with process("bench.readers", *server, path, str(count)) as child:
            readers = cls(child)
            if readers._line() != "ready":
                raise RuntimeError("the readers' streams did not open")
            yield readers

    def _line(self) -> str:
        assert self._child.stdout is not None
        return self._child.stdout.readline().strip()

    async def until_complete(self) -> Received:
        """Wait until every reader has received one more `run_complete`."""
        assert self._child.stdin is not None
        self._child.stdin.write("next\n")
        self._child.stdin.flush()
        return msgspec.json.decode(await asyncio.to_thread(self._line), type=Received)


# --- the process -----------------------------------------------------------------------------------------------------


class _Reader:
    def __init__(self, received: Received, changed: asyncio.Event) -> None:
        self._received = received
        self._changed = changed
        self._rest = b""
        self.connected = False
        self.completed = 0

    def take(self, data: bytes) -> None:
        self._received.all_bytes += len(data)
        *frames, self._rest = (self._rest + data).split(b"\n\n")
        for frame in frames:
            if frame.startswith(b'data: {"type":"delta",'):
                self._received.delta_frames += 1
                self._received.delta_bytes += len(frame) + 2
            elif b'\ndata: {"type":"run_complete",' in frame:
                self.completed += 1
                self._changed.set()
            elif frame.startswith(b": connected"):
                self.connected = True
                self._changed.set()

    def end(self) -> None:
        # The benchmark process waits for a line, reads end of file instead, and fails.
        sys.exit("a stream ended")


async def _until_all(changed: asyncio.Event, readers: list[_Reader], connected: bool, completed: int) -> None:
    async with asyncio.timeout(WAIT_S):
        while not all(reader.connected >= connected and reader.completed >= completed for reader in readers):
            changed.clear()
            await changed.wait()


async def _main(address: Address, path: str, count: int) -> None:
    loop = asyncio.get_running_loop()
    received, changed = Received(), asyncio.Event()
    readers = [_Reader(received, changed) for _ in range(count)]
    for reader in readers:
        transport, _ = await loop.create_connection(
            lambda reader=reader: Body(reader.take, reader.end),  # type: ignore[misc]
            address.host,
            address.port,
        )
        transport.write(request(address, "GET", path))
    await _until_all(changed, readers, connected=True, completed=0)
    print("ready", flush=True)
    rounds = 0
    while await asyncio.to_thread(sys.stdin.readline):
        rounds += 1
        await _until_all(changed, readers, connected=True, completed=rounds)
        print(msgspec.json.encode(received).decode(), flush=True)
        received.delta_frames = received.delta_bytes = received.all_bytes = 0


if __name__ == "__main__":
    asyncio.run(_main(Address(sys.argv[1], int(sys.argv[2]), sys.argv[3]), sys.argv[4], int(sys.argv[5])))
