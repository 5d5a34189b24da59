"""fetch: one page of the Internet, as text. Never one of this machine or its network.

The host is resolved here, every address it has is checked, and the connection goes to an address that was checked: a
name that resolves differently a moment later has no effect. Redirects on the same host are followed, each checked
anew; one to another host is told to the model, since a rule or a person has spoken of this host only.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import socket
import ssl
import zlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from kedge.core.approvals import Intent
from kedge.core.shown import one_line
from kedge.tools.addresses import Address, is_public, parse_address
from kedge.tools.base import OUTPUT_CHARS_MAX, Output, Place, Prepared, ToolFailed

if TYPE_CHECKING:
    import httpx2

Resolver = Callable[[str, int], Awaitable[list[str]]]

#: For all of one call: resolving, redirects, the body, and making text of it.
FETCH_S_MAX = 30.0
#: Of a body, as sent and unpacked: what comes after is not read. A small body may unpack to a thousand times its size.
BODY_BYTES_MAX = 5_000_000
#: Of HTML that is made into text: more takes seconds of a core, and is cut afterwards anyway.
HTML_CHARS_MAX = 1_000_000
REDIRECTS_MAX = 5
#: Of addresses that are tried for one host.
ADDRESSES_MAX = 4
#: Of an address: browsers and servers stop at about this.
URL_CHARS_MAX = 2000
#: Ports below belong to other protocols, but for the two of the web.
PORT_MIN = 1024
WEB_PORTS = frozenset({80, 443})
TITLE_CHARS_MAX = 200

#: Charsets that pages are written in. Python reads others as well, of which some (punycode) take a time that grows with
#: the square of the length: a page of a few kilobytes would keep a core busy for minutes.
_CHARSETS = re.compile(
    r"utf-?8|utf-?16(?:le|be)?|(?:us-)?ascii|latin-?1|iso-?8859-?\d{1,2}|(?:windows-|cp)12\d\d|koi8-[ru]|macintosh|"
    r"shift[_-]?jis|windows-31j|euc-(?:jp|kr)|iso-2022-jp|gb2312|gbk|gb18030|big5(?:-?hkscs)?"
)
_TEXT_TYPES = ("json", "xml", "javascript", "yaml", "toml", "x-sh", "x-python", "graphql", "csv", "markdown")


class FetchInput(msgspec.Struct):
    url: Annotated[str, Meta(description="Full address, http or https.")]
    format: Annotated[
        Literal["markdown", "text", "html"],
        Meta(description="How an HTML page is given. Default: markdown."),
    ] = "markdown"


class _Reply(Struct, frozen=True):
    #: Where a redirect points to; empty: this is the answer.
    location: str
    content_type: str
    text: str
    is_cut: bool


async def resolve(host: str, port: int) -> list[str]:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


class FetchTool:
    name = "fetch"
    input: type[msgspec.Struct] = FetchInput
    kind: Literal["look", "change"] = "look"

    def __init__(
        self,
        allowed: Callable[[Address], bool] = is_public,
        resolver: Resolver = resolve,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._allowed = allowed
        self._resolver = resolver
        self._tls = tls

    async def prepare(self, given: FetchInput, place: Place) -> Prepared:
        url = _checked(given.url)
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

        async def run() -> Output:
            try:
                async with asyncio.timeout(FETCH_S_MAX):
                    return await self._fetch(url, given.format)
            except TimeoutError:
                raise ToolFailed(f"{host} took longer than {FETCH_S_MAX:g} s") from None

        return Prepared(intent, run, f"fetch {title}")

    async def _fetch(self, url: httpx2.URL, form: str) -> Output:
        for _ in range(REDIRECTS_MAX + 1):
            reply = await self._ask(url)
            if not reply.location:
                text = await _as_text(reply, form)
                is_cut = reply.is_cut or len(text) > OUTPUT_CHARS_MAX
                note = "\n... the rest is left out ..." if is_cut else ""
                metadata = {"url": str(url), "content_type": reply.content_type, "truncated": is_cut}
                return Output(text[:OUTPUT_CHARS_MAX] + note, metadata)
            target = _checked(str(url.join(_parsed(reply.location))))
            if url.scheme == "https" and target.scheme == "http":
                raise ToolFailed(f"{url.host} redirects from https to plain http: that is not followed")
            if target.host != url.host:  # rules are asked about hosts, and "www." is another one
                return Output(f"It redirects to another host: {target}\nFetch that address if it is what you want.")
            url = target
        raise ToolFailed(f"{url.host} redirects more than {REDIRECTS_MAX} times")

    async def _ask(self, url: httpx2.URL) -> _Reply:
        """One request, to an address that was checked."""
        import httpx2

        port = url.port or (443 if url.scheme == "https" else 80)
        addresses = await self._addresses(url.raw_host.decode("ascii"), port)
        verify: ssl.SSLContext | bool = False  # plain http has nothing to verify
        if url.scheme == "https":
            if self._tls is None:  # it reads all certificates of the system
                self._tls = await asyncio.to_thread(httpx2.create_ssl_context, trust_env=False)
            verify = self._tls
        headers = {
            "Host": url.netloc.decode("ascii"),
            "Accept": "text/markdown, text/html, application/json;q=0.9, text/*;q=0.8, */*;q=0.1",
            "Accept-Encoding": "gzip",
            "User-Agent": "kedge",
        }
        # A client of its own for each request: connections are kept by address, and two names may share one.
        # No proxy of the environment: it would resolve the name once more, and differently.
        async with httpx2.AsyncClient(trust_env=False, verify=verify, timeout=FETCH_S_MAX) as client:
            for place, address in enumerate(addresses, 1):
                pinned = url.copy_with(host=str(address))
                extensions = {"sni_hostname": url.raw_host.decode("ascii")}
                try:
                    async with client.stream("GET", pinned, headers=headers, extensions=extensions) as response:
                        return await _read(response)
                except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
                    if place == len(addresses):
                        raise ToolFailed(f"no connection to {url.host}: {error}") from None
                except httpx2.HTTPError as error:
                    raise ToolFailed(f"{url.host} broke off: {str(error) or type(error).__name__}") from None
        raise AssertionError("there is at least one address")

    async def _addresses(self, host: str, port: int) -> list[Address]:
        try:
            found = [parse_address(text) for text in await self._resolver(host.strip("[]"), port)]
        except (OSError, UnicodeError, ValueError):
            found = []
        if not found:
            raise ToolFailed(f"there is no host {host}")
        for address in found:  # one that is not public is enough: an honest public name has none of those
            if not self._allowed(address):
                raise ToolFailed(f"{host} is {address}, which is not on the Internet: fetch only reaches public hosts")
        return list(dict.fromkeys(found))[:ADDRESSES_MAX]


def _parsed(text: str) -> httpx2.URL:
    import httpx2

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


async def _read(response: httpx2.Response) -> _Reply:
    if response.is_redirect and (location := response.headers.get("location")):
        return _Reply(location, "", "", False)
    if not response.is_success:
        raise ToolFailed(f"the server answered {response.status_code} {response.reason_phrase}".rstrip())
    content_type, _, parameters = response.headers.get("content-type", "text/plain").lower().partition(";")
    content_type = content_type.strip()
    if not content_type.startswith("text/") and not any(word in content_type for word in _TEXT_TYPES):
        raise ToolFailed(f"it is {one_line(content_type, 100)}, not text; fetch gives text only")
    body, is_cut = await _body(response)
    charset = parameters.rpartition("charset=")[2].strip(" \"';")
    return _Reply("", content_type, await asyncio.to_thread(_decoded, body, charset), is_cut)


def _decoded(body: bytes, charset: str) -> str:
    try:
        return body.decode(charset if _CHARSETS.fullmatch(charset) else "utf-8", "replace")
    except (LookupError, UnicodeError):  # iso-8859-99
        return body.decode("utf-8", "replace")


async def _body(response: httpx2.Response) -> tuple[bytes, bool]:
    """What was sent, unpacked; and whether there was more than we take."""
    coding = response.headers.get("content-encoding", "identity").strip().lower()
    if coding not in ("identity", "", "gzip", "x-gzip", "deflate"):
        raise ToolFailed(f"the server packs its answer as {one_line(coding, 40)}, which was not asked for")
    unpacker = zlib.decompressobj(wbits=47) if coding not in ("identity", "") else None  # 47: gzip or zlib, by itself
    body, sent_bytes = bytearray(), 0
    async for piece in response.aiter_raw():
        room = BODY_BYTES_MAX - len(body)
        sent_bytes += len(piece)
        try:
            body += piece[: room + 1] if unpacker is None else unpacker.decompress(piece, room + 1)
        except zlib.error:
            raise ToolFailed("the server's answer is damaged: it does not unpack") from None
        if len(body) > BODY_BYTES_MAX or sent_bytes > BODY_BYTES_MAX:
            return bytes(body[:BODY_BYTES_MAX]), True
        if unpacker is not None and unpacker.eof:
            break  # what is sent behind the packed text is no part of it
    return bytes(body), False


async def _as_text(reply: _Reply, form: str) -> str:
    if form == "html" or "html" not in reply.content_type:
        return reply.text
    try:
        return await asyncio.to_thread(_from_html, reply.text[:HTML_CHARS_MAX], form)
    except RecursionError:
        raise ToolFailed("the page is nested too deeply to make text of it; fetch it with format: html") from None


def _from_html(html: str, form: str) -> str:
    import bs4
    import markdownify

    page = bs4.BeautifulSoup(html, "html.parser")
    for hidden in page(["script", "style", "noscript", "template", "svg"]):
        hidden.decompose()
    if form == "text":
        lines = (line.strip() for line in page.get_text("\n").splitlines())
        return "\n".join(line for line in lines if line)
    converter = markdownify.MarkdownConverter(heading_style="ATX")
    lines = (line.rstrip() for line in str(converter.convert_soup(page)).strip().splitlines())
    return "\n".join(line for line, after in _pairs(list(lines)) if line or after)


def _pairs(lines: list[str]) -> list[tuple[str, str]]:
    """Each line with the next one: of several empty lines in a row, the last is kept."""
    return list(zip(lines, [*lines[1:], ""], strict=True))
