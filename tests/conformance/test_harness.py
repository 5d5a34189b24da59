"""The stream reader of these tests: it reports a faulty stream at once, without a timeout."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest

from tests.conformance.harness import Peer, Stream, open_http

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def framed(text: str) -> bytes:
    """Return the data as one chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(text), text.encode())


@asynccontextmanager
async def stream_of(directory: Path, *pieces: bytes, aborts: bool = False) -> AsyncIterator[Stream]:
    """A stream of a server that sends exactly this data, and then keeps or aborts the connection."""
    over = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"".join([HEAD, framed(": connected\nid: 0\n\n"), *pieces]))
        await writer.drain()
        if not aborts:
            await over.wait()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with open_http(url, "a-token") as http:
            try:
                yield Peer(http, directory, workspace="w").stream()
            finally:
                over.set()


@pytest.mark.parametrize(
    ("frame", "reported"),
    [
        ("data: {}\ndata: {}\n\n", "more than one data line"),
        ("event: message\n\n", "unexpected line"),
        ('data: {"type": "run"}\n\n', "unexpected keys"),
    ],
    ids=["data", "line", "keys"],
)
async def test_a_malformed_frame_is_raised(tmp_path: Path, frame: str, reported: str) -> None:
    async with stream_of(tmp_path, framed(frame)) as stream:
        await stream.__aenter__()
        with pytest.raises(AssertionError, match=reported):
            await stream.until(lambda _: False)
        with pytest.raises(AssertionError, match=reported):
            await stream.until_end()
        with pytest.raises(AssertionError, match=reported):
            await stream.close()


async def test_a_broken_connection_is_raised_to_waiters_only(tmp_path: Path) -> None:
    async with stream_of(tmp_path, aborts=True) as stream:
        async with stream:
            with pytest.raises(httpx2.TransportError):
                await stream.until(lambda _: False)
        assert not stream.ended


async def test_waiting_on_an_ended_stream_fails(tmp_path: Path) -> None:
    async with stream_of(tmp_path, b"0\r\n\r\n") as ending, ending:
        await ending.until_end()
        with pytest.raises(AssertionError, match="ended before"):
            await ending.until(lambda _: False)
    async with stream_of(tmp_path) as closed:
        async with closed:
            pass
        with pytest.raises(AssertionError, match="closed before"):
            await closed.until(lambda _: False)
