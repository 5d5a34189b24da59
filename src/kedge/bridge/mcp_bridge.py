"""The MCP bridge: the connections of one workspace to its MCP servers. Runs in a side process."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import msgspec

from kedge.bridge.bridge_peer import CallFailed, Peer
from kedge.bridge.mcp_auth import RENEW_S, renewed
from kedge.bridge.mcp_connection import McpConnection
from kedge.bridge.mcp_messages import (
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
    ReadResource,
    WantedLogin,
)
from kedge.core.mcp_login import McpLogin

#: A question of a server to the user waits this long: users take breaks. Seconds.
ELICIT_S = 24 * 3600.0
#: A stored login: other workspaces may renew it first. Seconds.
LOGIN_S = 2 * RENEW_S


class McpBridge:
    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._connections: dict[int, McpConnection] = {}
        #: Connection -> its calls, the latest last.
        self._calls: dict[int, list[int]] = {}

    async def on_request(self, method: str, params: msgspec.Raw) -> Any:
        match method:
            case "connect":
                return await self._connect(msgspec.json.decode(params, type=Connect))
            case "disconnect":
                connection = self._connections.pop(msgspec.json.decode(params, type=Disconnect).connection, None)
                if connection is not None:
                    await connection.close()
                return None
            case "call":
                return await self._call(msgspec.json.decode(params, type=McpCall))
            case "prompt":
                prompt = msgspec.json.decode(params, type=GetPrompt)
                return await self._connection(prompt.connection).prompt(prompt.name, prompt.arguments)
            case "resource":
                resource = msgspec.json.decode(params, type=ReadResource)
                return await self._connection(resource.connection).resource(resource.uri)
            case "renew":
                return LoginReply(await renewed(msgspec.json.decode(params, type=McpLogin)))
            case "ping":
                return None
        raise CallFailed(f"unknown request {method}")

    def on_notice(self, method: str, params: msgspec.Raw) -> None:
        pass

    async def close(self) -> None:
        await asyncio.gather(*(connection.close() for connection in self._connections.values()))

    def _connection(self, number: int) -> McpConnection:
        if (connection := self._connections.get(number)) is None:
            raise CallFailed("the server is not connected")
        return connection

    async def _connect(self, request: Connect) -> McpListing:
        number = request.connection

        async def on_listing(listing: McpListing) -> None:
            await self._notify("listing", Changed(number, listing))

        async def on_end(reason: str) -> None:
            self._connections.pop(number, None)
            await self._notify("ended", Ended(number, reason))

        async def on_elicit(message: str, schema: dict[str, Any], url: str) -> Elicited:
            if not (calls := self._calls.get(number)):
                return Elicited("cancel")  # no Run waits for this server
            request = Elicit(number, calls[-1], message[:2000], schema, url[:2000])
            return await self._peer.request("elicit", request, Elicited, ELICIT_S)

        async def current_login(stale: str) -> McpLogin | None:
            return (await self._peer.request("login", WantedLogin(number, stale), LoginReply, LOGIN_S)).login

        connection = McpConnection(request.spec, request.login, on_listing, on_end, on_elicit, current_login)
        listing = await connection.start()
        self._connections[number] = connection
        return listing

    async def _call(self, request: McpCall) -> McpCallResult:
        connection = self._connection(request.connection)
        calls = self._calls.setdefault(request.connection, [])
        calls.append(request.call)

        async def on_progress(text: str) -> None:
            await self._notify("progress", McpProgress(request.call, text))

        try:
            return await connection.call(request.tool, request.arguments, on_progress)
        finally:
            calls.remove(request.call)
            if not calls:
                self._calls.pop(request.connection, None)

    async def _notify(self, method: str, params: Any) -> None:
        with suppress(CallFailed):  # the server is gone, and this process ends
            await self._peer.notify(method, params)


def make(peer: Peer) -> McpBridge:
    return McpBridge(peer)
