"""fetch: one page of the Internet, as text. Never one of this machine or its network.

The host is resolved here, every address it has is checked, and the connection goes to an address that was checked: a
name that resolves differently a moment later has no effect. Redirects on the same host are followed, each checked
anew; one to another host is told to the model, since a rule or a person has spoken of this host only.

Nothing that a foreign server sends is parsed in this process, see `fetch_worker`.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from kedge.core.approvals import Intent
from kedge.core.untrusted_text import one_line
from kedge.tools import fetch_worker
from kedge.tools.addresses import Address, is_reachable, parse_address
from kedge.tools.base import OUTPUT_CHARS_MAX, Prepared, ToolContext, ToolFailed, ToolOutput
from kedge.waiting import wait_uncancelled

if TYPE_CHECKING:
    import httpx2

Resolver = Callable[[str, int], Awaitable[list[str]]]

#: For all of one call: resolving, redirects, the body, and making text of it.
FETCH_S_MAX = 30.0
#: What one process may print: the text in JSON, six bytes for each character at worst, and some headers. Bytes.
REPLY_BYTES_MAX = 6 * OUTPUT_CHARS_MAX + 20_000
REDIRECTS_MAX = 5
#: Of addresses that are tried for one host.
ADDRESSES_MAX = 4
#: Of an address: browsers and servers stop at about this.
URL_CHARS_MAX = 2000
#: Ports below belong to other protocols, but for the two of the web.
PORT_MIN = 1024
WEB_PORTS = frozenset({80, 443})
TITLE_CHARS_MAX = 200


class FetchInput(msgspec.Struct):
    url: Annotated[str, Meta(description="Full address, http or https.")]
    format: Annotated[
        Literal["markdown", "text", "html"],
        Meta(description="How an HTML page is given. Default: markdown."),
    ] = "markdown"


class _Reply(Struct, frozen=True):
    """What `fetch_worker` prints."""

    #: Why there is nothing else; empty: it worked.
    failed: str = ""
    addresses: list[str] = []
    #: Where a redirect points to; empty: this is the answer.
    location: str = ""
    content_type: str = ""
    text: str = ""
    is_cut: bool = False


class FetchTool:
    name = "fetch"
    input: type[msgspec.Struct] = FetchInput
    kind: Literal["look", "change"] = "look"

    def __init__(
        self,
        allowed: Callable[[Address], bool] = is_reachable,
        resolver: Resolver | None = None,
        ca_file: Path | None = None,
    ) -> None:
        """`allowed` may block. `ca_file`: the certificates to trust instead of the system's."""
        self._allowed = allowed
        self._resolver = resolver
        self._ca_file = ca_file

    async def prepare(self, args: FetchInput, context: ToolContext) -> Prepared:
        url = _checked(args.url)
        host = url.raw_host.decode("ascii")
        title = one_line(str(url), TITLE_CHARS_MAX)
        intent = Intent(
            names=("fetch",),
            action="fetch",
            subject=host,
            description=f"Fetch {title}",
            path="",
            params=json.dumps({"url": str(url)}, ensure_ascii=False),
            binding=hashlib.sha256(str(url).encode()).hexdigest(),
            grant=f"fetch({host})",
        )

        async def run() -> ToolOutput:
            try:
                async with asyncio.timeout(FETCH_S_MAX):
                    return await self._fetch(url, args.format, context)
            except TimeoutError:
                raise ToolFailed(f"{host} took longer than {FETCH_S_MAX:g} s") from None

        return Prepared(intent, run, f"fetch {title}")

    async def _fetch(self, url: httpx2.URL, form: str, context: ToolContext) -> ToolOutput:
        for _ in range(REDIRECTS_MAX + 1):
            reply = await self._ask(url, form, context)
            if not reply.location:
                note = "\n... the rest is left out ..." if reply.is_cut else ""
                metadata = {"url": str(url), "content_type": reply.content_type, "truncated": reply.is_cut}
                return ToolOutput(reply.text + note, metadata)
            target = _checked(str(url.join(_parsed(reply.location))))
            if url.scheme == "https" and target.scheme == "http":
                raise ToolFailed(f"{url.host} redirects from https to plain http: that is not followed")
            if target.host != url.host:  # rules are asked about hosts, and "www." is another one
                return ToolOutput(f"It redirects to another host: {target}\nFetch that address if it is what you want.")
            url = target
        raise ToolFailed(f"{url.host} redirects more than {REDIRECTS_MAX} times")

    async def _ask(self, url: httpx2.URL, form: str, context: ToolContext) -> _Reply:
        """One request, to an address that was checked."""
        host = url.raw_host.decode("ascii")
        addresses = await self._addresses(host, url.port or (443 if url.scheme == "https" else 80), context)
        request = {
            "what": "page",
            "pinned": [str(url.copy_with(host=str(address))) for address in addresses],
            "authority": url.netloc.decode("ascii"),
            "host": host,
            "format": form,
            "chars_max": OUTPUT_CHARS_MAX,
            "timeout_s": FETCH_S_MAX,
            "ca_file": str(self._ca_file) if self._ca_file else "",
        }
        return await self._run(request, context)

    async def _addresses(self, host: str, port: int, context: ToolContext) -> list[Address]:
        try:
            if self._resolver is not None:
                texts = await self._resolver(host.strip("[]"), port)
            else:
                # Not the event loop's resolver: its few threads serve the requests to models, too.
                asked = {"what": "resolve", "host": host.strip("[]"), "port": port}
                texts = (await self._run(asked, context)).addresses
            found = [parse_address(text) for text in texts]
        except (OSError, UnicodeError, ValueError):
            found = []
        if not found:
            raise ToolFailed(f"there is no host {host}")
        # One that is refused is enough: an honest public name has none of those.
        refused = await context.threads.run(lambda: next((one for one in found if not self._allowed(one)), None))
        if refused is not None:
            raise ToolFailed(
                f"{host} is {refused}, which is not on the Internet or belongs to this machine: "
                "fetch only reaches other, public hosts"
            )
        return list(dict.fromkeys(found))[:ADDRESSES_MAX]

    async def _run(self, request: dict[str, Any], context: ToolContext) -> _Reply:
        """What a process of its own makes of the request. However this is left, the process has ended by then."""
        import httpx2

        # Where our own dependencies are, if the interpreter does not find them alone (`pip install --user`).
        request["packages"] = os.path.dirname(os.path.dirname(httpx2.__file__))
        program = (sys.executable, "-I", "-B", fetch_worker.__file__)
        async with context.threads.fetches:
            with os.fdopen(os.memfd_create("fetch"), "w+b") as file:
                file.write(msgspec.json.encode(request))
                file.seek(0)
                process = await context.processes.start(program, Path("/"), stdin=file)
            data = bytearray()
            try:
                while len(data) <= REPLY_BYTES_MAX and (piece := await process.read()):
                    data += piece
                code = await process.wait() if len(data) <= REPLY_BYTES_MAX else None
            finally:
                ending = asyncio.ensure_future(process.end(0))  # it holds nothing that would be lost
                await wait_uncancelled([ending])  # a cancelled Run ends after its processes
                context.background.left(ending.result())
                if (task := asyncio.current_task()) is not None and task.cancelling():
                    raise asyncio.CancelledError
        return _reply(bytes(data), code)


