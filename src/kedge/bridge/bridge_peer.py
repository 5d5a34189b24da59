"""One end of the connection between the server and a bridge: requests out, requests in."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec

from kedge.bridge.bridge_protocol import (
    REQUESTS_MAX,
    BadFrame,
    BridgeCancel,
    BridgeMessage,
    BridgeNotice,
    BridgeReply,
    BridgeRequest,
    encode,
    raw,
)

T = TypeVar("T")

#: Handles a request of the other side: its method and parameters. The result is sent back; a CallFailed as its error.
OnRequest = Callable[[str, msgspec.Raw], Awaitable[Any]]
OnNotice = Callable[[str, msgspec.Raw], None]


class CallFailed(Exception):
    """A request failed. The message is one line for users and models."""


class BridgeLost(CallFailed):
    """The other side is gone, or does not answer."""


class Peer:
    """`write` sends bytes; messages of one caller keep their order."""

    def __init__(self, write: Callable[[bytes], Awaitable[None]], on_request: OnRequest, on_notice: OnNotice) -> None:
        self._write = write
        self._on_request = on_request
        self._on_notice = on_notice
        self._writing = asyncio.Lock()
        self._last_id = 0
        self._waiting: dict[int, asyncio.Future[msgspec.Raw]] = {}
        self._serving: dict[int, asyncio.Task[None]] = {}
        #: Why the connection has ended; empty: it has not.
        self.lost = ""

    async def request(self, method: str, params: Any, kind: type[T], timeout_s: float) -> T:
        """Send a request and return its result. CallFailed if it fails, BridgeLost if the other side does not answer.

        If cancelled or timed out, the other side is informed, which stops the request there."""
        if self.lost:
            raise BridgeLost(self.lost)
        if len(self._waiting) >= REQUESTS_MAX:
            raise CallFailed(f"{REQUESTS_MAX} requests are waiting already; try again later")
        self._last_id = id_ = self._last_id + 1
        reply: asyncio.Future[msgspec.Raw] = asyncio.get_running_loop().create_future()
        self._waiting[id_] = reply
        try:
            async with asyncio.timeout(timeout_s):
                await self._send(BridgeRequest(id_, method, raw(params)))
                result = await reply
        except TimeoutError:
            raise BridgeLost(f"no answer within {timeout_s:g} s") from None
        finally:
            del self._waiting[id_]
            if not reply.done() or reply.cancelled():
                self._inform(BridgeCancel(id_))
            else:
                reply.exception()  # the connection may have been lost while this was sent, or was cancelled
        try:
            return msgspec.json.decode(result, type=kind)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise CallFailed(f"the answer is not valid: {error}") from None

    async def notify(self, method: str, params: Any) -> None:
        await self._send(BridgeNotice(method, raw(params)))

    def receive(self, message: BridgeMessage) -> None:
        match message:
            case BridgeRequest(id=id_):
                if len(self._serving) >= REQUESTS_MAX:
                    self._inform(BridgeReply(id_, error="too many requests at once"))
                    return
                task = asyncio.get_running_loop().create_task(self._serve(message), name=f"bridge {message.method}")
                self._serving[id_] = task
                task.add_done_callback(lambda _: self._serving.pop(id_, None))
            case BridgeReply(id=id_):
                reply = self._waiting.get(id_)
                if reply is None or reply.done():
                    return  # cancelled meanwhile
                if message.error:
                    reply.set_exception(CallFailed(message.error))
                else:
                    reply.set_result(message.result)
            case BridgeCancel(id=id_):
                if (serving := self._serving.get(id_)) is not None:
                    serving.cancel()
            case BridgeNotice():
                self._on_notice(message.method, message.params)

    def lose(self, why: str) -> None:
        """End the connection: every waiting request fails with BridgeLost."""
        self.lost = self.lost or why
        for reply in self._waiting.values():
            if not reply.done():
                reply.set_exception(BridgeLost(self.lost))
        for task in list(self._serving.values()):
            task.cancel()

    async def _serve(self, request: BridgeRequest) -> None:
        try:
            answer = BridgeReply(request.id, raw(await self._on_request(request.method, request.params)))
        except CallFailed as error:
            answer = BridgeReply(request.id, error=str(error) or "failed")
        except Exception as error:  # a bug in a handler fails the request, not the connection
            answer = BridgeReply(request.id, error=f"unexpected error: {type(error).__name__}: {error}"[:500])
        await self._send(answer)

    async def _send(self, message: BridgeMessage) -> None:
        """Send a message whole: a cancelled sender must not leave half of it."""
        try:
            data = encode(message)
        except BadFrame as error:
            raise CallFailed(str(error)) from None
        sending = asyncio.get_running_loop().create_task(self._send_bytes(data))
        await asyncio.shield(sending)

    async def _send_bytes(self, data: bytes) -> None:
        async with self._writing:
            if self.lost:
                raise BridgeLost(self.lost)
            await self._write(data)

    def _inform(self, message: BridgeCancel | BridgeReply) -> None:
        if not self.lost:
            task = asyncio.get_running_loop().create_task(self._send_bytes(encode(message)))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
