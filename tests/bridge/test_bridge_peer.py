"""The connection between the server and a bridge: replies, cancels, timeouts, loss, and anything but messages."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from kedge.bridge.bridge_peer import BridgeLost, CallFailed, OnRequest, Peer
from kedge.bridge.bridge_protocol import MESSAGE_BYTES_MAX, BadFrame, BridgeNotice, Frames, encode, raw


def linked(on_request: OnRequest) -> tuple[Peer, list[str]]:
    """Return a peer whose other end serves `on_request`, and the notices that the other end received."""
    notices: list[str] = []
    frames_here, frames_there = Frames(), Frames()

    async def refuse(method: str, params: msgspec.Raw) -> Any:
        raise CallFailed("not served")

    async def to_there(data: bytes) -> None:
        for index in range(0, len(data), 7):  # a pipe may split anywhere
            for message in frames_there.feed(data[index : index + 7]):
                there.receive(message)

    async def to_here(data: bytes) -> None:
        for message in frames_here.feed(data):
            here.receive(message)

    here = Peer(to_there, refuse, lambda method, params: None)
    there = Peer(to_here, on_request, lambda method, params: notices.append(method))
    return here, notices


async def test_requests_run_concurrently_and_fail_alone() -> None:
    gate = asyncio.Event()

    async def serve(method: str, params: msgspec.Raw) -> Any:
        if method == "wait":
            await gate.wait()
        if method == "fail":
            raise CallFailed("it does not work")
        if method == "bug":
            raise KeyError("x")
        return msgspec.json.decode(params)

    peer, notices = linked(serve)
    waiting = asyncio.create_task(peer.request("wait", 1, int, 30))
    assert await peer.request("echo", {"a": "é\n"}, dict[str, str], 30) == {"a": "é\n"}
    with pytest.raises(CallFailed, match="it does not work"):
        await peer.request("fail", None, int, 30)
    with pytest.raises(CallFailed, match="unexpected error: KeyError"):
        await peer.request("bug", None, int, 30)
    with pytest.raises(CallFailed, match="not valid"):
        await peer.request("echo", "text", int, 30)
    await peer.notify("changed", None)
    gate.set()
    assert await waiting == 1
    assert notices == ["changed"]


async def test_cancel_and_timeout_stop_the_request_on_the_other_side() -> None:
    stopped: list[str] = []
    began, ended = asyncio.Event(), asyncio.Semaphore(0)

    async def serve(method: str, params: msgspec.Raw) -> Any:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append(method)
            ended.release()

    peer, _ = linked(serve)
    call = asyncio.create_task(peer.request("cancelled", None, int, 30))
    await began.wait()
    call.cancel()
    await ended.acquire()
    with pytest.raises(BridgeLost, match=r"no answer within 0\.01 s"):
        await peer.request("late", None, int, 0.01)
    await ended.acquire()
    assert stopped == ["cancelled", "late"]


async def test_lost_connection_fails_every_request() -> None:
    async def serve(method: str, params: msgspec.Raw) -> Any:
        await asyncio.Event().wait()

    peer, _ = linked(serve)
    call = asyncio.create_task(peer.request("wait", None, int, 30))
    await asyncio.sleep(0)
    peer.lose("the bridge ended")
    for failing in (call, peer.request("next", None, int, 30)):
        with pytest.raises(BridgeLost, match="the bridge ended"):
            await failing


@pytest.mark.parametrize(
    "data", [b"Traceback (most recent call last):\n", b"\0\0\0\x02{}", (MESSAGE_BYTES_MAX + 1).to_bytes(4, "big")]
)
def test_anything_but_messages_is_refused(data: bytes) -> None:
    with pytest.raises(BadFrame):
        list(Frames().feed(data))


def test_too_large_message_is_not_sent() -> None:
    with pytest.raises(BadFrame, match="larger"):
        encode(BridgeNotice("x", raw("a" * MESSAGE_BYTES_MAX)))
