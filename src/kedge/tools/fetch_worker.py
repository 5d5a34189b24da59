"""The worker process of `fetch`: returns one web page as text, or the addresses of one host.

All data from a foreign server is parsed here: DNS, TLS, HTTP, gzip, charsets, HTML. Hostile data can make each of these
take minutes or gigabytes. A thread or the event loop cannot be interrupted then; a process limits itself, and `fetch`
kills it.

It runs as `python -I fetch_worker.py`, so that it imports nothing from the workspace or the environment. It must import
the standard library only, and httpx2, bs4 and markdownify where they are needed. Standard input holds the request as
JSON; the reply goes to standard output as JSON.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import zlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import httpx2

#: Limit of the address space. A normal megabyte of HTML takes some 100 MB, the modules another 100 MB. Bytes.
FETCH_MEMORY_BYTES_MAX = 512 * 1024 * 1024
#: Limit of processor time. A normal megabyte of HTML takes some 3 s on a slow machine. Seconds.
FETCH_CPU_S_MAX = 15
#: Limit of a body, as sent and decompressed. A body may decompress to a thousand times its size. Bytes.
BODY_BYTES_MAX = 5_000_000
#: Limit of HTML that is converted: the text of more would be cut anyway. Characters.
HTML_CHARS_MAX = 1_000_000
#: Limit of a header or an error in a message. Characters.
DETAIL_CHARS_MAX = 200
#: Limit of the target of a redirect. Larger than the limit of fetch, so that fetch can report it. Characters.
LOCATION_CHARS_MAX = 2500
#: Limit of the addresses of one host. All must be checked, so a host with more is refused. Items.
RESOLVED_MAX = 100

_TEXT_TYPES = ("json", "xml", "javascript", "yaml", "toml", "x-sh", "x-python", "graphql", "csv", "markdown")


class FetchFailed(Exception):
    """A failure, in one line for the model."""


def main() -> None:
    request = json.loads(sys.stdin.buffer.read())
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 2)  # both streams are merged, and warnings are not part of the reply
    _limit_self()
    sys.path.append(request["packages"])
    try:
        reply = _resolved(request) if request["what"] == "resolve" else _page(request)
    except FetchFailed as failed:
        reply = {"failed": str(failed)}
    except RecursionError:
        reply = {"failed": "the page is nested too deeply to be converted; fetch it with format: html"}
    except MemoryError:
        reply = {"failed": "converting the page takes too much memory; fetch it with format: html"}
    data = json.dumps(reply, ensure_ascii=False).encode("utf-8", "replace")
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
    os._exit(0)  # nothing to clean up, and freeing a large tree of tags takes seconds


def _limit_self() -> None:
    for kind, limit in ((resource.RLIMIT_AS, FETCH_MEMORY_BYTES_MAX), (resource.RLIMIT_CPU, FETCH_CPU_S_MAX)):
        _, hard = resource.getrlimit(kind)
        limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (limit, limit))


# --- addresses ------------------------------------------------------------------------------------------------------


def _resolved(request: dict[str, Any]) -> dict[str, Any]:
    import socket

    try:
        # As bytes: Python would encode text again, by other rules than those of the checked URL.
        entries = socket.getaddrinfo(request["host"].encode("ascii"), request["port"], type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        entries = []
    addresses = list(dict.fromkeys(str(address[0]) for *_, address in entries))
    if len(addresses) > RESOLVED_MAX:
        raise FetchFailed(f"{request['host']} has more than {RESOLVED_MAX} addresses")
    return {"addresses": addresses}


# --- the page -------------------------------------------------------------------------------------------------------


def _page(request: dict[str, Any]) -> dict[str, Any]:
    import ssl

    import httpx2

    verify: ssl.SSLContext | bool = False  # plain http has nothing to verify
    if request["pinned"][0].startswith("https:"):
        ca_file = request["ca_file"]
        verify = ssl.create_default_context(cafile=ca_file) if ca_file else httpx2.create_ssl_context(trust_env=False)
    headers = {
        "Host": request["authority"],
        "Accept": "text/markdown, text/html, application/json;q=0.9, text/*;q=0.8, */*;q=0.1",
        "Accept-Encoding": "gzip",
        "User-Agent": "kedge",
    }
    host = request["host"]
    # No proxy from the environment: it would resolve the name again, and differently.
    with httpx2.Client(trust_env=False, verify=verify, timeout=request["timeout_s"]) as client:
        for number, pinned in enumerate(request["pinned"], 1):
            try:
                with client.stream("GET", pinned, headers=headers, extensions={"sni_hostname": host}) as response:
                    return _read(response, request["format"], request["chars_max"])
            except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
                if number == len(request["pinned"]):
                    raise FetchFailed(f"no connection to {host}: {_detail(str(error))}") from None
            except httpx2.HTTPError as error:
                raise FetchFailed(f"request to {host} failed: {_detail(str(error) or type(error).__name__)}") from None
    raise FetchFailed(f"host {host} not found")


def _read(response: httpx2.Response, form: str, chars_max: int) -> dict[str, Any]:
    if response.is_redirect and (location := response.headers.get("location")):
        return {"location": location[:LOCATION_CHARS_MAX]}
    if not response.is_success:
        raise FetchFailed(f"the server returned HTTP {response.status_code} {_detail(response.reason_phrase)}".rstrip())
    content_type, _, parameters = response.headers.get("content-type", "text/plain").lower().partition(";")
    content_type = _detail(content_type.strip())
    if not content_type.startswith("text/") and not any(word in content_type for word in _TEXT_TYPES):
        raise FetchFailed(f"the page is {content_type}, not text; fetch returns only text")
    body, is_cut = _body(response)
    text = _decoded(body, parameters.rpartition("charset=")[2].strip(" \"';"))
    if form != "html" and "html" in content_type:
        text = _from_html(text[:HTML_CHARS_MAX], form)
    return {
        "content_type": content_type,
        "text": text[:chars_max],
        "is_cut": is_cut or len(text) > chars_max,
    }


def _detail(text: str) -> str:
    """Return the beginning as one line: a server may send a hundred kilobytes here."""
    line = text[:DETAIL_CHARS_MAX]
    return "".join(character if character.isprintable() else "?" for character in line)


def _body(response: httpx2.Response) -> tuple[bytes, bool]:
    """Return the decompressed body, and whether it was cut."""
    coding = response.headers.get("content-encoding", "identity").strip().lower()
    if coding not in ("identity", "", "gzip", "x-gzip", "deflate"):
        raise FetchFailed(f"the server sent the unsupported encoding {_detail(coding)}")
    unpacker = zlib.decompressobj(wbits=47) if coding not in ("identity", "") else None  # 47: gzip or zlib
    body, sent_bytes = bytearray(), 0
    for piece in response.iter_raw():
        room = BODY_BYTES_MAX - len(body)
        sent_bytes += len(piece)
        try:
            body += piece[: room + 1] if unpacker is None else unpacker.decompress(piece, room + 1)
        except zlib.error:
            raise FetchFailed("the server sent a damaged body that cannot be decompressed") from None
        if len(body) > BODY_BYTES_MAX or sent_bytes > BODY_BYTES_MAX:
            return bytes(body[:BODY_BYTES_MAX]), True
        if unpacker is not None and unpacker.eof:
            break  # bytes after the compressed text are not part of it
    return bytes(body), False


def _decoded(body: bytes, charset: str) -> str:
    import re

    # Usual charsets of pages. Some others that Python supports (punycode) take quadratic time.
    known = re.fullmatch(
        r"utf-?8|utf-?16(?:le|be)?|(?:us-)?ascii|latin-?1|iso-?8859-?\d{1,2}|(?:windows-|cp)12\d\d|koi8-[ru]|macintosh|"
        r"shift[_-]?jis|windows-31j|euc-(?:jp|kr)|iso-2022-jp|gb2312|gbk|gb18030|big5(?:-?hkscs)?",
        charset,
    )
    try:
        return body.decode(charset if known else "utf-8", "replace")
    except (LookupError, UnicodeError):  # iso-8859-99
        return body.decode("utf-8", "replace")


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
    """Return each line with the next one: of several empty lines in a row, the last is kept."""
    return list(zip(lines, [*lines[1:], ""], strict=False))  # there may be no line


if __name__ == "__main__":
    main()
