"""Users: what each role may do on every route, tokens that are stored nowhere, and the end of access."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, cast

import httpx2
import pytest

from kedge.server.auth import Gate
from kedge.server.routes import make_app
from kedge.testing.hosted import HostedEndpoint
from kedge.wire.openapi import RouteSpec
from tests.conformance.harness import Json, Peer, Server, open_http, unique
from tests.server.web_tab import Tab, filled, ticket

MAY = {"owner": {"read", "act", "owner"}, "collaborator": {"read", "act"}, "spectator": {"read"}}
#: The routes that only the owner and users with this role may use.
OWNER_ROUTES = {
    "GET /audit",
    "POST /control",
    "GET /users",
    "POST /users",
    "DELETE /users/{name}",
    "GET /web/browsers",
    "DELETE /web/browsers/{browser_id}",
    "POST /web/listen",
    "POST /web/tickets",
}


@pytest.fixture(scope="module")
def endpoint() -> Iterator[HostedEndpoint]:
    with HostedEndpoint() as endpoint:
        yield endpoint


@pytest.fixture(scope="module")
def server(endpoint: HostedEndpoint, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("users"), endpoint.url).start()
    yield server
    server.stop()


@pytest.fixture
async def peer(server: Server, tmp_path: Path) -> AsyncIterator[Peer]:
    async with server.peer(tmp_path) as peer:
        yield peer


async def added(http: httpx2.AsyncClient, role: str) -> tuple[str, str]:
    """Return the name and the token of a new user."""
    reply = await http.post("/v1/users", json={"name": unique(role), "role": role})
    assert reply.status_code == 200, reply.text
    body: Json = reply.json()
    assert body["user"]["role"] == role
    return body["user"]["name"], body["token"]


def specs() -> list[RouteSpec]:
    nothing = cast(Any, None)  # the table needs no engine
    return [route.spec for route in make_app(nothing, Gate(""), "", lambda: None).routes]


# --- roles -----------------------------------------------------------------------------------------------------------


def test_routes_of_the_owner() -> None:
    assert {f"{spec.method} {spec.path}" for spec in specs() if spec.access == "owner"} == OWNER_ROUTES


@pytest.mark.parametrize("role", MAY)
async def test_role_decides_about_every_route(server: Server, peer: Peer, role: str) -> None:
    name, token = await added(peer.http, role)
    async with open_http(server.url, token) as http:
        for spec in specs():
            path = filled(spec.path, peer, id="unknown", client_id="unknown")
            # A request that is permitted fails later: it has no valid body, or names what does not exist.
            content = b"[" if spec.method not in ("GET", "DELETE") else None
            headers = {"content-type": "application/json"} if content else {}
            async with http.stream(spec.method, f"/v1{path}", content=content, headers=headers) as reply:
                what = f"{role}: {spec.method} {spec.path}: {reply.status_code}"
                if spec.access in MAY[role] or not spec.needs_token:
                    assert reply.status_code not in (401, 403), what
                else:
                    assert reply.status_code == 403, what
                    await reply.aread()
                    refused = reply.json()
                    assert refused["code"] == "forbidden"
                    assert refused["message"].startswith(f"User {name} has the role {role} and may ")
    assert (await peer.http.get("/v1/health")).status_code == 200


async def test_collaborator_works_and_spectator_watches(server: Server, peer: Peer) -> None:
    _, token = await added(peer.http, "collaborator")
    _, reading = await added(peer.http, "spectator")
    async with open_http(server.url, token) as http, open_http(server.url, reading) as watching:
        worker = await Peer(http, peer.directory).open()
        spectator = Peer(watching, peer.directory, workspace=worker.workspace)
        session = await worker.session()
        async with spectator.stream(session_id=session) as stream:
            run = await worker.submit(session, "script: say hello")
            (ended,) = await stream.until_complete(run["run_id"])
            assert ended["outcome"] == "completed"
        error = await spectator.call("POST", f"{worker.at}/agent", {"session_id": session, "prompt": "x"}, expect=403)
        assert error["message"].endswith("has the role spectator and may only read. Ask the owner of the server.")
        assert len(await spectator.runs(session)) == 1


async def test_audit_has_actions_of_users_and_the_owner(server: Server, peer: Peer) -> None:
    name, token = await added(peer.http, "collaborator")
    session = await peer.session()
    async with open_http(server.url, token) as http:
        worker = Peer(http, peer.directory, workspace=peer.workspace)
        await worker.call("POST", f"{peer.at}/agent/sessions/{session}/shell", {"command": "false"})
        run_id = (await worker.submit(session, f"script: hold {name} | say hello"))["run_id"]
    await peer.call("POST", f"{peer.at}/agent/sessions/{session}/cancel")
    ended = await peer.wait(run_id)
    assert (ended["outcome"], ended["author"]) == ("cancelled", name)
    entries = (await peer.http.get("/v1/audit", params={"workspace_id": peer.workspace})).json()["entries"]
    shown = [(one["author"], one["action"], one["run_id"], one["detail"]) for one in entries]
    assert shown == [("", "cancel", "", ""), (name, "submit", run_id, "fold"), (name, "shell", "", "exit code 1")]


async def test_user_with_the_role_owner_manages_others(server: Server, peer: Peer) -> None:
    name, token = await added(peer.http, "owner")
    async with open_http(server.url, token) as http:
        other, _ = await added(http, "spectator")
        assert (await http.delete(f"/v1/users/{other}")).status_code == 200
        entries = (await http.get("/v1/audit", params={"user": name, "limit": 5})).json()["entries"]
        assert [(one["author"], one["action"], one["detail"]) for one in entries] == [
            (name, "revoke_user", other),
            (name, "add_user", f"{other}, spectator"),
        ]
        own = (await http.get("/v1/audit", params={"user": ""})).json()["entries"]
        assert {one["author"] for one in own} == {""}
        async with Tab(server.url) as tab:  # a link for a browser
            await tab.log_in(await ticket(http))
            assert (await tab.call("GET", "/users")).status_code == 403
        # The reply arrives, although its connection belongs to the user.
        assert (await http.delete(f"/v1/users/{name}")).status_code == 200
        assert (await http.get("/v1/users")).status_code == 401


# --- tokens ----------------------------------------------------------------------------------------------------------


async def test_wrong_tokens_are_refused(server: Server, peer: Peer) -> None:
    _, token = await added(peer.http, "owner")
    first = "A" if token[6] != "A" else "B"
    for wrong in (f"kedge_{first}{token[7:]}", token[:-1], f"{token}A", "kedge_", token.upper(), "x" * 49):
        async with open_http(server.url, wrong) as http:
            reply = await http.get("/v1/workspaces")
            assert (reply.status_code, reply.json()["code"]) == (401, "unauthorized"), wrong
    headers = [("authorization", f"Bearer {token}")] * 2
    async with httpx2.AsyncClient(base_url=server.url) as http:
        assert (await http.get("/v1/workspaces", headers=headers)).status_code == 401
        assert (await http.get("/v1/workspaces", headers={"authorization": token})).status_code == 401


async def test_local_socket_belongs_to_the_owner(server: Server, peer: Peer) -> None:
    _, token = await added(peer.http, "spectator")
    async with server.http(unix=True) as http:
        assert (await http.get("/v1/users", headers={"authorization": f"Bearer {token}"})).status_code == 200


async def test_tokens_are_stored_nowhere(endpoint: HostedEndpoint, tmp_path: Path) -> None:
    server = Server(tmp_path / "own", endpoint.url).start()
    async with server.http() as http:
        users = [await added(http, role) for role in MAY]
        shown = [(await http.get(path)).text for path in ("/v1/users", "/v1/audit")]
        assert all(name in text for name, _ in users for text in shown)
    for _, token in users:
        async with open_http(server.url, token) as http:
            assert (await http.get("/v1/workspaces")).status_code == 200
            await http.get("/v1/users")
    log = server.log
    assert server.terminate() == 0
    files = {path.name: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert users[0][0].encode() in files["kedge.db"]
    for _, token in users:
        for secret in (token, token.removeprefix("kedge_")):
            assert [name for name, content in files.items() if secret.encode() in content] == []
            assert secret not in log + "".join(shown)
    # A server that starts again knows them.
    server.start()
    async with open_http(server.url, users[-1][1]) as http:
        assert (await http.get("/v1/workspaces")).status_code == 200
    server.stop()


# --- the end of access -----------------------------------------------------------------------------------------------


async def test_revoke_ends_open_streams(server: Server, peer: Peer) -> None:
    name, token = await added(peer.http, "spectator")
    _, other = await added(peer.http, "spectator")
    async with open_http(server.url, token) as http, open_http(server.url, other) as still:
        watcher, kept = (Peer(one, peer.directory, workspace=peer.workspace) for one in (http, still))
        async with watcher.stream() as stream, kept.stream() as other_stream:
            await peer.call("DELETE", f"/users/{name}")
            with pytest.raises(httpx2.TransportError):
                await stream.until(lambda stream: stream.ended)
            session = await peer.session()
            await other_stream.until(lambda stream: any(one.payload["id"] == session for one in stream.of("session")))
        assert (await http.get("/v1/workspaces")).status_code == 401
        assert (await still.get("/v1/workspaces")).status_code == 200
    error = await peer.call("DELETE", f"/users/{name}", expect=404)
    assert error == {"message": f"User {name} not found. List them with: kedge users list", "code": "user_not_found"}
    # The name is free again, and the old token stays useless.
    await peer.call("POST", "/users", {"name": name, "role": "owner"})
    assert (await peer.call("POST", "/users", {"name": name, "role": "owner"}, expect=409))["code"] == "user_exists"
    async with open_http(server.url, token) as http:
        assert (await http.get("/v1/workspaces")).status_code == 401


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"name": "a:b", "role": "owner"}, 400),
        ({"name": "", "role": "owner"}, 422),
        ({"name": "x" * 64, "role": "owner"}, 422),
        ({"name": ".x", "role": "owner"}, 400),
        ({"name": "x\n", "role": "owner"}, 400),
        ({"name": "x", "role": "admin"}, 422),
        ({"name": "x"}, 422),
        ({"name": "x", "role": "owner", "token": "mine"}, 422),
    ],
)
async def test_users_that_are_not_valid(peer: Peer, body: Json, status: int) -> None:
    before = await peer.call("GET", "/users")
    await peer.call("POST", "/users", body, expect=status)
    assert await peer.call("GET", "/users") == before
