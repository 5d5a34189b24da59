"""Random requests: well-framed ones with odd parts, and damaged bytes of requests.

A `framed` request has an unambiguous start and end, so exactly one reply is due. A `wild` request is damaged anywhere,
and must be refused.
"""

from __future__ import annotations

import random

METHODS = (
    "GET",
    "GET",
    "GET",
    "POST",
    "POST",
    "PUT",
    "PATCH",
    "DELETE",
    "HEAD",
    "OPTIONS",
    "TRACE",
    "PROPFIND",
    "LINK",
)
PATHS = (
    "/v1/health", "/v1/version", "/v1/workspaces", "/v1/runs", "/v1/metrics", "/v1/openapi.json", "/v1/docs", "/",
    "/v1/workspaces/w/events", "/v1/workspaces/w/sessions", "/v1/workspaces/w/agent", "/v1/workspaces/w/sessions/s",
    "/v1/workspaces/w/agent/runs/r/wait", "/v1/workspaces/w/permissions/grant", "/v1/clients/c", "/v1/control", "/v1",
    "//v1/version", "/v1//version", "/v1/version/", "/v1/health/../version", "/V1/VERSION", "/v1/health%2f..%2fruns",
    "/v1/%76ersion", "/v1/health%00", "/v1/health;x", "/%2e%2e/v1/version", "/v1/workspaces/%ff", "/v1/{}/{}",
)  # fmt: skip
QUERIES = (
    "",
    "",
    "",
    "?",
    "?token=TOKEN",
    "?access_token=TOKEN&x=1",
    "?client_id=%00",
    "?limit=9" + "9" * 50,
    "?a=b&" * 60,
)
HOSTS = (
    b"127.0.0.1", b"[::1]:80", b"LOCALHOST:1", b"kedge",
    b"evil.example", b"localhost.evil.example", b"localhost:80:evil.example", b"[::1].evil.example", b"", b" ",
    b"127.0.0.1@evil.example", b"\xff\xfe", b"localhost, localhost", b"0", b"[", b"]", b"[::1", b":80", b"a" * 300,
)  # fmt: skip
#: Values that no server may accept as the token.
TOKENS = (
    b"Bearer", b"Bearer ", b"Bearer x", b"bearer x", b"Basic eDp5", b"", b"\xff", b"Bearer \xc3\xa9", b"Token x",
    b"Bearer " + b"x" * 43, b"Bearer null", b"Bearer undefined", b"Bearer *", b"Bearer Bearer",
)  # fmt: skip
HEADERS = (
    (b"Origin", b"http://evil.example"), (b"Origin", b"null"), (b"Origin", b"http://localhost"), (b"Origin", b""),
    (b"Sec-Fetch-Site", b"cross-site"), (b"Sec-Fetch-Site", b"same-origin"), (b"Sec-Fetch-Site", b"\xff"),
    (b"Cookie", b"token=x"), (b"X-Forwarded-Host", b"localhost"), (b"X-Forwarded-For", b"127.0.0.1"),
    (b"Forwarded", b"for=127.0.0.1;host=localhost"), (b"X-HTTP-Method-Override", b"DELETE"), (b"Via", b"1.1 x"),
    (b"Last-Event-ID", b"-1"), (b"Accept", b"*/*"), (b"Accept-Encoding", b"gzip"), (b"Range", b"bytes=0-"),
    (b"If-Match", b"*"), (b"X-Original-URL", b"/v1/health"), (b"X-Rewrite-URL", b"/v1/health"), (b"X", b"y" * 5000),
    (b"Authorization", b"Bearer y"), (b"Proxy-Authorization", b"Bearer x"), (b"Host", b"localhost"),
)  # fmt: skip
MEDIA_TYPES = (
    b"application/json",
    b"text/plain",
    b"application/json; charset=utf-8",
    b"",
    b"\xff",
    b"multipart/form-data",
)
BODIES = (
    b"{}", b"", b"[]", b"null", b'{"path": "/", "client_id": "x"}', b'{"session_id": "s", "prompt": "x"}', b"\x00",
    b'{"command": "dance"}', b"[" * 500, b'{"a":' * 200, b"9" * 5000, b'"\\ud800"', b"\xff\xfe", b"{" + b" " * 2000,
    b'{"skip": true}', b'{"a": 1, "a": 2}', b"GET /v1/version HTTP/1.1\r\nHost: localhost\r\n\r\n", b"NaN",
)  # fmt: skip
#: Pieces of HTTP that have a meaning for some parser.
SPLICES = (
    b"\r\n", b"\n", b"\r", b"\r\n\r\n", b"\n\n", b"\0", b" ", b"\t", b":", b"\x0b", b"\x85", b"\xff", b"%", b"%00",
    b"Content-Length: 5\r\n", b"Content-Length: 0\r\n", b"Content-Length: -1\r\n", b"Content-Length: +5\r\n",
    b"Content-Length: 5, 5\r\n", b"Content-Length: 0x5\r\n", b"Content-Length: 99999999999999999999\r\n",
    b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding : chunked\r\n", b"Transfer-Encoding: xchunked\r\n",
    b"Transfer-Encoding: chunked, identity\r\n", b"Transfer-Encoding:\x0bchunked\r\n", b" folded: yes\r\n",
    b"Connection: close\r\n", b"Connection: upgrade\r\nUpgrade: websocket\r\n", b"Upgrade: h2c\r\n",
    b"Expect: 100-continue\r\n", b"Host: localhost\r\n", b"Host: evil.example\r\n", b"HTTP/1.1",
    b"0\r\n\r\n", b"5\r\nhello\r\n", b"ffffffffffffffff\r\n", b"-1\r\n", b"1;ext=" + b"x" * 100 + b"\r\na\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\x16\x03\x01", b"CONNECT x:1 HTTP/1.1\r\n", b"HTTP/1.0", b"HTTP/2.0",
    b"http://localhost", b"http://evil.example", b"TE: trailers\r\n", b"Trailer: Host\r\n",
    b"GET /v1/version HTTP/1.1\r\nHost: localhost\r\n\r\n", b"GET /v1/version\r\n", b"X: " + b"y" * 70_000,
)  # fmt: skip


