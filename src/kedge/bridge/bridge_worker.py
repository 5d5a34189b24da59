"""The main loop of a bridge process: `python -I -m kedge.bridge.bridge_worker NAME`.

Standard input and output carry the protocol. Libraries and their child processes may print anything, so the descriptors
1 and 2 lead to /dev/null before anything else is loaded.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any, Protocol

import msgspec

from kedge.bridge.bridge_peer import Peer
from kedge.bridge.bridge_protocol import FAILED, BadFrame, BridgeNotice, Frames, encode, raw

#: The modules with the programs, each with a function `make(peer) -> Bridge`. Loaded by name: each loads a library.
PROGRAMS = {"mcp": "kedge.bridge.mcp_bridge", "lsp": "kedge.bridge.lsp_bridge"}
READ_BYTES = 64 * 1024


class Bridge(Protocol):
    """The program of a bridge."""

    async def on_request(self, method: str, params: msgspec.Raw) -> Any: ...

    def on_notice(self, method: str, params: msgspec.Raw) -> None: ...

    async def close(self) -> None: ...


async def serve(make: Callable[[Peer], Bridge], receive: int, send: int) -> None:
    """Serve one connection until its input ends."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(receive, "rb"))
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, os.fdopen(send, "wb"))
    writer = asyncio.StreamWriter(transport, protocol, None, loop)
    bridge: Bridge

    async def write(data: bytes) -> None:
        writer.write(data)
        await writer.drain()

    async def on_request(method: str, params: msgspec.Raw) -> Any:
        return await bridge.on_request(method, params)

    peer = Peer(write, on_request, lambda method, params: bridge.on_notice(method, params))
    bridge = make(peer)
    frames = Frames()
    try:
        while data := await reader.read(READ_BYTES):
            for message in frames.feed(data):
                peer.receive(message)
    except BadFrame:
        pass  # the server is another version, or damaged: nothing can be served
    finally:
        peer.lose("the server closed the connection")
        await bridge.close()


def main(name: str) -> None:
    receive, send = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    try:
        make: Callable[[Peer], Bridge] = import_module(PROGRAMS[name]).make
    except Exception as error:  # a library is missing or broken: the server reports it
        os.write(send, encode(BridgeNotice(FAILED, raw(f"{type(error).__name__}: {error}"[:500]))))
        return
    asyncio.run(serve(make, receive, send))


if __name__ == "__main__":
    main(sys.argv[1])
