"""The contract of `kedge.store.leases`, for every store that has leases."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from kedge.errors import LeaseLost, NodeReplaced, StoreError, StoreUnavailable, WorkspaceNotFound
from kedge.store.base import Store, Write
from kedge.store.leases import Claimed, HeldBy, Leases, NodeInfo, NodeLoad
from kedge.store.memory import MemoryData, MemoryStore
from kedge.store.memory_leases import MemoryLeases
from kedge.store.postgres import PostgresStore
from tests.store.conftest import sql
from tests.store.samples import (
    W,
    accepted,
    ended,
    events,
    lane,
    message,
    run,
    session,
    tail,
    with_workspace,
)

LEASE_S = 100.0


class Cluster:
    """Stores of several processes on the same data. `expire` makes the lease time pass for one node."""

    def __init__(self, kind: str, url: str) -> None:
        self._kind, self._url = kind, url
        self._data, self._now_ms = MemoryData(), 1_000_000
        self._stores: list[Store] = []

    async def join(self, name: str = "", host_id: str = "") -> tuple[Store, Leases]:
        """Open a store; register its node if it has a name."""
        store: Store
        leases: Leases
        if self._kind == "memory":
            leases = MemoryLeases(self._data, lambda: self._now_ms, f"incarnation {len(self._stores)}", LEASE_S)
            store = MemoryStore(self._data, leases)
        else:
            store = leases = PostgresStore(self._url, lease_s=LEASE_S)
        await store.open()
        self._stores.append(store)
        if name:
            await leases.register(node(name, leases, host_id))
        return store, leases

    async def expire(self, name: str) -> None:
        if self._kind == "memory":
            self._data.nodes[name].expires_at = self._now_ms
        else:
            await sql(self._url, "UPDATE nodes SET expires_at = clock_timestamp() WHERE name = $1 RETURNING 1", name)

    async def close(self) -> None:
        for store in self._stores:
            await store.close()


def node(name: str, leases: Leases, host_id: str = "") -> NodeInfo:
    return NodeInfo(name, f"http://{name}:1", ("/home",), leases.incarnation, host_id or f"host of {name}")


@pytest.fixture(params=["memory", "postgres"])
async def cluster(request: pytest.FixtureRequest, lease_database: str) -> AsyncIterator[Cluster]:
    cluster = Cluster(request.param, lease_database)
    yield cluster
    await cluster.close()


@pytest.fixture
def lease_database(request: pytest.FixtureRequest) -> Any:
    is_postgres = request.node.callspec.params["cluster"] == "postgres"
    return request.getfixturevalue("database") if is_postgres else ""


async def test_one_live_node_holds_a_workspace(cluster: Cluster) -> None:
    store, one = await cluster.join("one")
    _, two = await cluster.join("two")
    await with_workspace(store)
    assert await one.holder(W) is None
    first = await one.claim(W)
    assert isinstance(first, Claimed)
    assert await two.claim(W) == HeldBy(node("one", one))
    assert await two.holder(W) == node("one", one)
    again = await one.claim(W)
    assert isinstance(again, Claimed)
    assert again.token > first.token
    await two.release(W)  # not its own
    assert await two.holder(W) == node("one", one)
    await one.release(W)
    assert await one.holder(W) is None
    assert isinstance(await two.claim(W), Claimed)
    with pytest.raises(WorkspaceNotFound):
        await one.claim("w9")


async def test_lease_of_an_expired_node_can_be_taken(cluster: Cluster) -> None:
    store, one = await cluster.join("one")
    _, two = await cluster.join("two")
    await with_workspace(store)
    await one.claim(W)
    await cluster.expire("one")
    assert await two.holder(W) is None
    with pytest.raises(StoreUnavailable, match="one"):
        await one.claim(W)
    await store.append(events(accepted()))  # no other node has claimed it yet
    assert isinstance(await two.claim(W), Claimed)
    with pytest.raises(LeaseLost, match=f"workspace {W} is served by another node now"):
        await store.append(events(ended()))


async def test_heartbeat_renews_a_lease_and_stores_the_load(cluster: Cluster) -> None:
    store, one = await cluster.join("one")
    _, two = await cluster.join("two")
    await with_workspace(store)
    await one.claim(W)
    await one.heartbeat(NodeLoad(1, 2, 3))
    assert await two.claim(W) == HeldBy(node("one", one))
    states = await two.nodes()
    assert [(state.info, state.load, state.is_alive, state.workspaces) for state in states] == [
        (node("one", one), NodeLoad(1, 2, 3), True, 1),
        (node("two", two), NodeLoad(), True, 0),
    ]
    await cluster.expire("one")
    assert [state.is_alive for state in await two.nodes()] == [False, True]
    with pytest.raises(NodeReplaced):
        await one.heartbeat(NodeLoad())  # not revived: others may have taken what it had


async def test_name_of_a_live_node_is_refused_elsewhere(cluster: Cluster) -> None:
    _, one = await cluster.join("one")
    _, other = await cluster.join()
    with pytest.raises(StoreError, match="a node named one is running elsewhere; choose another --node name"):
        await other.register(node("one", other, "other host"))
    await cluster.expire("one")
    await other.register(node("one", other, "other host"))
    with pytest.raises(NodeReplaced, match="one"):
        await one.heartbeat(NodeLoad())


async def test_restarted_node_replaces_its_predecessor_at_once(cluster: Cluster) -> None:
    store, before = await cluster.join("one", "host")
    await with_workspace(store)
    await before.claim(W)
    again, after = await cluster.join("one", "host")
    assert await after.holder(W) is None
    for refused in (before.heartbeat(NodeLoad()), before.claim(W)):
        with pytest.raises(NodeReplaced):
            await refused
    assert isinstance(await after.claim(W), Claimed)
    await again.append(events(accepted()))
    with pytest.raises(LeaseLost):
        await store.append(events(ended()))


async def test_unregistered_node_holds_nothing(cluster: Cluster) -> None:
    store, one = await cluster.join("one")
    _, two = await cluster.join("two")
    await with_workspace(store)
    await one.claim(W)
    await one.unregister()
    assert [state.info.name for state in await two.nodes()] == ["two"]
    assert isinstance(await two.claim(W), Claimed)
    with pytest.raises(NodeReplaced):
        await one.claim(W)


async def test_orphans_are_workspaces_with_live_runs_and_no_node(cluster: Cluster) -> None:
    store, one = await cluster.join("one")
    _, two = await cluster.join("two")
    await with_workspace(store, "w1", "w2", "w3", "w4")
    for number in (1, 2, 3):
        made = run("r1", f"s{number}", f"w{number}", state="ended" if number == 3 else "active")
        await store.append(Write(f"w{number}", runs=(made,)))
    assert [record.id for record in await two.orphans(9)] == ["w1", "w2"]
    assert [record.id for record in await two.orphans(1)] == ["w1"]
    await one.claim("w1")
    assert [record.id for record in await two.orphans(9)] == ["w2"]
    await cluster.expire("one")
    assert [record.id for record in await two.orphans(9)] == ["w1", "w2"]


WRITES: dict[str, Callable[[Store], Awaitable[object]]] = {
    "events": lambda store: store.append(events(ended())),
    "lane": lambda store: store.append(Write(W, lane=lane(1, 0))),
    "records": lambda store: store.append(Write(W, sessions=(session(title="new"),), runs=(run("r2"),))),
    "tail": lambda store: store.append(Write(W, tails=(tail("more", "m1"),), durable=False)),
    "large": lambda store: store.append(Write(W, messages=(message("m9", "x" * 200_000),))),
    "deletion": lambda store: store.append(Write(W, deleted_sessions=("s1",))),
    "cut": lambda store: store.append(Write(W, cuts=(("s1", "m2"),))),
    "trim": lambda store: store.trim(W, 0),
    "copy": lambda store: store.copy_messages(W, "s1", "s2", "", "m2", ["c1"]),
    "removal": lambda store: store.remove_workspace(W),
}


async def stored(store: Store) -> list[Any]:
    """Return everything that can be read of workspace W; nothing if it is removed."""
    if not await store.workspaces():
        return []
    seen: list[Any] = [await store.bounds(W), await store.read(W, 0, 99), await store.sessions(W)]
    seen += [await store.lane("s1"), await store.messages("s1", None, 9), await store.runs("s1", 9)]
    return [*seen, await store.message(W, "c1")]


@pytest.mark.parametrize("released", [False, True])
@pytest.mark.parametrize("kind", WRITES)
async def test_node_that_lost_its_lease_writes_nothing(cluster: Cluster, kind: str, released: bool) -> None:
    store, one = await cluster.join("one")
    other, two = await cluster.join("two")
    await with_workspace(store)
    await one.claim(W)
    first = events(accepted(), sessions=(session(),), runs=(run(),), messages=(message(), message("m2")))
    await store.append(first)
    await cluster.expire("one")
    await two.claim(W)
    if released:
        await two.release(W)  # the token shows that another node has served it meanwhile
    before = await stored(other)
    with pytest.raises(LeaseLost):
        await WRITES[kind](store)
    assert await stored(other) == before


async def test_node_that_never_had_the_lease_writes_nothing(cluster: Cluster) -> None:
    store, _ = await cluster.join("one")
    other, two = await cluster.join("two")
    await with_workspace(store)
    await two.claim(W)
    before = await stored(other)
    with pytest.raises(LeaseLost):
        await store.append(events(accepted()))
    assert await stored(other) == before


async def test_workspace_of_another_node_is_not_reclaimed(cluster: Cluster) -> None:
    store, one = await cluster.join("one")
    other, two = await cluster.join("two")
    await with_workspace(store)
    await store.append(Write(W, sessions=(session(),), messages=(message(),)))
    await two.claim(W)
    await other.append(Write(W, deleted_sessions=("s1",)))
    for _ in range(5):
        await store.reclaim()
    assert isinstance(await one.claim(W), HeldBy)
    while await other.reclaim():
        pass
    await other.append(Write(W, sessions=(session(),)))
    assert await other.messages("s1", None, 9) == []


async def test_late_write_after_a_release_is_refused(cluster: Cluster) -> None:
    store, one = await cluster.join("one")
    other, two = await cluster.join("two")
    await with_workspace(store)
    await one.claim(W)
    await one.release(W)
    await two.claim(W)
    await other.append(events(accepted()))
    await two.release(W)
    with pytest.raises(LeaseLost):
        await store.append(events(accepted("late")))
    await one.claim(W)
    await store.append(events(accepted("again")))
