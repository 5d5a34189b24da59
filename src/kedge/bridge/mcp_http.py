"""The HTTP client for remote MCP servers, with bounds for their replies."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx2

from kedge.bridge.mcp_messages import NEEDS_LOGIN, McpServerSpec
from kedge.core.mcp_login import has_own_credentials

#: A reply that is not a stream of events (those have a limit of their own): pictures are the largest. Bytes.
REPLY_BYTES_MAX = 32 * 1024 * 1024
#: Between two pieces of a reply; the limit of a call is the caller's. Seconds.
READ_S = 3600.0
#: Connecting and sending. Seconds.
CONNECT_S = 30.0
HTTP_UNAUTHORIZED = 401


class _BoundedStream(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for piece in self._stream:
            size += len(piece)
            if size > REPLY_BYTES_MAX:
                raise httpx2.ReadError(f"the reply is larger than {REPLY_BYTES_MAX // 1024 // 1024} MB")
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()


class BoundedTransport(httpx2.AsyncHTTPTransport):
    """Notes the reason of a failed request that the SDK reports like any other error: the server requires a login."""

    problem = ""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await super().handle_async_request(request)
        self.problem = NEEDS_LOGIN if response.status_code == HTTP_UNAUTHORIZED else ""
        if "text/event-stream" not in response.headers.get("content-type", ""):
            assert isinstance(response.stream, httpx2.AsyncByteStream)
            response.stream = _BoundedStream(response.stream)
        return response


def http_client(spec: McpServerSpec, transport: BoundedTransport, auth: httpx2.Auth | None) -> httpx2.AsyncClient:
    auth = None if has_own_credentials(spec.url, spec.headers) else auth
    timeout = httpx2.Timeout(CONNECT_S, read=READ_S)
    return httpx2.AsyncClient(headers=spec.headers, timeout=timeout, transport=transport, auth=auth)