def framed(rng: random.Random, authorization: bytes | None = None, methods: tuple[str, ...] = METHODS) -> bytes:
    """One request with an unambiguous end. `authorization` is sent as given; without it, a random value or none."""
    pick = rng.choice
    path = pick(PATHS) + pick(QUERIES)
    lines = [f"{pick(methods)} {path} HTTP/1.1".encode("latin-1")]
    if rng.random() < 0.95:
        lines.append(b"Host: " + (b"localhost" if rng.random() < 0.7 else pick(HOSTS)))
    if authorization is not None:
        lines.append(b"Authorization: " + authorization)
    elif rng.random() < 0.7:
        lines.append(b"Authorization: " + pick(TOKENS))
    for _ in range(rng.randrange(3)):
        name, value = pick(HEADERS)
        lines.append(name + b": " + value)
    if rng.random() < 0.5:
        lines.append(b"Content-Type: " + pick(MEDIA_TYPES))
    body = pick(BODIES) if rng.random() < 0.5 else b""
    if body and rng.random() < 0.3:
        lines.append(b"Transfer-Encoding: chunked")
        trailer = b"Authorization: Bearer x\r\nHost: localhost\r\n" if rng.random() < 0.2 else b""
        body = b"%x\r\n%b\r\n0\r\n%b\r\n" % (len(body), body, trailer)
    else:
        lines.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join([*lines, b"", body])


def wild(rng: random.Random) -> bytes:
    """A few damaged requests. None has the token or expects a reply without a body."""
    methods = tuple(method for method in METHODS if method != "HEAD")
    data = bytearray(b"".join(framed(rng, methods=methods) for _ in range(rng.randrange(1, 4))))
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        index = rng.randrange(len(data) + 1)
        kind = rng.randrange(6)
        if kind == 0:
            data[index:index] = rng.choice(SPLICES)
        elif kind == 1:
            del data[index : index + rng.choice((1, 1, 2, 5, 40))]
        elif kind == 2:
            data[index : index + 1] = bytes((rng.randrange(256),))
        elif kind == 3:
            other = rng.randrange(len(data) + 1)
            data[index:index] = data[other : other + rng.choice((1, 4, 30, 200))]
        elif kind == 4:
            line = data.find(b"\r\n", index) + 2
            data[line:line] = rng.choice(SPLICES)
        else:
            del data[index:]
        if not data:
            break
    return bytes(data)


def split(rng: random.Random, data: bytes) -> list[bytes]:
    """Split the bytes into one or several pieces."""
    if rng.random() < 0.6:
        return [data]
    cuts = sorted(rng.randrange(len(data) + 1) for _ in range(rng.choice((1, 2, 5))))
    return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True) if start < end]
