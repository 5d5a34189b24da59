"""Users of a cluster: added and revoked at one node, and known at the other."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import httpx2
import pytest

from kedge.server.forwarding import ClusterSecret
from tests.cluster.nodes import Nodes, until_status
from tests.conformance.harness import Endpoint, Peer, Server, open_http

pytestmark = pytest.mark.timeout(120)


async def added(nodes: Nodes, node: Server, name: str, role: str) -> str:
    async with open_http(node.url, nodes.token) as http:
        reply = await http.post("/v1/users", json={"name": name, "role": role})
        assert reply.status_code == 200, reply.text
        return str(reply.json()["token"])


async def revoked(nodes: Nodes, node: Server, name: str) -> None:
    async with open_http(node.url, nodes.token) as http:
        assert (await http.delete(f"/v1/users/{name}")).status_code == 200


async def status(node: Server, token: str, path: str = "/v1/workspaces") -> int:
    async with open_http(node.url, token) as http:
        return (await http.get(path)).status_code


async def test_users_of_one_node_work_at_the_other(nodes: Nodes, endpoint: Endpoint, directory: Path) -> None:
    first, second = nodes.add("a"), nodes.add("b")
    async with nodes.peer(first, directory) as at_a:
        session = await at_a.session()
        eve, bob = [await added(nodes, first, name, "collaborator") for name in ("eve", "bob")]
        for name, token in (("eve", eve), ("bob", bob)):  # at once, also the second within a second
            async with open_http(second.url, token) as http:
                at_b = Peer(http, directory, workspace=at_a.workspace)  # forwarded to a
                run = await at_b.submit(session, "script: say hello")
                assert (await at_b.wait(run["run_id"]))["text"] == "hello"
                assert (await at_a.run(run["run_id"]))["author"] == name
                assert [one["id"] for one in await at_b.call("GET", "/workspaces")] == [at_a.workspace]
                assert (await http.get("/v1/users")).status_code == 403
        watching = await added(nodes, second, "wall", "spectator")
        async with open_http(second.url, watching) as http:
            spectator = Peer(http, directory, workspace=at_a.workspace)
            await spectator.submit(session, "script: say hello", expect=403)  # refused by the node that it reached


async def test_revoke_ends_streams_at_all_nodes(nodes: Nodes, endpoint: Endpoint, directory: Path) -> None:
    first, second = nodes.add("a"), nodes.add("b")
    async with nodes.peer(second, directory) as owner:  # served by b
        token = await added(nodes, first, "eve", "spectator")
        async with open_http(second.url, token) as http:
            async with Peer(http, directory, workspace=owner.workspace).stream() as stream:
                await revoked(nodes, first, "eve")
                with pytest.raises(httpx2.TransportError):
                    await stream.until(lambda stream: stream.ended)
            assert await status(second, token) == 401
        assert await status(first, token) == 401


async def test_signature_vouches_for_the_user(nodes: Nodes, directory: Path) -> None:
    first = nodes.add("a")
    secret, now = ClusterSecret.of(nodes.secret), int(time.time())
    signed = secret.sign("b", "eve", "GET", "/v1/workspaces", now)
    assert secret.verify(signed, "GET", "/v1/workspaces", now) == ("b", "eve")
    async with httpx2.AsyncClient(base_url=first.url) as http:
        for header, expected in (
            (signed, 200),
            (signed.replace(":eve:", "::"), 401),
            (signed.replace(":eve:", ":bob:"), 401),
            (signed.replace(":eve:", ":"), 401),
            (signed.replace(":eve:", ":eve:eve:"), 401),
        ):
            reply = await http.get("/v1/workspaces", headers={"authorization": header})
            assert reply.status_code == expected, header


async def test_restarted_node_knows_the_users(nodes: Nodes) -> None:
    first, second = nodes.add("a"), nodes.add("b")
    token = await added(nodes, first, "eve", "spectator")
    await asyncio.to_thread(second.terminate)
    second.start(token=nodes.token)
    assert await status(second, token) == 200
    await revoked(nodes, second, "eve")
    assert await status(second, token) == 401
    async with open_http(first.url, token) as http:
        await until_status(Peer(http, Path()), "GET", "/workspaces", 401)


async def test_clients_cannot_use_relays_through_a_node(nodes: Nodes, directory: Path) -> None:
    first, second = nodes.add("a"), nodes.add("b")
    async with nodes.peer(first, directory) as at_a:
        owner = await added(nodes, first, "eve", "owner")
        relay = f"/v1/workspaces/{at_a.workspace}/relays/one"
        for node in (first, second):  # b would forward it to a
            for token in (nodes.token, owner):
                async with open_http(node.url, token) as http:
                    assert (await http.get(relay, params={"after": 0}, timeout=5)).status_code == 403
                    assert (await http.post(f"{relay}/readers", json={"number": 1})).status_code == 403
