"""A connection of the MCP bridge to one server, from its start to its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
from mcp.client import Client
from mcp.client.session import ClientRequestContext, IncomingMessage
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CONNECTION_CLOSED,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    ElicitRequestFormParams,
    ElicitRequestParams,
    ElicitResult,
    ErrorData,
    Implementation,
    ListRootsResult,
    PromptListChangedNotification,
    ResourceListChangedNotification,
    Root,
    ToolListChangedNotification,
)
from pydantic import ValidationError

from kedge.bridge.bridge_peer import CallFailed
from kedge.bridge.mcp_auth import LoginAuth
from kedge.bridge.mcp_http import BoundedTransport, http_client
from kedge.bridge.mcp_messages import (
    PROMPTS_MAX,
    RESOURCES_MAX,
    START_S,
    TOOLS_MAX,
    Elicited,
    McpCallResult,
    McpListing,
    McpServerSpec,
)
from kedge.bridge.mcp_results import (
    call_result,
    listed_prompts,
    listed_resources,
    listed_tools,
    prompt_text,
    resource_text,
)
from kedge.bridge.mcp_stdio import StdioServer
from kedge.bridge.mcp_subscription import subscribed_to_lists
from kedge.core.mcp_login import McpLogin

#: Time between two listings that a server asks for by notification. Seconds.
RELIST_S = 2.0
#: Time for a listing. Seconds.
LIST_S = 30.0
#: Limit of an error of a server. Characters.
ERROR_CHARS_MAX = 500
#: Lines of standard error: the last one alone may be the end of a trace.
ERROR_LINES = 3
_NOTICES = ("npm notice", "npm warn", "npm WARN")
#: Time for the end of a lost connection. Seconds.
END_S = 5.0
#: Time between two reports about the progress of a call. Seconds.
PROGRESS_S = 0.2

OnElicit = Callable[[str, dict[str, Any], str], Awaitable[Elicited]]


class McpConnection:
    """`on_listing` receives each later listing; `on_end` the reason when the connection is lost."""

    def __init__(
        self,
        spec: McpServerSpec,
        login: McpLogin | None,
        on_listing: Callable[[McpListing], Awaitable[None]],
        on_end: Callable[[str], Awaitable[None]],
        on_elicit: OnElicit,
        current_login: Callable[[str], Awaitable[McpLogin | None]],
    ) -> None:
        self._spec = spec
        self._on_listing = on_listing
        self._on_end = on_end
        self._on_elicit = on_elicit
        self._stdio = StdioServer(spec) if spec.type == "stdio" else None
        self._http = BoundedTransport()
        self._auth = LoginAuth(login, self._http, current_login, self._on_refused)
        self._client: Client | None = None
        self._listed: asyncio.Future[McpListing] = asyncio.get_running_loop().create_future()
        self._has_changed = asyncio.Event()
        self._closing = asyncio.Event()
        self._running: asyncio.Task[None] | None = None

    async def start(self) -> McpListing:
        """Connect and return the first listing. CallFailed if that fails."""
        self._running = asyncio.get_running_loop().create_task(self._run())
        try:
            return await asyncio.shield(self._listed)
        except asyncio.CancelledError:
            await self.close()
            raise

    async def close(self) -> None:
        self._closing.set()
        if self._running is not None:
            if not self._listed.done():
                self._running.cancel()
            await asyncio.wait([self._running])

    async def call(
        self, tool: str, arguments: dict[str, Any], on_progress: Callable[[str], Awaitable[None]]
    ) -> McpCallResult:
        loop, last = asyncio.get_running_loop(), 0.0

        async def on_report(progress: float, total: float | None, message: str | None) -> None:
            nonlocal last
            if loop.time() - last < PROGRESS_S:
                return  # a server may send thousands
            last = loop.time()
            amount = f"{progress:g}/{total:g}" if total else f"{progress:g}"
            await on_progress(f"{amount} {message[:ERROR_CHARS_MAX]}" if message else amount)

        return call_result(
            await self._ask(lambda client: client.call_tool(tool, arguments, progress_callback=on_report))
        )

    async def prompt(self, name: str, arguments: dict[str, str]) -> str:
        return prompt_text(await self._ask(lambda client: client.get_prompt(name, arguments)))

    async def resource(self, uri: str) -> str:
        return resource_text(await self._ask(lambda client: client.read_resource(uri)))

    async def _ask(self, request: Callable[[Client], Awaitable[Any]]) -> Any:
        if self._client is None:
            raise CallFailed("the server is not connected")
        try:
            return await request(self._client)
        except MCPError as error:
            if error.code == CONNECTION_CLOSED:
                self._closing.set()
                if self._running is not None:  # the end is reported before this failure: the next call starts it again
                    await asyncio.wait([self._running], timeout=END_S)
                raise CallFailed(self._lost()) from None
            raise CallFailed(self._http_failure(error)) from None
        except ValidationError:
            raise CallFailed("the server sent an answer that is not valid") from None
        except (RuntimeError, ValueError, OSError) as error:
            raise CallFailed(describe(error)) from None

    async def _run(self) -> None:
        """Own the connection: its contexts must be left in the task that entered them."""
        reason = ""
        try:
            async with asyncio.timeout(None) as limit:
                limit.reschedule(asyncio.get_running_loop().time() + START_S)
                async with self._connected() as client, subscribed_to_lists(client, self._has_changed.set):
                    self._client = client
                    self._has_changed.clear()  # the listing has all changes until now
                    listing = await self._list(client)
                    limit.reschedule(None)
                    self._listed.set_result(listing)
                    await self._follow(client)
                reason = self._lost()  # with the exit code, which is known now
        except TimeoutError:
            reason = f"it did not answer within {START_S:g} s{self._last_error()}"
        except Exception as error:  # whatever a transport raises ends this connection and nothing else
            reason = self._http_failure(error) if self._stdio is None else self._start_failure(error)
        finally:
            self._client = None
            if not self._listed.done():
                self._listed.set_exception(CallFailed(reason or "it was stopped"))
                self._listed.exception()  # the caller may be gone
            elif not self._listed.cancelled():
                await self._on_end(reason)

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Client]:
        spec = self._spec
        if self._stdio is not None:
            transport: Any = self._stdio.connect()
            async with self._opened(transport) as client:
                yield client
        elif spec.type == "sse":

            def client_for(headers: Any = None, timeout: Any = None, auth: Any = None) -> httpx2.AsyncClient:
                return http_client(spec, self._http, self._auth)

            async with self._opened(sse_client(spec.url, httpx_client_factory=client_for)) as client:
                yield client
        else:
            async with http_client(spec, self._http, self._auth) as http:
                async with self._opened(streamable_http_client(spec.url, http_client=http)) as client:
                    yield client

    @asynccontextmanager
    async def _opened(self, transport: Any) -> AsyncIterator[Client]:
        client = Client(
            transport,
            client_info=Implementation(name="kedge", version="0.1"),
            list_roots_callback=self._roots,
            elicitation_callback=self._elicit,
            message_handler=self._on_message,
            cache=None,
        )
        async with client:
            # A server writes this schema, and its patterns would be matched on this event loop: one can block it.
            client.session.validate_tool_result = _not_validated  # type: ignore[method-assign]
            yield client

    async def _follow(self, client: Client) -> None:
        """Send new listings until the connection ends."""
        loop = asyncio.get_running_loop()
        ends = [loop.create_task(self._closing.wait())]
        if self._stdio is not None:
            ends.append(loop.create_task(self._stdio.ended.wait()))
        try:
            while True:
                changed = loop.create_task(self._has_changed.wait())
                done, _ = await asyncio.wait([changed, *ends], return_when=asyncio.FIRST_COMPLETED)
                changed.cancel()
                if any(end in done for end in ends):
                    return
                self._has_changed.clear()
                with suppress(TimeoutError, MCPError, ValidationError):  # then the last listing stays
                    async with asyncio.timeout(LIST_S):
                        listing = await self._list(client)
                    await self._on_listing(listing)
                await asyncio.wait(ends, timeout=RELIST_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for end in ends:
                end.cancel()

    async def _list(self, client: Client) -> McpListing:
        capabilities = client.server_capabilities
        tools = await _pages(client.list_tools, "tools", TOOLS_MAX) if capabilities.tools else []
        prompts = await _pages(client.list_prompts, "prompts", PROMPTS_MAX) if capabilities.prompts else []
        resources = await _pages(client.list_resources, "resources", RESOURCES_MAX) if capabilities.resources else []
        return McpListing(
            tuple(listed_tools(tools)), tuple(listed_prompts(prompts)), tuple(listed_resources(resources))
        )

    async def _on_message(self, message: IncomingMessage) -> None:
        changes = (ToolListChangedNotification, PromptListChangedNotification, ResourceListChangedNotification)
        if isinstance(message, changes):
            self._has_changed.set()

    async def _roots(self, context: ClientRequestContext) -> ListRootsResult:
        return ListRootsResult(roots=[Root(uri=Path(self._spec.root).as_uri(), name="workspace")])  # type: ignore[arg-type]

    async def _elicit(self, context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult | ErrorData:
        try:
            if isinstance(params, ElicitRequestFormParams):
                schema: Any = params.requested_schema
                plain = schema if isinstance(schema, dict) else schema.model_dump(by_alias=True, exclude_none=True)
                answer = await self._on_elicit(params.message, plain, "")
            else:
                answer = await self._on_elicit(params.message, {}, params.url)
        except CallFailed as error:
            return ErrorData(code=INVALID_REQUEST, message=str(error))
        return ElicitResult(action=answer.action, content=answer.content)

    def _on_refused(self) -> None:
        if self._spec.type == "sse":  # there, the SDK ignores a refused request, and its caller waits for the answer
            self._closing.set()

    def _lost(self) -> str:
        if self._stdio is None:
            return self._http.problem or "the connection was lost"
        return f"the server ended{self._exit()}{self._last_error()}"

    def _http_failure(self, error: BaseException) -> str:
        return self._http.problem or describe(error)

    def _start_failure(self, error: BaseException) -> str:
        assert self._stdio is not None
        if isinstance(_leaf(error), OSError) and self._stdio.exit_code is None and not self._stdio.errors:
            return f"{self._spec.command} cannot be started: {describe(error)}"
        return f"{self._lost() if self._stdio.ended.is_set() else describe(error) + self._last_error()}"

    def _exit(self) -> str:
        code = None if self._stdio is None else self._stdio.exit_code
        return f" (exit code {code})" if code is not None else ""

    def _last_error(self) -> str:
        """Return the last lines of standard error, without the advertisements of a package manager."""
        text = self._stdio.errors if self._stdio is not None else ""
        lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith(_NOTICES)]
        last = "; ".join(line[:ERROR_CHARS_MAX] for line in lines[-ERROR_LINES:])
        return f": {last[-ERROR_CHARS_MAX:]}" if last else ""


async def _pages(read: Callable[..., Awaitable[Any]], field: str, items_max: int) -> list[Any]:
    """Read all pages of a list, up to the limit."""
    items: list[Any] = []
    position: str | None = None
    for _ in range(items_max):
        try:
            page = await read(cursor=position)
        except MCPError as error:
            if error.code == METHOD_NOT_FOUND:  # announced, but not served
                break
            raise
        items += getattr(page, field)
        position = page.next_cursor
        if not position or len(items) >= items_max:
            break
    return items[:items_max]


async def _not_validated(name: str, result: Any) -> None:
    pass


def _leaf(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    return error


def describe(error: BaseException) -> str:
    """Return one line about an error of the SDK, of HTTP or of the system."""
    error = _leaf(error)
    response = getattr(error, "response", None)
    if (status := getattr(response, "status_code", None)) is not None:
        return f"the server answered with HTTP status {status}"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, MCPError):
        return error.message[:ERROR_CHARS_MAX]
    return (str(error) or type(error).__name__)[:ERROR_CHARS_MAX]
