"""A handle to one configured MCP server: started with its first use, and again after it was lost."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from kedge.bridge.bridge_peer import CallFailed
from kedge.bridge.mcp_messages import (
    NEEDS_LOGIN,
    PROMPTS_MAX,
    RESOURCES_MAX,
    TOOLS_MAX,
    ListedPrompt,
    ListedResource,
    McpCallResult,
    McpListing,
    McpServerSpec,
)
from kedge.config.mcp_config import TRUST_FIRST, McpServerEntry, expanded
from kedge.config.mcp_logins import McpLogins
from kedge.core.extensions import ExtensionCondition, ExtensionState
from kedge.core.mcp_login import McpLogin, has_own_credentials
from kedge.core.references import possible_uris, references_in
from kedge.core.untrusted_text import one_line
from kedge.errors import KedgeError
from kedge.extensions.mcp_cache import CachedServer, McpCache
from kedge.extensions.mcp_client import McpClient, Renew
from kedge.extensions.mcp_listing import OfferedTool, digest
from kedge.extensions.mcp_renewal import current_login
from kedge.extensions.part import ExtensionHost
from kedge.tools.base import ToolHost

T = TypeVar("T")

#: Starts within `STARTS_S`. A server that ends more often is broken; calls fail at once. Items, seconds.
STARTS_MAX = 3
STARTS_S = 60.0
#: Limit of a reason in a message. Characters.
REASON_CHARS_MAX = 500
#: Names in a state: what a screen shows and completes. Items.
OFFERS_MAX = TOOLS_MAX + PROMPTS_MAX + RESOURCES_MAX
OFFER_CHARS_MAX = 200


class McpServer:
    """`on_change` is called when its state or its listing has changed."""

    def __init__(
        self, entry: McpServerEntry, host: ExtensionHost, client: McpClient, on_change: Callable[[McpServer], None]
    ) -> None:
        self.entry = entry
        self.name = entry.name
        self.key = key_of(entry, host.root)
        self.cached = CachedServer()
        self._cache = McpCache(host.data_dir)
        self._host = host
        self._client = client
        self._on_change = on_change
        self._connection: int | None = None
        self._starting: asyncio.Task[int] | None = None
        self._waiting = 0
        self._starts: list[float] = []
        self._error = ""
        self._saving: asyncio.Task[None] | None = None
        self._logins = McpLogins(host.data_dir)
        #: The URL of the last start, which a login must have.
        self._url = ""

    def read_cache(self) -> None:
        """Blocking."""
        self.cached = self._cache.read(self.key)
        self._error = self.cached.error

    # --- state ----------------------------------------------------------------------------------------------------

    @property
    def is_usable(self) -> bool:
        return not self.entry.problem and self.entry.is_trusted and not self.entry.config.disabled

    @property
    def listing(self) -> McpListing | None:
        return self.cached.listing if self.is_usable else None

    def state(self) -> ExtensionState:
        listing = self.listing or McpListing()
        tools = tuple(tool.name for tool in listing.tools)
        prompts = tuple(f"/{command_name(self.name, prompt)}" for prompt in listing.prompts)
        resources = tuple(reference for one in listing.resources if (reference := reference_to(self.name, one)))
        condition, error = self._condition()
        return ExtensionState(
            kind="mcp",
            name=self.name,
            condition=condition,
            origin=self.entry.origin,
            path=self.entry.path,
            description=one_line(_address(self.entry), REASON_CHARS_MAX),
            error=one_line(error, REASON_CHARS_MAX),
            offers=tuple(one_line(offer, OFFER_CHARS_MAX) for offer in (*tools, *prompts, *resources)[:OFFERS_MAX]),
        )

    def _condition(self) -> tuple[ExtensionCondition, str]:
        if self.entry.problem:
            return "failed", self.entry.problem
        if self.entry.config.disabled:
            return "disabled", ""
        if not self.entry.is_trusted:
            return "untrusted", TRUST_FIRST
        if self._starting is not None:
            return "starting", ""
        if self._error == NEEDS_LOGIN:
            return "needs_login", self._login_first()
        if self._connection is not None:
            return "ready", ""
        return ("failed", self._error) if self._error else ("idle", "")

    def _login_first(self) -> str:
        if has_own_credentials(self._url, self.entry.config.headers):
            return "it refuses the credentials of its configuration"
        return f"needs a login; run: kedge mcp login {self.name}"

    def prompt(self, name: str) -> ListedPrompt | None:
        prompts = self.listing.prompts if self.listing else ()
        return next((prompt for prompt in prompts if command_name(self.name, prompt) == name), None)

    # --- start and end --------------------------------------------------------------------------------------------

    async def connection(self) -> int:
        """Return the connection; start the server if it does not run. CallFailed if that fails.

        The start is stopped when its last caller is cancelled."""
        if self._connection is not None:
            return self._connection
        if self._starting is None:
            self._check_starts()
            self._starting = asyncio.get_running_loop().create_task(self._start(), name=f"mcp {self.name}")
            self._on_change(self)
        starting = self._starting
        self._waiting += 1
        try:
            return await asyncio.shield(starting)
        finally:
            self._waiting -= 1
            if not self._waiting and not starting.done():
                starting.cancel()

    def forget_starts(self) -> None:
        """Allow another start, since the user asks for it."""
        self._starts.clear()

    def stop(self) -> None:
        if self._starting is not None:
            self._starting.cancel()
        if self._connection is not None:
            self._client.disconnect(self._connection)
            self._connection = None
            self._on_change(self)

    def _check_starts(self) -> None:
        now = asyncio.get_running_loop().time()
        self._starts = [at for at in self._starts if now - at < STARTS_S]
        if len(self._starts) >= STARTS_MAX:
            reason = f" ({self._error})" if self._error else ""
            raise CallFailed(f"it ended {STARTS_MAX} times within a minute{reason}; try again later")
        self._starts.append(now)

    async def _start(self) -> int:
        try:
            try:
                spec, login = await self._host.files.run(self._spec_and_login)
                self._url = spec.url
                number, listing = await self._client.connect(spec, login, self)
            except KedgeError as error:
                raise CallFailed(error.message) from None
            self._connection, self._error = number, ""
            self._put(listing, "")
            return number
        except CallFailed as error:
            self._error = str(error)
            self._put(self.cached.listing, self._error)
            if self._error == NEEDS_LOGIN:
                self._starts.clear()  # the server works, and the next call may follow a login
                raise CallFailed(self._login_first()) from None
            raise
        finally:
            self._starting = None
            self._on_change(self)

    def _spec_and_login(self) -> tuple[McpServerSpec, McpLogin | None]:
        spec = self._spec()
        return spec, self._logins.read(self.name, spec.url) if spec.url else None

    def _spec(self) -> McpServerSpec:
        """Look up variables and secrets. Blocking."""
        config = expanded(self.entry.config)
        return McpServerSpec(
            type=config.type or ("stdio" if config.command else "http"),
            root=str(self._host.root),
            command=config.command,
            args=tuple(config.args),
            env=config.env,
            cwd=str(self._host.root / Path(config.cwd).expanduser()) if config.cwd else "",
            url=config.url,
            headers=config.headers,
        )

    # --- the listener of the client -------------------------------------------------------------------------------

    def on_listing(self, listing: McpListing) -> None:
        self._put(listing, self.cached.error)
        self._on_change(self)

    def on_end(self, reason: str) -> None:
        self._connection, self._error = None, reason
        self._on_change(self)

    async def login(self, stale: str, renew: Renew) -> McpLogin | None:
        return await current_login(self._logins, self._host.files, self.name, self._url, stale, renew)

    def _put(self, listing: McpListing | None, error: str) -> None:
        """Keep what is known about the server: a later process lists it."""
        if (listing, error) != (self.cached.listing, self.cached.error):
            self.cached = replace(self.cached, listing=listing, error=error)
            self._save()

    def _save(self) -> None:
        if self._saving is None or self._saving.done():
            self._saving = asyncio.get_running_loop().create_task(self._write_cache(), name=f"mcp cache {self.name}")

    async def _write_cache(self) -> None:
        """Write the cache until it has the latest state: one write at a time, so that none replaces a newer one."""
        written = None
        while written is not self.cached:
            written = self.cached
            with suppress(KedgeError):  # the server is listed again at its next start
                await self._host.files.run(self._cache.write, self.key, written)

    async def saved(self) -> None:
        """Wait until the cache is written."""
        if self._saving is not None:
            await asyncio.wait([self._saving])

    # --- use ------------------------------------------------------------------------------------------------------

    def has_changed(self, offered: OfferedTool) -> bool:
        """Return True if the tool is not described as it was when it was last approved."""
        return self.cached.approved.get(offered.tool, offered.digest) != offered.digest

    async def call(self, offered: OfferedTool, arguments: dict[str, Any], host: ToolHost) -> McpCallResult:
        """Call a tool, if it is still what was offered. CallFailed if it fails."""
        connection = await self.connection()
        tools = self.listing.tools if self.listing else ()
        if not any(tool.name == offered.tool and digest(tool) == offered.digest for tool in tools):
            raise CallFailed("its server has changed or removed this tool meanwhile; call it again")
        if offered.tool not in self.cached.approved or (host.was_asked and self.has_changed(offered)):
            approved = {**self.cached.approved, offered.tool: offered.digest}
            self.cached = replace(self.cached, approved=approved)
            self._save()
            self._on_change(self)
        timeout_s = self.entry.config.timeout_s
        return await self._asked(self._client.call(connection, offered.tool, arguments, host, timeout_s))

    async def prompt_text(self, name: str, arguments: dict[str, str]) -> str:
        return await self._asked(self._client.prompt(await self.connection(), name, arguments))

    async def resource_text(self, written: str) -> tuple[str, str]:
        """Return the URI and the text of a listed resource. CallFailed if it is not listed, or cannot be read."""
        connection = await self.connection()
        listed = {resource.uri for resource in (self.listing.resources if self.listing else ())}
        uri = next((uri for uri in possible_uris(written) if uri in listed), None)
        if uri is None:
            raise CallFailed(f"the server lists no such resource; list them with: kedge mcp test {self.name}")
        return uri, await self._asked(self._client.resource(connection, uri))

    async def _asked(self, request: Awaitable[T]) -> T:
        """Await a request to the connected server, and note whether it needs a login."""
        before = self._error
        try:
            result = await request
            if self._connection is not None:
                self._error = ""
            return result
        except CallFailed as error:
            if str(error) != NEEDS_LOGIN:
                raise
            self._error = NEEDS_LOGIN
            raise CallFailed(self._login_first()) from None
        finally:
            if self._error != before:
                self._on_change(self)


def _address(entry: McpServerEntry) -> str:
    """Return the program or host of a server. Its arguments, and other parts of its URL, may contain secrets."""
    try:
        return entry.config.command or urlsplit(entry.config.url).hostname or ""
    except ValueError:  # not a URL; the start reports it
        return ""


def key_of(entry: McpServerEntry, root: Path) -> str:
    """Return a digest of how the server is reached. Programs of a repository differ between repositories."""
    config = entry.config
    is_local = entry.origin == "repository" or "/" in config.command or config.cwd
    parts = [config.command, config.args, config.env, config.cwd, config.url, config.headers, config.type]
    return hashlib.sha256(msgspec.json.encode([*parts, str(root) if is_local else ""])).hexdigest()[:32]


def command_name(server: str, prompt: ListedPrompt) -> str:
    return f"mcp:{server}:{prompt.name}"


def reference_to(server: str, resource: ListedResource) -> str:
    """Return `@server:uri`; empty if it cannot be typed as one word, or could not be shown in full."""
    reference = f"@{server}:{resource.uri}"
    can_be_typed = references_in(reference) == (reference[1:],) and one_line(reference, OFFER_CHARS_MAX) == reference
    return reference if can_be_typed else ""
