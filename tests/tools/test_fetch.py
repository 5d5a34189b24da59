"""fetch, with pages of a real local server and addresses that it must refuse."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from kedge.core.approvals import parse_rules, permit
from kedge.tools.addresses import is_public, parse_address
from kedge.tools.base import OUTPUT_CHARS_MAX, ToolContext, ToolFailed, ToolOutput
from kedge.tools.fetch import REDIRECTS_MAX, FetchTool
from kedge.tools.fetch_worker import BODY_BYTES_MAX
from tests.certificates import with_certificate
from tests.tools.contexts import call, make_context, prepare

HTML = (
    "<html><head><title>t</title><style>.x{}</style><script>evil()</script></head>"
    "<body><h1>Hello</h1><p>A <b>bold</b> <a href='/x'>link</a>.</p><ul><li>one</li></ul></body></html>"
)


@dataclass
class Site:
    """A real HTTP server: what it answers to a path, and what it was asked."""

    port: int = 0
    answers: dict[str, bytes] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def put(self, path: str, body: str | bytes, *headers: str, status: str = "200 OK") -> None:
        raw = body.encode() if isinstance(body, str) else body
        lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(raw)}", "Connection: close", *headers]
        self.answers[path] = "\r\n".join([*lines, "", ""]).encode() + raw

    def redirect(self, path: str, target: str) -> None:
        self.put(path, "", f"Location: {target}", status="302 Found")

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            self.asked.append(head)
            writer.write(self.answers.get(head.split(" ")[1], b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"))
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    site = Site()
    server = await asyncio.start_server(site.serve, "127.0.0.1", 0)
    site.port = server.sockets[0].getsockname()[1]
    async with server:
        yield site


@pytest.fixture
def context(tmp_path: Path) -> ToolContext:
    return make_context(tmp_path)


def names(*addresses: str) -> Callable[[str, int], Any]:
    """A resolver that gives these, one after the other, at each question."""
    left = list(addresses)

    async def resolver(host: str, port: int) -> list[str]:
        return (left.pop(0) if len(left) > 1 else left[0]).split()

    return resolver


def here(**given: Any) -> FetchTool:
    """A tool that may reach this machine, under any name."""
    return FetchTool(lambda address: address.is_loopback, names("127.0.0.1"), **given)


async def fetched(site: Site, context: ToolContext, path: str = "/", **given: Any) -> ToolOutput:
    return await call(here(), context, url=f"http://site.example:{site.port}{path}", **given)


async def test_page_as_markdown(site: Site, context: ToolContext) -> None:
    site.put("/", HTML, "Content-Type: text/html; charset=utf-8")
    output = await fetched(site, context)
    assert "# Hello" in output.content
    assert "A **bold** [link](/x)." in output.content
    assert "evil" not in output.content
    assert ".x{}" not in output.content
    assert output.metadata == {
        "url": f"http://site.example:{site.port}/",
        "content_type": "text/html",
        "truncated": False,
    }


async def test_page_as_text_or_html(site: Site, context: ToolContext) -> None:
    site.put("/", HTML, "Content-Type: text/html")
    text = (await fetched(site, context, format="text")).content
    assert "Hello\nA\nbold\nlink" in text
    assert "evil" not in text
    assert (await fetched(site, context, format="html")).content == HTML


async def test_json_and_other_charsets_are_unchanged(site: Site, context: ToolContext) -> None:
    site.put("/a", '{"a": 1}', "Content-Type: application/json")
    site.put("/b", "grüße".encode("latin-1"), 'Content-Type: text/plain; charset="iso-8859-1"')
    site.put("/c", "grüße", "Content-Type: text/plain; charset=nonsense")
    site.put("/d", "plain")
    assert (await fetched(site, context, "/a")).content == '{"a": 1}'
    assert (await fetched(site, context, "/b")).content == "grüße"
    assert (await fetched(site, context, "/c")).content == "grüße"
    assert (await fetched(site, context, "/d")).content == "plain"


@pytest.mark.found(
    "attack: a charset that takes for ever",
    "a page of a few hundred bytes that unpacks to a megabyte of punycode kept the server busy for minutes, since any "
    "charset that Python knows was read, on the event loop; those of pages are read, in a thread",
)
@pytest.mark.parametrize("charset", ["punycode", "idna", "unicode_escape", "raw_unicode_escape", "utf-7", "hex", "zip"])
async def test_unusual_charset_is_ignored(site: Site, context: ToolContext, charset: str) -> None:
    site.put("/", "plain-text \\u0041 +AEE-", f"Content-Type: text/plain; charset={charset}")
    assert (await fetched(site, context)).content == "plain-text \\u0041 +AEE-"


@pytest.mark.parametrize("charset", ["utf-16le", "windows-1252", "shift_jis", "euc-jp", "gb18030", "big5", "koi8-r"])
async def test_usual_charsets_are_decoded(site: Site, context: ToolContext, charset: str) -> None:
    text = "\N{CYRILLIC SMALL LETTER ZHE}" if charset == "koi8-r" else "ab"
    site.put("/", text.encode(charset), f"Content-Type: text/plain; charset={charset}")
    assert (await fetched(site, context)).content == text


async def test_request_has_the_host_name(site: Site, context: ToolContext) -> None:
    site.put("/p?q=1", "ok")
    await fetched(site, context, "/p?q=1#part")
    assert site.asked[0].startswith("GET /p?q=1 HTTP/1.1\r\n")
    assert f"host: site.example:{site.port}\r\n" in site.asked[0].lower()


async def test_binary_page_is_refused_with_its_type(site: Site, context: ToolContext) -> None:
    site.put("/", b"\x89PNG", "Content-Type: image/png")
    with pytest.raises(ToolFailed, match="image/png"):
        await fetched(site, context)


async def test_server_errors_are_reported(site: Site, context: ToolContext) -> None:
    with pytest.raises(ToolFailed, match="404 Not Found"):
        await fetched(site, context, "/missing")
    site.answers["/broken"] = b"nonsense\r\n\r\n"
    with pytest.raises(ToolFailed, match="request to site.example failed"):
        await fetched(site, context, "/broken")


async def test_a_long_text_is_cut(site: Site, context: ToolContext) -> None:
    site.put("/", "x" * (OUTPUT_CHARS_MAX + 1), "Content-Type: text/plain")
    output = await fetched(site, context)
    assert output.content == "x" * OUTPUT_CHARS_MAX + "\n... the rest is left out ..."
    assert output.metadata["truncated"]


async def test_endless_body_is_cut(site: Site, context: ToolContext) -> None:
    site.put("/", b"x" * (BODY_BYTES_MAX + 1000), "Content-Type: text/plain")
    assert (await fetched(site, context)).metadata["truncated"]


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
async def test_compressed_bodies_are_decompressed(site: Site, context: ToolContext, coding: str) -> None:
    packed = gzip.compress(b"hello") if coding == "gzip" else zlib.compress(b"hello")
    site.put("/", packed, "Content-Type: text/plain", f"Content-Encoding: {coding}")
    assert (await fetched(site, context)).content == "hello"


async def test_decompression_bomb_is_cut(site: Site, context: ToolContext) -> None:
    site.put("/", _bomb(), "Content-Type: text/plain", "Content-Encoding: gzip")
    tracemalloc.start()
    try:
        output = await fetched(site, context)
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert output.metadata["truncated"]
    assert most_bytes < 8 * BODY_BYTES_MAX  # a few copies of what is kept; one piece alone would unpack to more


@pytest.mark.found(
    "attack: what follows a packed page",
    "bytes after the end of a compressed page were read and kept without a limit; reading ends where the page "
    "does, and what is sent is counted as well as what it unpacks to",
)
async def test_bytes_after_a_compressed_body_are_not_read(context: ToolContext) -> None:
    poured_bytes = asyncio.get_running_loop().create_future()

    async def pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Encoding: gzip\r\nConnection: close\r\n\r\n"
        writer.write(head + gzip.compress(b"hello"))
        count = 0
        with contextlib.suppress(ConnectionError):
            while count < 20 * BODY_BYTES_MAX:
                writer.write(bytes(100_000))
                await writer.drain()
                count += 100_000
        writer.close()
        poured_bytes.set_result(count)

    server = await asyncio.start_server(pour, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        assert (await call(here(), context, url=f"http://site.example:{port}/")).content == "hello"
        assert await poured_bytes < 10 * BODY_BYTES_MAX  # what systems keep between two ends is less


async def test_compressed_size_of_a_body_is_bounded(site: Site, context: ToolContext) -> None:
    """Empty blocks: they unpack to nothing, and there is no end to them."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    packed = packer.compress(b"hello") + packer.flush(zlib.Z_FULL_FLUSH) + b"\0\0\0\xff\xff" * (BODY_BYTES_MAX // 4)
    site.put("/", packed, "Content-Type: text/plain", "Content-Encoding: gzip")
    output = await fetched(site, context)
    assert output.metadata["truncated"]
    assert output.content.startswith("hello")


