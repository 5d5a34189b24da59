"""Refused requests: every check on every route of /v1/openapi.json, with raw requests that leave no trace.

The order is fixed: Host and Origin, then the token, then the route. A client without a token cannot detect whether a
route or a record exists.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance import raw
from tests.conformance.harness import Json, Peer
from tests.conformance.rounds import no_trace
from tests.conformance.test_i_agent import call

Header = tuple[str, bytes]
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")
#: A body that shuts down a server, so that a request that passes its checks is noticed.
NOWHERE = [("GET", "/v1/nothing"), ("GET", "/nothing"), ("POST", "/v1"), ("DELETE", "/v1/health")]


async def reference(peer: Peer) -> dict[str, dict[str, Any]]:
    paths: dict[str, dict[str, Any]] = (await peer.call("GET", "/openapi.json"))["paths"]
    return paths


async def known_ids(peer: Peer) -> dict[str, str]:
    """Return an existing id for each path parameter: without the check, the request would succeed."""
    session = await peer.session()
    async with peer.stream(session_id=session) as stream:
        run_id = (await peer.submit(session, f"script: {call('bash', command='touch made')} | say over"))["run_id"]
        (asked,) = await stream.until(lambda stream: stream.of("permission_request"))
        await peer.answer(asked.payload["id"], "allow_always")
        await stream.until_complete(run_id)
    (grant,) = await peer.call("GET", f"{peer.at}/permissions/grants")
    return {
        "{id}": peer.workspace,
        "{sid}": session,
        "{client_id}": peer.client_id,
        "{run_id}": run_id,
        "{grant_id}": grant["id"],
        "{job_id}": "j1",  # a kept command takes a second to start, in each of these tests
        "{name}": "none",  # so does an MCP server
        "{browser_id}": "b1",
    }


async def all_routes(peer: Peer, known: dict[str, str]) -> list[tuple[str, str]]:
    """Return (method, path) of every route."""

    def filled(path: str) -> str:
        for name, value in known.items():
            path = path.replace(name, value)
        assert "{" not in path, f"{path}: create a record of that kind first"
        return path

    routes = [(m.upper(), filled(path)) for path, operations in (await reference(peer)).items() for m in operations]
    assert len(routes) >= 35
    assert any(path.endswith("/events") for _, path in routes)
    return routes


async def send(
    line: raw.RawConnection, method: str, path: str, headers: list[Header], host: str | None
) -> tuple[int, Any]:
    body = b'{"command": "shutdown", "force": true, "title": "x", "session_id": "", "prompt": "x"}'
    more = [("Content-Type", b"application/json")] if method not in ("GET", "DELETE") else []
    data = raw.request(method, path, headers=[*headers, *more], body=body if more else b"", host=host)
    await line.send(data)
    return await line.reply()


def check_refused(reply: tuple[int, Any], status: int, code: str) -> None:
    assert reply[0] == status, reply
    assert set(reply[1]) == {"message", "code"}
    assert (reply[1]["code"], bool(reply[1]["message"])) == (code, True)


@pytest.mark.parametrize(
    "given",
    [
        pytest.param([], id="none"),
        pytest.param([b""], id="empty"),
        pytest.param([b"Bearer"], id="only the word"),
        pytest.param([b"Bearer "], id="an empty one"),
        pytest.param([b"Bearer wrong"], id="wrong"),
        pytest.param([b"Bearer TOKEN "], id="one character more"),
        pytest.param([b"Bearer x"], id="one character"),
        pytest.param([b"TOKEN"], id="without the word"),
        pytest.param([b"Basic TOKEN"], id="another scheme"),
        pytest.param([b"Bearer t\xc3\xb6k\xc3\xa9n"], id="not ASCII"),
        pytest.param([b"Bearer \xff\xfe"], id="not UTF-8"),
        pytest.param([b"Bearer " + b"x" * 10_000], id="long"),
        pytest.param([b"Bearer TOKEN", b"Bearer wrong"], id="two, the first right"),
        pytest.param([b"Bearer wrong", b"Bearer TOKEN"], id="two, the second right"),
    ],
)
async def test_without_the_token_no_route_answers(kedge: Peer, shared: tuple[str, str], given: list[bytes]) -> None:
    url, token = shared
    known = await known_ids(kedge)
    # Trailing whitespace is not part of a header value, so the space must be inside.
    values = [value.replace(b"TOKEN ", token.encode() + b"x").replace(b"TOKEN", token.encode()) for value in given]
    async with no_trace(kedge, known["{sid}"]), raw.connect(url) as line:
        for method, path in [*await all_routes(kedge, known), *NOWHERE]:
            reply = await send(line, method, path, [("Authorization", value) for value in values], "localhost")
            if path == "/v1/health" and method == "GET":
                assert reply == (200, {"ok": True, "state": "ready"}), "a public route"
            elif path != "/v1/web/login":  # the other one
                check_refused(reply, 401, "unauthorized")


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:80",
        "localhost.evil.example",
        "kedge.evil.example",
        "127.0.0.1.evil.example",
        "192.168.1.5",
        "0.0.0.0",
        "[::]",
        "169.254.169.254",
        "",
        " ",
        "localhost@evil.example",
        "2130706433",
        "xn--",
        "evil.example/localhost",
        "notlocalhost",
        "\u00fcber",
        "localhost:80:evil.example",
        "[::1].evil.example",
        "localhost:evil.example",
        "[::1",
        "[localhost]",
        ":80",
        "localhost,evil.example",
        "[::1]:80]",
    ],
)
async def test_with_a_foreign_host_no_route_answers(kedge: Peer, shared: tuple[str, str], host: str) -> None:
    url, token = shared
    known = await known_ids(kedge)
    right = [("Authorization", b"Bearer " + token.encode())]
    async with no_trace(kedge, known["{sid}"]), raw.connect(url) as line:
        for method, path in [*await all_routes(kedge, known), *NOWHERE]:
            check_refused(await send(line, method, path, right, host), 421, "bad_host")


@pytest.mark.parametrize("more", [None, b"localhost", b"evil.example"])
async def test_with_no_host_or_two_no_route_answers(kedge: Peer, shared: tuple[str, str], more: bytes | None) -> None:
    url, token = shared
    known = await known_ids(kedge)
    headers = [("Authorization", b"Bearer " + token.encode())]
    if more is not None:
        headers.append(("Host", more))
    async with no_trace(kedge, known["{sid}"]), raw.connect(url) as line:
        for method, path in [*await all_routes(kedge, known), *NOWHERE]:
            reply = await send(line, method, path, headers, None if more is None else "localhost")
            check_refused(reply, 400, "invalid")


@pytest.mark.parametrize(
    "foreign",
    [
        ("Origin", b"http://evil.example"),
        ("Origin", b"null"),
        ("Origin", b""),
        ("Origin", b"http://localhost:1"),
        ("Origin", b"http://localhost.evil.example"),
        ("Origin", b"file://"),
        ("Origin", b"\xff"),
        ("Sec-Fetch-Site", b"cross-site"),
        ("Sec-Fetch-Site", b"same-site"),
        ("Sec-Fetch-Site", b"anything"),
    ],
)
async def test_from_a_foreign_page_no_route_answers(kedge: Peer, shared: tuple[str, str], foreign: Header) -> None:
    url, token = shared
    known = await known_ids(kedge)
    headers = [("Authorization", b"Bearer " + token.encode()), foreign]
    async with no_trace(kedge, known["{sid}"]), raw.connect(url) as line:
        for method, path in [*await all_routes(kedge, known), *NOWHERE]:
            check_refused(await send(line, method, path, headers, "localhost"), 403, "bad_origin")


@pytest.mark.parametrize("name", ["token", "access_token", "Authorization", "key", "bearer"])
async def test_a_token_in_the_query_is_ignored(kedge: Peer, shared: tuple[str, str], name: str) -> None:
    """URLs are logged in many places."""
    url, token = shared
    known = await known_ids(kedge)
    async with no_trace(kedge, known["{sid}"]), raw.connect(url) as line:
        for method, path in [*await all_routes(kedge, known), *NOWHERE]:
            reply = await send(line, method, f"{path}?{name}={token}&client_id={kedge.client_id}", [], "localhost")
            if (method, path) not in (("GET", "/v1/health"), ("POST", "/v1/web/login")):
                check_refused(reply, 401, "unauthorized")


@pytest.mark.found(
    "attack: an absolute URL as the target of a request",
    "the host in `GET http://evil.example/... HTTP/1.1` was not looked at, though the standard has it count more than "
    "the Host header; a request's target has to be a path now",
)
@pytest.mark.parametrize(
    "start", ["http://evil.example", "https://localhost", "http://localhost", "//", "http:", "x", "*"]
)
async def test_an_absolute_target_is_refused_on_every_route(kedge: Peer, shared: tuple[str, str], start: str) -> None:
    url, token = shared
    known = await known_ids(kedge)
    right = [("Authorization", b"Bearer " + token.encode())]
    async with no_trace(kedge, known["{sid}"]):
        for method, path in [*await all_routes(kedge, known), *NOWHERE]:
            target = f"//evil.example{path}" if start == "//" else start if start == "*" else start + path
            async with raw.connect(url) as line:
                reply = await send(line, method, target, right, "localhost")
                if start == "//":  # an unusual path that does not exist
                    check_refused(reply, 404, "route_not_found")
                else:
                    check_refused(reply, 400, "invalid")


@pytest.mark.parametrize("media_type", [b"text/plain", b"application/x-www-form-urlencoded", b"multipart/form-data"])
async def test_bodies_of_simple_cors_requests_are_refused(
    kedge: Peer, shared: tuple[str, str], media_type: bytes
) -> None:
    """Also on routes without a body: a cancel is a change, too."""
    url, token = shared
    known = await known_ids(kedge)
    headers = [("Authorization", b"Bearer " + token.encode()), ("Content-Type", media_type)]
    async with no_trace(kedge, known["{sid}"]), raw.connect(url) as line:
        for method, path in await all_routes(kedge, known):
            if method not in ("GET", "DELETE"):
                await line.send(raw.request(method, path, headers=headers, body=b"{}"))
                check_refused(await line.reply(), 415, "not_json")


async def test_local_pages_and_programs_are_accepted(kedge: Peer, shared: tuple[str, str]) -> None:
    url, token = shared
    port = url.rpartition(":")[2]
    right: Header = ("Authorization", b"Bearer " + token.encode())
    async with raw.connect(url) as line:
        for host in ("localhost", f"localhost:{port}", f"127.0.0.1:{port}", "[::1]", "LOCALHOST", "kedge.localhost"):
            origin = f"http://{host}".encode()
            for more in ([], [("Origin", origin)], [("Sec-Fetch-Site", b"same-origin")], [("Sec-Fetch-Site", b"none")]):
                status, _ = await send(line, "GET", "/v1/version", [right, *more], host)
                assert status == 200, (host, more)


async def test_a_wrong_method_is_refused_with_the_allowed_ones(kedge: Peer) -> None:
    session = await kedge.session()
    async with no_trace(kedge, session):
        for path, operations in (await reference(kedge)).items():
            allowed = {method.upper() for method in operations}
            at = path.replace("{id}", kedge.workspace).replace("{sid}", session)
            for method in METHODS:
                if method in allowed:
                    continue
                reply = await kedge.http.request(method, at)
                assert (reply.status_code, reply.json()["code"]) == (405, "method_not_allowed"), (method, path)
                assert set(reply.headers["allow"].replace(" ", "").split(",")) == allowed


async def test_unknown_ids_are_not_found_on_any_route(kedge: Peer) -> None:
    """First an unknown workspace, then unknown ids in a known one. The body has the fields of every route."""
    session = await kedge.session()
    body: Json = {
        "session_id": "unknown",
        "prompt": "x",
        "title": "x",
        "message_id": "unknown",
        "before": None,
        "command": "x",
        "scope": "both",
    }
    body |= {"id": "unknown", "action": "deny", "batch_request_id": "unknown", "skip": False}
    body |= {"client_id": kedge.client_id}
    async with no_trace(kedge, session):
        for path, operations in (await reference(kedge)).items():
            for workspace in ("nowhere", kedge.workspace):
                at = path.replace("{id}", workspace).replace("{sid}", "unknown").replace("{run_id}", "unknown")
                at = at.replace("{grant_id}", "unknown").replace("{job_id}", "unknown")
                at = at.replace("{name}", "unknown").replace("{browser_id}", "unknown")
                if "nowhere" not in at and "unknown" not in at:
                    continue
                for method in operations:
                    reply = await kedge.reply(
                        method.upper(), at.removeprefix("/v1"), body, client_id=kedge.client_id, after="0"
                    )
                    assert reply.status_code == 404, (method, path, reply.status_code)
                    assert reply.json()["code"].endswith("_not_found")


@pytest.mark.parametrize(
    "garbage",
    [
        b"hello\r\n\r\n",
        b"GET /v1/health HTTP/9.9\r\nHost: localhost\r\n\r\n",
        b"FOO /v1/health HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /v1/h\xe9alth HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /v1/health HTTP/1.1\r\nHost: localhost\r\nbad header\r\n\r\n",
        b"POST /v1/control HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
        b"POST /v1/control HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST /v1/control HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"POST /v1/control HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
        b"POST /v1/control HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5, 6\r\n\r\n",
        b"POST /v1/control HTTP/1.1\r\nHost: localhost\r\nContent-Length: +5\r\n\r\n",
        b"POST /v1/control HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999999999999999\r\n\r\n",
        b"POST /v1/control HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding : chunked\r\n\r\n",
        b"POST /v1/control HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n",
        b"POST /v1/control HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n",
        b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /v1/health HTTP/1.1\r\nHost: localhost\r\nX: a\0b\r\n\r\n",
        b"GET /v1/health HTTP/1.1\r\n Host: localhost\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # a TLS client
    ],
    ids=lambda garbage: ascii(garbage[-50:]),
)
async def test_garbage_is_answered_400_and_the_connection_closed(
    kedge: Peer, shared: tuple[str, str], garbage: bytes
) -> None:
    async with no_trace(kedge, await kedge.session()):
        async with raw.connect(shared[0]) as line:
            await line.send(garbage)
            status, error = await line.reply()
            assert 400 <= status < 500
            assert set(error) == {"message", "code"}
    assert (await kedge.http.get("/v1/health")).status_code == 200


@pytest.mark.parametrize("start", [b"GET /v1/health HTTP/1.1\r\nHost: localhost\r\nX: ", b"GET /v1/health?"])
async def test_an_endless_head_is_dropped(kedge: Peer, shared: tuple[str, str], start: bytes) -> None:
    """The limit holds before authentication."""
    async with raw.connect(shared[0]) as line:
        await line.send(start)
        with pytest.raises(ConnectionError):
            await line.send(b"x" * 50_000_000)
    assert (await kedge.http.get("/v1/health", headers={"x-long": "x" * 30_000})).status_code == 200
