"""A small balancer: each connection goes to the next node that accepts it.

`python -m tests.cluster.balancer PORT...` prints its port, and runs until its input ends.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count

from tests.source import ROOT

#: Bytes per read of a connection.
READ_BYTES = 64 * 1024


class Balancer:
    """`ports` returns the ports of the nodes on this machine."""

    def __init__(self, ports: Callable[[], list[int]]) -> None:
        self._ports = ports
        self._numbers = count()
        self._server: asyncio.Server | None = None

    async def start(self, port: int = 0) -> int:
        # For hundreds of simultaneous connects: with the default backlog of 100 some would wait for a resend.
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port, backlog=1024)
        opened: int = self._server.sockets[0].getsockname()[1]
        return opened

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        node = await self._connect()
        if node is not None:
            await asyncio.gather(_copy(reader, node[1], writer), _copy(node[0], writer, node[1]))
            node[1].close()
        writer.close()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        ports = self._ports()
        first = next(self._numbers)
        for index in range(len(ports)):
            with suppress(OSError):
                return await asyncio.open_connection("127.0.0.1", ports[(first + index) % len(ports)])
        return None


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, back: asyncio.StreamWriter) -> None:
    """Pass on one direction and its end. A connection that is reset resets the other one."""
    try:
        while data := await reader.read(READ_BYTES):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
    except OSError:
        writer.transport.abort()
        back.transport.abort()


@contextmanager
def hosted(ports: list[int]) -> Iterator[int]:
    """Run a balancer in its own process, and return its port."""
    command = [sys.executable, "-m", "tests.cluster.balancer", *map(str, ports)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())


async def _run(ports: list[int]) -> None:
    print(await Balancer(lambda: ports).start(), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)  # until the parent ends


if __name__ == "__main__":
    asyncio.run(_run([int(port) for port in sys.argv[1:]]))
