"""The notifications of changed lists from protocol version 2026-07-28 on: a stream that the client requests.

Servers of earlier versions send them unasked, to the message handler of `McpConnection`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from mcp.client import Client
from mcp.shared.exceptions import MCPError
from mcp_types import METHOD_NOT_FOUND
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

#: Time for the acknowledgment before the first listing is read without it. Seconds.
ACKNOWLEDGED_S = 2.0
#: Pauses after lost streams: the first and the longest one; each is twice the one before. Seconds.
RETRY_S = 1.0
RETRY_S_MAX = 60.0


@asynccontextmanager
async def subscribed_to_lists(client: Client, on_change: Callable[[], None]) -> AsyncIterator[None]:
    """Call `on_change` for each change, and whenever the stream is opened, since one may have been missed."""
    kinds = client.server_capabilities
    if client.protocol_version not in MODERN_PROTOCOL_VERSIONS or not (kinds.tools or kinds.prompts or kinds.resources):
        yield
        return
    loop = asyncio.get_running_loop()
    is_open = asyncio.Event()

    def on_open() -> None:
        is_open.set()
        on_change()

    following = loop.create_task(_follow(client, on_open, on_change))
    opened = loop.create_task(is_open.wait())
    try:
        await asyncio.wait([opened, following], timeout=ACKNOWLEDGED_S, return_when=asyncio.FIRST_COMPLETED)
        yield
    finally:
        opened.cancel()
        following.cancel()
        await asyncio.wait([opened, following])


async def _follow(client: Client, on_open: Callable[[], None], on_change: Callable[[], None]) -> None:
    """Keep a stream open. A server that does not know the request is not asked again."""
    loop = asyncio.get_running_loop()
    kinds = client.server_capabilities
    pause_s = RETRY_S
    while True:
        began = loop.time()
        try:
            async with client.listen(
                tools_list_changed=kinds.tools is not None,
                prompts_list_changed=kinds.prompts is not None,
                resources_list_changed=kinds.resources is not None,
            ) as changes:
                on_open()
                async for _ in changes:
                    on_change()
        except MCPError as error:
            if error.code == METHOD_NOT_FOUND:
                return
        except (RuntimeError, ValidationError, OSError):  # lost, or never opened
            pass
        if loop.time() - began > RETRY_S_MAX:
            pause_s = RETRY_S
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, RETRY_S_MAX)