def _bomb() -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    zeros = bytes(1_000_000)
    return b"".join(packer.compress(zeros) for _ in range(100)) + packer.flush()


async def test_damaged_or_unsupported_compression_is_refused(site: Site, context: ToolContext) -> None:
    site.put("/a", b"no gzip", "Content-Type: text/plain", "Content-Encoding: gzip")
    site.put("/b", b"x", "Content-Type: text/plain", "Content-Encoding: br")
    with pytest.raises(ToolFailed, match="cannot be decompressed"):
        await fetched(site, context, "/a")
    with pytest.raises(ToolFailed, match="unsupported encoding br"):
        await fetched(site, context, "/b")


async def test_deeply_nested_page_is_refused(site: Site, context: ToolContext) -> None:
    site.put("/", "<div>" * 20_000, "Content-Type: text/html")
    with pytest.raises(ToolFailed, match="nested too deeply"):
        await fetched(site, context)


# --- redirects ---


async def test_redirects_on_the_same_host_are_followed(site: Site, context: ToolContext) -> None:
    site.redirect("/", "/next")
    site.redirect("/next", f"http://site.example:{site.port}/last")
    site.put("/last", "here")
    assert (await fetched(site, context)).content == "here"


async def test_redirect_to_another_host_is_reported(site: Site, context: ToolContext) -> None:
    for number, host in enumerate(("other.example", "www.site.example"), 1):  # a rule may deny either
        site.redirect("/", f"http://{host}:{site.port}/x")
        output = await fetched(site, context)
        assert f"http://{host}:{site.port}/x" in output.content
        assert len(site.asked) == number


