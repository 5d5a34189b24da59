"""Browsers: links, the two halves of their secret, spectators, one session, and what is stored."""

from __future__ import annotations

import stat
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx2
import pytest

from kedge.errors import Busy, LinkGone
from kedge.server.browsers import BROWSER_S, TICKET_S, TICKETS_MAX, Browsers
from kedge.testing.hosted import HostedEndpoint
from tests.conformance.harness import Json, Peer, Server
from tests.server.web_tab import Tab, filled, logged_in, ticket


@pytest.fixture(scope="module")
def endpoint() -> Iterator[HostedEndpoint]:
    with HostedEndpoint() as endpoint:
        yield endpoint


@pytest.fixture(scope="module")
def server(endpoint: HostedEndpoint, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("web"), endpoint.url).start()
    yield server
    server.stop()


@pytest.fixture
async def peer(server: Server, tmp_path: Path) -> AsyncIterator[Peer]:
    async with server.peer(tmp_path) as peer:
        yield peer


# --- the login -------------------------------------------------------------------------------------------------------


async def test_link_works_once(server: Server, peer: Peer) -> None:
    link = await ticket(peer.http)
    async with Tab(server.url) as tab, Tab(server.url) as second:
        body = await tab.log_in(link)
        assert body["browser"]["label"] == "Firefox on Linux"
        attributes = [part.strip() for part in tab.set_cookie.split(";")[1:]]
        assert attributes == ["Path=/v1", f"Max-Age={BROWSER_S}", "HttpOnly", "SameSite=Strict"]
        assert await tab.status() == (200, "")
        gone = await second.log_in(link, expect=410)
        assert gone == {
            "message": "This link was already used or has expired. Get another one with: kedge web",
            "code": "link_gone",
        }
        assert (await second.log_in("x" * 43, expect=410))["code"] == "link_gone"
        assert (await second.call("POST", "/web/login", {"ticket": "x" * 200})).status_code == 422


async def test_links_expire_and_are_bounded() -> None:
    now = 1_000_000.0
    browsers = Browsers(now_s=lambda: now)
    secret, expires_at = browsers.issue("full")
    assert expires_at == (now + TICKET_S) * 1000
    now += TICKET_S
    with pytest.raises(LinkGone):
        browsers.redeem(secret)
    for _ in range(TICKETS_MAX):
        browsers.issue("full")
    with pytest.raises(Busy, match="unused links"):
        browsers.issue("full")
    now += TICKET_S
    browser, cookie, key = await browsers.admit(browsers.redeem(browsers.issue("full")[0]), "x", None)
    assert browsers.find(cookie, key) is browser
    now += BROWSER_S
    assert browsers.find(cookie, key) is None
    assert not browsers.has_any


async def test_second_login_of_a_tab_replaces_the_first(server: Server, peer: Peer) -> None:
    async with await logged_in(server) as tab:
        first = (await tab.call("GET", "/web/access")).json()["browser"]["id"]
        await tab.log_in(await ticket(peer.http))
        listed = [browser["id"] for browser in (await peer.call("GET", "/web/browsers"))]
        assert first not in listed


# --- the two halves --------------------------------------------------------------------------------------------------


async def test_both_halves_are_needed(server: Server) -> None:
    async with await logged_in(server) as tab, await logged_in(server) as other:
        refused = (401, "unauthorized")
        assert await tab.status(x_kedge_key="") == refused
        assert await tab.status(cookie="") == refused
        assert await tab.status(x_kedge_key=other.key) == refused
        assert await tab.status(cookie=f"kedge_web={tab.cookie}") == refused
        assert await tab.status(cookie=f"{tab.cookie_name}={tab.cookie}x") == refused
        assert await tab.status(cookie=f"{tab.cookie_name}=; {tab.cookie_name}={tab.cookie}") == (200, "")
        assert await tab.status(authorization="Bearer x") == refused
        assert (await tab.call("GET", "/workspaces", x_kedge_key=tab.cookie)).status_code == 401


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"origin": "http://evil.example"}, (403, "bad_origin")),
        ({"origin": "http://127.0.0.1:1"}, (403, "bad_origin")),
        ({"origin": "null"}, (403, "bad_origin")),
        ({"sec_fetch_site": "cross-site"}, (403, "bad_origin")),
        ({"sec_fetch_site": "same-site"}, (403, "bad_origin")),
        ({"host": "evil.example"}, (421, "bad_host")),
    ],
)
async def test_requests_of_other_pages_are_refused(
    server: Server, headers: dict[str, str], expected: tuple[int, str]
) -> None:
    async with await logged_in(server) as tab:
        assert await tab.status(**headers) == expected
        reply = await tab.call("POST", "/web/login", {"ticket": "x"}, **headers)
        assert (reply.status_code, reply.json()["code"]) == expected
        page = await tab.http.get("/", headers={name.replace("_", "-"): text for name, text in headers.items()})
        assert page.status_code == expected[0]
        preflight = await tab.call("OPTIONS", "/web/access", **headers)
        assert not [name for name in preflight.headers if name.startswith("access-control")]