def _reply(data: bytes, code: int | None) -> _Reply:
    if code in (-signal.SIGXCPU, -signal.SIGKILL):
        raise ToolFailed("the page takes too long to make text of it; fetch it with format: html")
    try:
        reply = msgspec.json.decode(data, type=_Reply)
    except (msgspec.DecodeError, UnicodeError):
        raise ToolFailed("the page could not be made into text; fetch it with format: html") from None
    if reply.failed:
        raise ToolFailed(reply.failed)
    return reply


def _parsed(text: str) -> httpx2.URL:
    import httpx2

    if len(text) > URL_CHARS_MAX:  # before it is parsed: a redirect's may be of any length
        raise ToolFailed(f"the address is longer than {URL_CHARS_MAX} characters")
    try:
        return httpx2.URL(text)
    except httpx2.InvalidURL as error:
        raise ToolFailed(f"{one_line(text, TITLE_CHARS_MAX)!r} is no address: {error}") from None


def _checked(text: str) -> httpx2.URL:
    if len(text) > URL_CHARS_MAX:
        raise ToolFailed(f"the address is longer than {URL_CHARS_MAX} characters")
    url = _parsed(text.strip())
    if url.scheme not in ("http", "https"):
        raise ToolFailed("only http and https addresses can be fetched")
    if url.userinfo:
        raise ToolFailed("an address with a user name or password in it is not fetched")
    host = url.raw_host.decode("ascii").lower().rstrip(".")
    if not host or "%" in host:
        raise ToolFailed("the address has no host")
    if url.port is not None and not PORT_MIN <= url.port <= 65_535 and url.port not in WEB_PORTS:
        raise ToolFailed(f"port {url.port} is no port of a web server")
    return url.copy_with(host=host, fragment=None)
