"""Two nodes whose connections go through proxies, and everything that can happen to one of them."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from tests.cluster.nodes import Nodes
from tests.conformance.harness import Server
from tests.conformance.loops import Address, Lost, Wire, address_of
from tests.polling import until
from tests.postgres_server import PostgresServer, free_port
from tests.store.tcp_proxy import TcpProxy

#: Shorter than the default, so that a proof need not wait for long. On a busy machine more leases are lost than the
#: proof takes: that is a fault like others. Seconds.
LEASE_S = 5.0
#: A pause that is shorter than the lease. Seconds.
SHORT_S = 1.5
#: Between two looks at the nodes. Seconds.
PAUSE_S = 0.1


class FaultyNode:
    def __init__(
        self, server: Server, store: str, port: int, token: str, database: TcpProxy, incoming: TcpProxy
    ) -> None:
        self.server = server
        #: The URL of the store.
        self.store = store
        self.port = port
        self._token = token
        #: Its connections to PostgreSQL, and those of the other node to it.
        self.database, self.incoming = database, incoming

    @property
    def address(self) -> Address:
        return address_of(f"http://127.0.0.1:{self.port}", self._token)

    @property
    def restarts(self) -> int:
        """The number of times that it lost its leases and started again."""
        return self.server.log.count("starting again")

    def signal(self, number: signal.Signals) -> None:
        assert self.server.process is not None
        self.server.process.send_signal(number)

    async def start(self) -> None:
        await asyncio.to_thread(self.server.start, self.port, self._token)

    async def until_healthy(self) -> None:
        """Wait until it has its database, and is not about to start again."""
        while await self._states() is None:  # noqa: ASYNC110 -- another process
            await asyncio.sleep(PAUSE_S)

    async def until_lost(self, other: FaultyNode) -> None:
        """Wait until the lease of the other node has expired."""
        while (await self._states() or {}).get(other.server.home.name) == "live":  # noqa: ASYNC110 -- as above
            await asyncio.sleep(PAUSE_S)

    async def _states(self) -> dict[str, str] | None:
        wire = Wire(self.address)
        try:
            status, nodes = await wire.call("GET", "/nodes")
            return {node["name"]: node["state"] for node in nodes} if status == 200 else None
        except Lost:
            return None
        finally:
            wire.close()


@asynccontextmanager
async def two_faulty_nodes(
    home: Path, postgres: PostgresServer, endpoint_url: str, config: str
) -> AsyncIterator[tuple[FaultyNode, FaultyNode]]:
    nodes = Nodes(home, postgres.tcp_url(), endpoint_url, LEASE_S)
    made = []
    proxies = []
    try:
        for name in ("a", "b"):
            port = free_port()
            database, incoming = TcpProxy(postgres.port), TcpProxy(port)
            for proxy in (database, incoming):
                proxies.append(await proxy.__aenter__())
            store = nodes.store.replace(postgres.tcp_url(), postgres.tcp_url(database.port))
            options = ("--store", store, "--node-url", f"http://127.0.0.1:{incoming.port}")
            server = await asyncio.to_thread(nodes.add, name, config=config, options=options, port=port)
            server.checks_stalls = False  # a paused process stalls
            made.append(FaultyNode(server, nodes.store, port, nodes.token, database, incoming))
        yield made[0], made[1]
    finally:
        nodes.stop()
        for proxy in proxies:
            await proxy.__aexit__()


# --- what happens to a node. The other one runs. ---------------------------------------------------------------------


async def killed(node: FaultyNode, other: FaultyNode) -> None:
    node.server.kill()
    await other.until_lost(node)
    await node.start()


async def killed_and_started_at_once(node: FaultyNode, other: FaultyNode) -> None:
    node.server.kill()
    await node.start()


async def paused(node: FaultyNode, other: FaultyNode) -> None:
    """Stopped for longer than its lease: it wakes up as a zombie."""
    before = node.restarts
    node.signal(signal.SIGSTOP)
    try:
        await other.until_lost(node)
    finally:
        node.signal(signal.SIGCONT)
    await until(lambda: node.restarts > before)


async def paused_for_a_moment(node: FaultyNode, other: FaultyNode) -> None:
    node.signal(signal.SIGSTOP)
    try:
        await asyncio.sleep(SHORT_S)
    finally:
        node.signal(signal.SIGCONT)


async def database_silent(node: FaultyNode, other: FaultyNode) -> None:
    """Its statements arrive, and the answers do not: it cannot renew its lease."""
    before = node.restarts
    node.database.from_server.clear()
    try:
        await until(lambda: node.restarts > before)
    finally:
        node.database.from_server.set()


async def database_late(node: FaultyNode, other: FaultyNode) -> None:
    """Its statements arrive after its lease has expired, and the other node has its workspaces."""
    node.database.to_server.clear()
    try:
        await other.until_lost(node)
    finally:
        node.database.to_server.set()


async def database_cut(node: FaultyNode, other: FaultyNode) -> None:
    node.database.cut()


async def database_half_closed(node: FaultyNode, other: FaultyNode) -> None:
    node.database.half_close()


async def nodes_cut(node: FaultyNode, other: FaultyNode) -> None:
    node.incoming.cut()


async def nodes_half_closed(node: FaultyNode, other: FaultyNode) -> None:
    node.incoming.half_close()


async def nodes_held_up(node: FaultyNode, other: FaultyNode) -> None:
    node.incoming.from_server.clear()
    try:
        await asyncio.sleep(SHORT_S)
    finally:
        node.incoming.from_server.set()


#: The first three are those of a small proof.
FAULTS: tuple[Callable[[FaultyNode, FaultyNode], Awaitable[None]], ...] = (
    paused,
    killed,
    database_late,
    nodes_cut,
    database_cut,
    database_silent,
    killed_and_started_at_once,
    nodes_held_up,
    database_half_closed,
    paused_for_a_moment,
    nodes_half_closed,
)


def fault_of(number: int) -> Callable[[FaultyNode, FaultyNode], Awaitable[None]]:
    return FAULTS[number % len(FAULTS)]


async def inflict(number: int, nodes: tuple[FaultyNode, FaultyNode], chance: random.Random) -> str:
    """Let a fault happen to one of the nodes, wait until both are healthy, and return its name."""
    fault = fault_of(number)
    node, other = nodes if chance.randrange(2) else nodes[::-1]
    await fault(node, other)
    for one in nodes:
        await one.until_healthy()
    return fault.__name__.replace("_", " ")
