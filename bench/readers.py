"""Many event streams in a process of their own, which counts what comes: the server's CPU is not shared with theirs.

`Readers` is that process seen from outside. It says `ready` when all streams are open; for each line it is told it
says, once every reader has seen one more Run complete, what they got meanwhile, as one line of JSON.
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


class Got(msgspec.Struct):
    """What all readers of the process got, together."""

    delta_frames: int = 0
    delta_bytes: int = 0
    #: All frames, the durable ones too.
    all_bytes: int = 0


class Readers:
    def __init__(self, child: subprocess.Popen[str]) -> None:
        self._child = child

    @classmethod
    @contextlib.contextmanager
    def open(cls, address: Address, path: str, count: int) -> Iterator[Self]:
        where = [address.host, str(address.port), address.token]
        with process("bench.readers", *where, path, str(count)) as child:
            readers = cls(child)
            if readers._line() != "ready":
                raise RuntimeError("the readers did not open")
            yield readers

    def _line(self) -> str:
        assert self._child.stdout is not None
        return self._child.stdout.readline().strip()

    async def until_complete(self) -> Got:
        """Until every reader has seen one more Run complete."""
        assert self._child.stdin is not None
        self._child.stdin.write("next\n")
        self._child.stdin.flush()
        return msgspec.json.decode(await asyncio.to_thread(self._line), type=Got)


# --- inside that process ---------------------------------------------------------------------------------------------


class _Reader:
    def __init__(self, got: Got, changed: asyncio.Event) -> None:
        self._got = got
        self._changed = changed
        self._rest = b""
        self.connected = False
        self.completed = 0

    def take(self, data: bytes) -> None:
        self._got.all_bytes += len(data)
        *frames, self._rest = (self._rest + data).split(b"\n\n")
        for frame in frames:
            if frame.startswith(b'data: {"type":"delta",'):
                self._got.delta_frames += 1
                self._got.delta_bytes += len(frame) + 2
            elif b'\ndata: {"type":"run_complete",' in frame:
                self.completed += 1
                self._changed.set()
            elif frame.startswith(b": connected"):
                self.connected = True
                self._changed.set()

    def end(self) -> None:
        # The process that counts on this reader waits for a line, and gets none: it fails by the end of this one.
        sys.exit("a stream ended")


async def _until_all(changed: asyncio.Event, readers: list[_Reader], connected: bool, completed: int) -> None:
    async with asyncio.timeout(WAIT_S):
        while not all(reader.connected >= connected and reader.completed >= completed for reader in readers):
            changed.clear()
            await changed.wait()


async def _main(address: Address, path: str, count: int) -> None:
    loop = asyncio.get_running_loop()
    got, changed = Got(), asyncio.Event()
    readers = [_Reader(got, changed) for _ in range(count)]
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
        print(msgspec.json.encode(got).decode(), flush=True)
        got.delta_frames = got.delta_bytes = got.all_bytes = 0


if __name__ == "__main__":
    asyncio.run(_main(Address(sys.argv[1], int(sys.argv[2]), sys.argv[3]), sys.argv[4], int(sys.argv[5])))