async def test_redirects_are_limited(site: Site, context: ToolContext) -> None:
    site.redirect("/", "/")
    with pytest.raises(ToolFailed, match="more than 5 times"):
        await fetched(site, context)
    assert len(site.asked) == REDIRECTS_MAX + 1


@pytest.mark.parametrize(
    "target",
    ["file:///etc/passwd", "ftp://site.example/", "gopher://x/", "http://u:p@site.example/", "http://site.example:25/"],
)
async def test_redirect_to_an_invalid_url_is_refused(site: Site, context: ToolContext, target: str) -> None:
    site.redirect("/", target)
    with pytest.raises(ToolFailed):
        await fetched(site, context)
    assert len(site.asked) == 1


async def test_each_redirect_is_resolved_and_checked(site: Site, context: ToolContext) -> None:
    site.redirect("/", "/secret")
    site.put("/secret", "secret")
    # The name is at an allowed address first, and somewhere else at the redirect.
    tool = FetchTool(lambda address: str(address) == "127.0.0.1", names("127.0.0.1", "127.0.0.2"))
    with pytest.raises(ToolFailed, match="127.0.0.2, which is not public"):
        await call(tool, context, url=f"http://site.example:{site.port}/")
    assert len(site.asked) == 1


# --- forbidden addresses ---


NOT_PUBLIC = [
    "127.0.0.1", "127.8.8.8", "0.0.0.0", "0.1.2.3", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1",
    "169.254.169.254", "100.64.0.1", "100.100.100.200", "192.0.0.192", "192.0.2.1", "198.18.0.1", "198.51.100.1",
    "203.0.113.1", "224.0.0.1", "239.255.255.250", "240.0.0.1", "255.255.255.255", "168.63.129.16", "192.88.99.1",
    "::", "::1", "fe80::1", "fe80::1%eth0", "fc00::1", "fd00:ec2::254", "ff02::1", "fec0::1", "100::1",
    "2001:db8::1",
    "::ffff:127.0.0.1", "::ffff:8.8.8.8", "::127.0.0.1", "::ffff:0:127.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a00:1",
    "64:ff9b:1::808:808", "2002:7f00:1::", "2002:808:808::", "2001:0:7f00:1::1", "3fff::1", "5f00::1",
]  # fmt: skip


@pytest.mark.parametrize("address", NOT_PUBLIC)
async def test_address_that_is_not_public_is_refused(context: ToolContext, address: str) -> None:
    assert not is_public(parse_address(address))
    with pytest.raises(ToolFailed, match="which is not public"):
        await call(FetchTool(resolver=names(address)), context, url="http://site.example/")


@pytest.mark.parametrize("address", ["8.8.8.8", "1.1.1.1", "172.32.0.1", "2606:4700::1111", "64:ff9b::808:808"])
def test_internet_address_is_public(address: str) -> None:
    assert is_public(ip_address(address))


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1", "localhost", "LOCALHOST", "localhost.", "127.1", "127.0.1", "2130706433", "0x7f.1",
        "0x7f000001",
        "0177.0.0.1", "0", "0.0.0.0", "[::1]", "[::]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]",
        "[64:ff9b::127.0.0.1]",
        "169.254.169.254", "10.0.0.1", "127.0.0.1.", "[fe80::1]", "①②⑦.0.0.1", "127。0。0。1",
    ],
)  # fmt: skip
async def test_no_spelling_of_localhost_passes_the_resolver(site: Site, context: ToolContext, host: str) -> None:
    with pytest.raises(ToolFailed):
        await call(FetchTool(), context, url=f"http://{host}:{site.port}/")
    assert site.asked == []