NAVIGATION = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}


async def test_links_of_other_sites_open_the_page_and_no_route(server: Server, peer: Peer) -> None:
    async with await logged_in(server) as tab:
        for path in ("/", "/w/x/s/y", "/stats"):
            page = await tab.http.get(path, headers=NAVIGATION)
            assert page.status_code in (200, 404)  # 404: the page is not built
            assert "frame-ancestors 'none'" in page.headers["content-security-policy"]
        refused = (
            {"sec-fetch-dest": "iframe"},
            {"sec-fetch-dest": "script", "sec-fetch-mode": "no-cors"},
            {"sec-fetch-mode": "cors"},
            {"origin": "http://evil.example"},
        )
        for changed in refused:
            assert (await tab.http.get("/", headers=NAVIGATION | changed)).status_code == 403, changed
        assert (await tab.http.get("/", headers=NAVIGATION | {"host": "evil.example"})).status_code == 421
        assert (await tab.http.post("/", headers=NAVIGATION)).status_code == 403
        fields = {name.replace("-", "_"): text for name, text in NAVIGATION.items()}
        for method, route in await routes(peer):
            reply = await tab.call(method, route, **fields)
            assert (reply.status_code, reply.json()["code"]) == (403, "bad_origin"), (method, route)


async def test_secrets_open_nothing_outside_of_the_api(server: Server) -> None:
    """The cookie has the path /v1. A request elsewhere gets a public file or nothing."""
    async with await logged_in(server) as tab:
        for path in ("/workspaces", "/V1/workspaces", "//v1/workspaces", "/v2/workspaces"):
            assert (await tab.http.get(path, headers=tab.secrets())).status_code == 404, path
        assert (await tab.http.post("/workspaces", headers=tab.secrets())).status_code == 404
        assert (await tab.http.post("/workspaces")).status_code == 401


# --- spectators ------------------------------------------------------------------------------------------------------

#: Besides GET: routes that a spectator may use. They change nothing that is stored.
SPECTATOR_MAY = {("POST", "/web/logout"), ("POST", "/workspaces/{id}/open"), ("POST", "/web/login")}
#: Routes that read what a spectator may not see.
ACTING_READS = {("GET", "/workspaces/{id}/file-names")}
OWNER_ONLY = {
    ("POST", "/control"),
    ("POST", "/web/listen"),
    ("POST", "/web/tickets"),
    ("GET", "/web/browsers"),
    ("DELETE", "/web/browsers/{browser_id}"),
    ("GET", "/users"),
    ("POST", "/users"),
    ("DELETE", "/users/{name}"),
    ("GET", "/audit"),
}


async def routes(peer: Peer) -> list[tuple[str, str]]:
    paths: Json = (await peer.call("GET", "/openapi.json"))["paths"]
    return [(method.upper(), path.removeprefix("/v1")) for path, item in paths.items() for method in item]


async def status_of(tab: Tab, method: str, path: str, peer: Peer, body: Json | None = None) -> tuple[int, str]:
    """Return the status and the error code of a request, without waiting for the end of a stream."""
    if not path.endswith("/events"):
        body = {"client_id": peer.client_id, **(body or {})} if method not in ("GET", "DELETE") else None
        reply = await tab.call(method, path, body)
        is_error = reply.status_code >= 400
        return reply.status_code, reply.json()["code"] if is_error else ""
    headers, params = {**tab.headers, **tab.secrets()}, {"client_id": peer.client_id}
    async with tab.http.stream(method, f"/v1{path}", headers=headers, params=params) as reply:
        if reply.status_code == 200:
            return 200, ""
        return reply.status_code, str((await reply.aread()).decode())


async def test_spectator_only_reads(server: Server, peer: Peer) -> None:
    session = await peer.session("watched")
    run_id = (await peer.submit(session, "script: say hello"))["run_id"]
    await peer.wait(run_id)
    before = await peer.call("GET", f"{peer.at}/sessions")
    async with await logged_in(server, rights="read_only") as tab:
        for method, path in await routes(peer):
            if path == "/web/logout":
                continue
            status = await status_of(tab, method, filled(path, peer, sid=session, run_id=run_id), peer)
            may = (method == "GET" or (method, path) in SPECTATOR_MAY) and (
                method,
                path,
            ) not in OWNER_ONLY | ACTING_READS
            assert (status == (403, "forbidden")) is not may, f"{method} {path}: {status}"
            # Unknown ids of jobs and MCP servers, and the ticket that is missing.
            assert not may or status[0] in (200, 404, 422), f"{method} {path}: {status}"
        assert await peer.call("GET", f"{peer.at}/sessions") == before
        assert (await tab.call("GET", f"{peer.at}/sessions/{session}/messages")).json() != []
        assert (await tab.call("POST", "/web/logout")).status_code == 200
        assert await tab.status() == (401, "unauthorized")


