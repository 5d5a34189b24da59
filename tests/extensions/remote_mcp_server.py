"""An MCP server, written with the SDK: `python remote_mcp_server.py streamable-http|sse|stdio`. Prints its port."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Callable

import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.subscriptions import InMemorySubscriptionBus, PromptsListChanged, ServerEvent


class Bus(InMemorySubscriptionBus):
    def __init__(self) -> None:
        super().__init__()
        self.streams: list[Callable[[ServerEvent], None]] = []
        self.reopened = asyncio.Event()

    def subscribe(self, listener: Callable[[ServerEvent], None]) -> Callable[[], None]:
        self.streams.append(listener)
        if len(self.streams) > 1:
            self.reopened.set()
        return super().subscribe(listener)


bus = Bus()
server = MCPServer("remote", subscriptions=bus)


@server.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
def header(context: Context) -> str:
    """Return the header of the request."""
    return str(context.request_context.request.headers.get("x-token"))  # type: ignore[union-attr]


@server.tool()
async def change(context: Context) -> str:
    """Change the description of `add`."""
    server.remove_tool("add")
    server.add_tool(add, description="Now it does something else.")
    await context.notify_tools_changed()
    return str(context.protocol_version)


@server.tool()
def overflow() -> None:
    """Send more events than a stream may hold, which ends it."""
    for _ in range(2000):
        bus.streams[-1](PromptsListChanged())


@server.tool()
async def reopened() -> None:
    """Wait for the second stream."""
    await bus.reopened.wait()


async def main() -> None:
    app = server.sse_app() if sys.argv[1] == "sse" else server.streamable_http_app()
    sock = socket.create_server(("127.0.0.1", 0))
    print(sock.getsockname()[1], flush=True)
    await uvicorn.Server(uvicorn.Config(app, log_level="error")).serve([sock])


if sys.argv[1] == "stdio":
    server.run()
else:
    asyncio.run(main())
