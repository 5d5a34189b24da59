"""The server's side of the MCP bridge: connections, calls, and what comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any, Protocol

import msgspec

from kedge.bridge.bridge_peer import BridgeLost, CallFailed
from kedge.bridge.mcp_messages import (
    START_S,
    Changed,
    Connect,
    Disconnect,
    Elicit,
    Elicited,
    Ended,
    GetPrompt,
    LoginReply,
    McpCall,
    McpCallResult,
    McpListing,
    McpProgress,
    McpServerSpec,
    ReadResource,
    WantedLogin,
)
from kedge.core.mcp_login import McpLogin
from kedge.core.untrusted_text import one_line
from kedge.errors import KedgeError
from kedge.extensions.bridge_process import BridgeProcess
from kedge.extensions.mcp_elicitation import elicited, form_fields
from kedge.extensions.part import ExtensionHost
from kedge.tools.base import ToolFailed, ToolHost
from kedge.waiting import retrieve_exception

#: A call has a limit of its own, which pauses while the user is asked. Seconds.
FOREVER_S = 7 * 24 * 3600.0
#: A bridge that does not answer this long is blocked, and restarted. Seconds.
PING_S = 10.0
#: Time for a prompt or a resource. Seconds.
READ_S = 60.0
#: Time for the renewal of a login; the bridge has a limit of 30 seconds. Seconds.
RENEW_S = 40.0
#: Limit of a progress report. Characters.
PROGRESS_CHARS_MAX = 300


Renew = Callable[[McpLogin], Awaitable[McpLogin | None]]


class Listener(Protocol):
    """A connected server."""

    name: str

    async def login(self, stale: str, renew: Renew) -> McpLogin | None: ...

    def on_listing(self, listing: McpListing) -> None: ...

    def on_end(self, reason: str) -> None: ...


class _ActiveCall:
    def __init__(self, host: ToolHost, timeout_s: float) -> None:
        self.host = host
        self.timeout_s = timeout_s
        self.limit: asyncio.Timeout | None = None


class McpClient:
    def __init__(self, host: ExtensionHost) -> None:
        self._bridge = BridgeProcess("mcp", host.root, host.processes, self._on_request, self._on_notice, self._on_lost)
        self._numbers = count(1)
        self._listeners: dict[int, Listener] = {}
        self._calls: dict[int, _ActiveCall] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def is_running(self) -> bool:
        return self._bridge.is_running

    async def connect(self, spec: McpServerSpec, login: McpLogin | None, listener: Listener) -> tuple[int, McpListing]:
        """Start a server. Returns the number of the connection, and what the server offers."""
        number = next(self._numbers)
        self._listeners[number] = listener
        try:
            request = Connect(number, spec, login)
            return number, await self._bridge.request("connect", request, McpListing, START_S + PING_S)
        except BaseException:
            self._listeners.pop(number, None)
            raise

    def disconnect(self, connection: int) -> None:
        """End a server, without waiting for it."""
        if self._listeners.pop(connection, None) is not None and self._bridge.is_running:
            self._spawn(self._disconnect(connection))

    async def call(
        self, connection: int, tool: str, arguments: dict[str, Any], host: ToolHost, timeout_s: float
    ) -> McpCallResult:
        number = next(self._numbers)
        active = self._calls[number] = _ActiveCall(host, timeout_s)
        request = McpCall(connection, number, tool, arguments)
        try:
            async with asyncio.timeout(timeout_s) as active.limit:
                return await self._bridge.request("call", request, McpCallResult, FOREVER_S)
        except TimeoutError:
            self._spawn(self._check())
            raise CallFailed(f"no answer within {timeout_s:g} s; the call was cancelled") from None
        finally:
            del self._calls[number]

    async def prompt(self, connection: int, name: str, arguments: dict[str, str]) -> str:
        return await self._bridge.request("prompt", GetPrompt(connection, name, arguments), str, READ_S)

    async def resource(self, connection: int, uri: str) -> str:
        return await self._bridge.request("resource", ReadResource(connection, uri), str, READ_S)

    async def close(self) -> None:
        self._listeners.clear()
        await self._bridge.close()

    async def _disconnect(self, connection: int) -> None:
        await self._bridge.request("disconnect", Disconnect(connection), type(None), PING_S)

    async def _check(self) -> None:
        """Restart the bridge if it is blocked."""
        try:
            await self._bridge.request("ping", None, type(None), PING_S)
        except BridgeLost:
            await self._bridge.end("the MCP bridge did not respond")

    def _spawn(self, work: Any) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(retrieve_exception)
        return task

    # --- what the bridge sends ----------------------------------------------------------------------------------

    async def _on_request(self, method: str, params: msgspec.Raw) -> Any:
        match method:
            case "elicit":
                return await self._elicit(msgspec.json.decode(params, type=Elicit))
            case "login":
                # A renewal is never cancelled: a token that was issued and not stored would end the login.
                return await asyncio.shield(self._spawn(self._login(msgspec.json.decode(params, type=WantedLogin))))
        raise CallFailed(f"unknown request {method}")

    async def _login(self, request: WantedLogin) -> LoginReply:
        if (listener := self._listeners.get(request.connection)) is None:
            return LoginReply()
        try:
            return LoginReply(await listener.login(request.stale, self._renew))
        except KedgeError as error:
            raise CallFailed(error.message) from None

    async def _renew(self, login: McpLogin) -> McpLogin | None:
        return (await self._bridge.request("renew", login, LoginReply, RENEW_S)).login

    async def _elicit(self, request: Elicit) -> Elicited:
        active, listener = self._calls.get(request.call), self._listeners.get(request.connection)
        if active is None or listener is None:
            return Elicited("cancel")
        fields = form_fields(listener.name, request.message, request.schema, request.url)
        if fields is None:
            raise CallFailed("this form cannot be shown to the user")
        loop = asyncio.get_running_loop()
        if active.limit is not None:
            active.limit.reschedule(None)  # the user's time does not count
        try:
            return elicited(fields, await active.host.ask_user(tuple(field.question for field in fields)))
        except ToolFailed:  # no user is available
            return Elicited("cancel")
        finally:
            if active.limit is not None and not active.limit.expired():
                active.limit.reschedule(loop.time() + active.timeout_s)

    def _on_notice(self, method: str, params: msgspec.Raw) -> None:
        handlers: dict[str, Callable[[msgspec.Raw], None]] = {
            "progress": self._on_progress,
            "listing": self._on_listing,
            "ended": self._on_end,
        }
        if method in handlers:
            handlers[method](params)

    def _on_progress(self, params: msgspec.Raw) -> None:
        progress = msgspec.json.decode(params, type=McpProgress)
        if (active := self._calls.get(progress.call)) is not None:
            active.host.progress(one_line(progress.text, PROGRESS_CHARS_MAX))

    def _on_listing(self, params: msgspec.Raw) -> None:
        changed = msgspec.json.decode(params, type=Changed)
        if (listener := self._listeners.get(changed.connection)) is not None:
            listener.on_listing(changed.listing)

    def _on_end(self, params: msgspec.Raw) -> None:
        ended = msgspec.json.decode(params, type=Ended)
        if (listener := self._listeners.pop(ended.connection, None)) is not None:
            listener.on_end(ended.reason)

    def _on_lost(self, why: str) -> None:
        listeners, self._listeners = self._listeners, {}
        for listener in listeners.values():
            listener.on_end(why)