async def test_full_browser_acts_but_lets_nobody_in(server: Server, peer: Peer) -> None:
    async with await logged_in(server) as tab:
        created = await tab.call("POST", f"{peer.at}/sessions", {"title": "from the page"})
        assert created.status_code == 200
        for method, path in sorted(OWNER_ONLY):
            assert await status_of(tab, method, filled(path, peer), peer) == (403, "forbidden"), path


# --- one session -----------------------------------------------------------------------------------------------------

#: Routes without a session or a Run in their path that a browser of one session may use.
OF_THE_SESSION = {
    ("POST", "/workspaces/{id}/agent"),
    ("GET", "/workspaces/{id}/events"),
    ("GET", "/workspaces/{id}/models"),
    ("GET", "/workspaces/{id}/commands"),
    ("GET", "/workspaces/{id}/file-names"),
    ("GET", "/workspaces/{id}/permissions"),
    ("GET", "/workspaces/{id}/questions"),
    ("POST", "/workspaces/{id}/open"),
    ("GET", "/web/access"),
    ("POST", "/web/login"),
    ("GET", "/health"),
}


def fields(session_id: str) -> Json:
    """The fields of all bodies. The approval is one that the session does not have, so its answer is refused."""
    ask: Json = {"id": "unknown", "action": "deny", "batch_request_id": "unknown", "responses": []}
    rest = {"message_id": "unknown", "scope": "conversation", "command": "true", "title": "x"}
    return {"session_id": session_id, "prompt": "script: say hi", **ask, **rest}


async def test_browser_of_one_session_reaches_no_other(server: Server, peer: Peer, tmp_path: Path) -> None:
    own, other = await peer.session("own"), await peer.session("other")
    runs = {sid: (await peer.submit(sid, "script: say hello"))["run_id"] for sid in (own, other)}
    for run_id in runs.values():
        await peer.wait(run_id)
    (tmp_path / "elsewhere").mkdir()
    foreign = await Peer(peer.http, tmp_path / "elsewhere").open()
    async with await logged_in(server, workspace_id=peer.workspace, session_id=own) as tab:
        for method, path in await routes(peer):
            if path == "/web/logout" or (method, path) == ("DELETE", "/workspaces/{id}/sessions/{sid}"):
                continue
            named = "{sid}" in path or "{run_id}" in path
            may = named or (method, path) in OF_THE_SESSION
            where = f"{method} {path}"
            mine = await status_of(tab, method, filled(path, peer, sid=own, run_id=runs[own]), peer, fields(own))
            assert (mine == (403, "forbidden")) is not may, f"{where}: {mine}"
            if named or path == "/workspaces/{id}/agent":
                theirs = filled(path, peer, sid=other, run_id=runs[other])
                assert await status_of(tab, method, theirs, peer, fields(other)) == (403, "forbidden"), where
            if "/workspaces/{id}" in path:
                elsewhere = filled(path, foreign, sid=own, run_id=runs[own])
                status = await status_of(tab, method, elsewhere, peer, fields(own))
                assert status[0] == 403, f"{where} in another workspace: {status}"
        events = await tab.call("GET", f"{peer.at}/events?client_id={peer.client_id}&session_id={other}")
        assert events.status_code == 403
        assert (await tab.call("DELETE", f"{peer.at}/sessions/{other}")).status_code == 403
        assert (await tab.call("DELETE", f"{peer.at}/sessions/{own}")).status_code == 200
    assert [one["id"] for one in await peer.call("GET", f"{peer.at}/sessions")] == [other]