async def test_one_address_that_is_not_public_refuses_the_host(site: Site, context: ToolContext) -> None:
    with pytest.raises(ToolFailed, match="which is not public"):
        await call(FetchTool(resolver=names("8.8.8.8 127.0.0.1")), context, url="http://site.example/")


async def test_dns_rebinding_has_no_effect(site: Site, context: ToolContext) -> None:
    site.put("/", "checked")
    asked = []

    async def resolver(host: str, port: int) -> list[str]:
        asked.append(host)
        return ["127.0.0.1" if len(asked) == 1 else "127.0.0.9"]

    tool = FetchTool(lambda address: str(address) == "127.0.0.1", resolver)
    output = await call(tool, context, url=f"http://site.example:{site.port}/")
    assert output.content == "checked"
    assert asked == ["site.example"]  # the connection used the checked address; the name was not resolved again


async def test_environment_proxies_are_not_used(
    site: Site, context: ToolContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    site.put("/", "direct")
    assert (await fetched(site, context)).content == "direct"


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd", "ftp://a.example/", "gopher://a.example/", "data:text/plain,x", "unix:///x",
        "a.example",
        "//a.example/", "", "http://", "http:///x", "javascript:x", "http://user@a.example/", "http://u:p@a.example/",
        "http://a.example:22/", "http://a.example:25/", "http://a.example:99999/", "http://a\r\nb.example/",
        "http://[::1%25eth0]/", "http://a.example@127.0.0.1/", "http://" + "a" * 3000, "http://a b/",
    ],
)  # fmt: skip
async def test_invalid_url_is_refused(context: ToolContext, url: str) -> None:
    with pytest.raises(ToolFailed):
        await prepare(FetchTool(), context, url=url)


async def test_host_without_addresses_is_reported(context: ToolContext) -> None:
    with pytest.raises(ToolFailed, match="host nowhere.invalid not found"):
        await call(FetchTool(), context, url="http://nowhere.invalid/")
    with pytest.raises(ToolFailed, match="host site.example not found"):
        await call(FetchTool(resolver=names("nonsense")), context, url="http://site.example/")


async def test_next_address_is_tried(site: Site, context: ToolContext) -> None:
    site.put("/", "second")
    tool = FetchTool(lambda address: address.is_loopback, names("::1 127.0.0.1"))
    assert (await call(tool, context, url=f"http://site.example:{site.port}/")).content == "second"
    with pytest.raises(ToolFailed, match="no connection to site.example"):
        await call(here(), context, url="http://site.example:1025/")


async def test_silent_server_times_out(context: ToolContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kedge.tools.fetch.FETCH_S_MAX", 0.1)
    over = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await over.wait()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    async with server:
        with pytest.raises(ToolFailed, match="site.example"):
            await call(here(), context, url=f"http://site.example:{server.sockets[0].getsockname()[1]}/")
        over.set()


# --- TLS and approvals ---


async def test_certificate_must_match_the_host_name(context: ToolContext, tmp_path: Path) -> None:
    site = Site()
    tls, certificate = with_certificate("site.example", tmp_path)
    server = await asyncio.start_server(site.serve, "127.0.0.1", 0, ssl=tls)
    port = server.sockets[0].getsockname()[1]
    site.put("/", "safe")
    site.redirect("/down", f"http://site.example:{port}/")
    tool = here(ca_file=certificate)
    async with server:
        assert (await call(tool, context, url=f"https://site.example:{port}/")).content == "safe"
        with pytest.raises(ToolFailed, match="from https to plain http"):
            await call(tool, context, url=f"https://site.example:{port}/down")
        with pytest.raises(ToolFailed, match="(?i)certificate"):
            await call(tool, context, url=f"https://other.example:{port}/")
        with pytest.raises(ToolFailed, match="(?i)certificate"):
            await call(here(), context, url=f"https://site.example:{port}/")


async def test_rules_name_the_host(context: ToolContext) -> None:
    prepared = await prepare(FetchTool(), context, url="https://Docs.Example.ORG./a?b=c#d")
    intent = prepared.intent
    assert (intent.subject, intent.grant, intent.action) == ("docs.example.org", "fetch(docs.example.org)", "fetch")
    assert json.loads(intent.params) == {"url": "https://docs.example.org/a?b=c"}
    assert intent.description == "Fetch https://docs.example.org/a?b=c"
    assert permit(intent, parse_rules((), ()), ()).decision == "ask"
    assert permit(intent, parse_rules(("fetch(docs.example.org)",), ()), ()).decision == "allow"
    assert permit(intent, parse_rules(("fetch(*.example.org)",), ()), ()).decision == "allow"
    assert permit(intent, parse_rules(("fetch(example.org)",), ()), ()).decision == "ask"
    other = await prepare(FetchTool(), context, url="https://docs.example.org/a?b=d")
    assert other.intent.binding != intent.binding