async def test_browser_of_one_session_sees_its_events_and_asks(
    server: Server, peer: Peer, endpoint: HostedEndpoint
) -> None:
    own, other = await peer.session("own"), await peer.session("other")
    for session in (own, other):
        await peer.submit(session, 'script: tool bash {"command": "touch x"} | say done')
    async with peer.stream(after=0) as stream:
        await stream.until(lambda stream: len(stream.of("permission_request")) == 2)
    async with await logged_in(server, workspace_id=peer.workspace, session_id=own) as tab:
        listed = (await tab.call("GET", f"{peer.at}/permissions")).json()
        assert [ask["session_id"] for ask in listed] == [own]
        asks = {ask["session_id"]: ask["id"] for ask in await peer.call("GET", f"{peer.at}/permissions")}
        grant = f"{peer.at}/permissions/grant"
        assert (await tab.call("POST", grant, {"id": asks[other], "action": "allow"})).status_code == 403
        assert (await tab.call("POST", grant, {"id": asks[own], "action": "allow_always"})).status_code == 403
        tab.http.headers.update({**tab.headers, **tab.secrets()})
        watching = Peer(tab.http, peer.directory, workspace=peer.workspace)
        async with watching.stream(after=0) as seen:
            assert (await tab.call("POST", grant, {"id": asks[own], "action": "deny"})).json() == {"resolved": True}
            await peer.answer(asks[other], "deny")
            await seen.until(lambda stream: stream.of("run_complete"))
        assert {frame.payload.get("session_id", own) for frame in seen.frames if frame.type != "session"} == {own}
        assert {frame.payload["id"] for frame in seen.of("session")} == {own}
    for session in (own, other):
        await peer.cancel(session)


async def test_ticket_for_an_unknown_session_is_refused(peer: Peer) -> None:
    session = {"workspace_id": peer.workspace, "session_id": "s-unknown"}
    await peer.call("POST", "/web/tickets", session, expect=404)
    await peer.call("POST", "/web/tickets", {"session_id": "x"}, expect=400)


# --- the end of access -----------------------------------------------------------------------------------------------


async def test_revoke_ends_streams_at_once(server: Server, peer: Peer) -> None:
    async with await logged_in(server) as tab, await logged_in(server) as kept:
        for one in (tab, kept):
            one.http.headers.update({**one.headers, **one.secrets()})
        revoked_id = (await tab.call("GET", "/web/access")).json()["browser"]["id"]
        async with Peer(tab.http, peer.directory, workspace=peer.workspace).stream() as stream:
            async with Peer(kept.http, peer.directory, workspace=peer.workspace).stream() as other:
                await peer.call("DELETE", f"/web/browsers/{revoked_id}")
                with pytest.raises(httpx2.TransportError):
                    await stream.until(lambda stream: stream.ended)
                assert await tab.status() == (401, "unauthorized")
                await peer.session("after the revoke")
                await other.until(lambda stream: stream.of("session"))
        await peer.call("DELETE", f"/web/browsers/{revoked_id}", expect=404)


async def test_logout_ends_other_streams_and_gets_its_reply(server: Server, peer: Peer) -> None:
    async with await logged_in(server) as tab:
        tab.http.headers.update({**tab.headers, **tab.secrets()})
        async with Peer(tab.http, peer.directory, workspace=peer.workspace).stream() as stream:
            reply = await tab.call("POST", "/web/logout")
            assert reply.json() == {"ok": True}
            assert "Max-Age=0" in reply.headers["set-cookie"]
            with pytest.raises(httpx2.TransportError):
                await stream.until(lambda stream: stream.ended)
        assert await tab.status() == (401, "unauthorized")
    await peer.call("POST", "/web/logout", expect=400)


# --- storage ---------------------------------------------------------------------------------------------------------


async def test_restart_keeps_browsers_and_no_secret_is_stored(endpoint: HostedEndpoint, tmp_path: Path) -> None:
    server = Server(tmp_path, endpoint.url).start()
    port = int(server.url.rpartition(":")[2])
    unused = await _unused_ticket(server)
    async with await logged_in(server, rights="read_only") as tab, await logged_in(server) as revoked:
        async with server.http() as owner:
            gone = (await revoked.call("GET", "/web/access")).json()["browser"]["id"]
            assert (await owner.delete(f"/v1/web/browsers/{gone}")).status_code == 200
            listing = (await owner.get("/v1/web/browsers")).text
        server.kill()
        server.start(port)
        assert await tab.status() == (200, "")
        assert (await tab.call("POST", "/workspaces", {})).status_code == 403
        assert await revoked.status() == (401, "unauthorized")
        assert (await revoked.log_in(unused, expect=410))["code"] == "link_gone"
        server.stop()
        file = tmp_path / "data" / "web.json"
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        stored = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
        for secret in (tab.cookie.partition(".")[2], tab.key, unused):
            assert len(secret) == 43
            assert secret.encode() not in stored, "a secret is in the data directory or the log"
            assert secret not in listing


async def _unused_ticket(server: Server) -> str:
    async with server.http() as owner:
        return await ticket(owner)


async def test_damaged_file_logs_browsers_out(tmp_path: Path) -> None:
    path = tmp_path / "web.json"
    browsers = Browsers(path)
    await browsers.admit(browsers.redeem(browsers.issue("full")[0]), "x", None)
    assert [browser.label for browser in Browsers(path).all()] == ["x"]
    path.write_text(path.read_text()[:-10])
    assert Browsers(path).all() == []
