"""The nodes of a simulated cluster: real engines, leases and forwarding, on one store.

A node that is paused wakes up as a zombie, whose lease others may have taken. One that gives up its lease starts again,
as `server/membership.py` does with its process. Each node has clocks of its own.
"""

from __future__ import annotations

import asyncio
import random
from contextvars import ContextVar
from typing import Any

import httpx2

from kedge.engine.engine import Engine
from kedge.engine.placement import Leased, Placement
from kedge.server.auth import NODE_SCHEME, Gate
from kedge.server.cluster_node import ClusterNode
from kedge.server.forwarding import ClusterSecret, Forwarder
from kedge.store.leases import NodeInfo
from proof.sim.lease_checks import LeaseChecks
from proof.sim.loop import SimProcess
from proof.sim.network import App, SimTransport
from proof.sim.plan import HOLDER, Act
from proof.sim.server import BOOT_S, Shared, SimServer
from proof.sim.shared_store import LEASE_S, NodeLeases, SharedStore, StoreLink
from proof.sim.state import SimClock
from proof.sim.store import FaultyStore

SECRET = ClusterSecret.of("a secret that all nodes of a simulation share")
#: The duration of a command that hangs: longer than any lease. Seconds.
HANG_S = 15.0
#: The speed of a node's clock differs from that of the database by at most this part of it: a bit less than the design
#: allows (`SURE_PART` in server/cluster_node.py). Ratio.
DRIFT = 0.08
#: The clocks of two nodes differ by at most twice this, which is within the 60 s of docs/cluster.md. Seconds.
SKEW_S = 29.0
#: A process that was paused has started again after this time, if it has to: other calls may run first. Seconds.
AWAKE_S = 2.0
#: Nodes reach each other at these addresses.
_PORT = 7000
#: Whether another node forwarded the request of this task.
_forwarded: ContextVar[bool] = ContextVar("forwarded", default=False)


class SimNode(SimServer):
    def __init__(self, shared: Shared, number: int, checks: LeaseChecks) -> None:
        super().__init__(shared, f"n{number}")
        self.url = f"http://localhost:{_PORT + number}"
        self._checks = checks
        rng = random.Random(f"clocks of node {number} of {shared.state.plan.seed}")
        # The engine must not compare its clock with that of another node, so they may differ by days.
        self.clock = SimClock(self.loop, rng.choice((0, 0, -1, 1)))
        #: How far its clock is off for signatures.
        self._skew_s = (2 * rng.random() - 1) * SKEW_S
        self._booted_at, self._speed = rng.random() * 1e6, 1 + (2 * rng.random() - 1) * DRIFT
        self.link = StoreLink(shared.state.rng, shared.state.counts)
        self.machine.hang_s = HANG_S
        self.machine.loop_time = self._loop_time
        self.machine.on_start = lambda command: checks.tool_started(self.incarnation, command)
        self._node: ClusterNode | None = None
        self.forwarder: Forwarder | None = None
        self._woken_at = -AWAKE_S

    # --- its state, for the checks -------------------------------------------------------------------------------

    @property
    def incarnation(self) -> str:
        return f"{self.name}.{self.boots}" if self.process is not None else ""

    @property
    def is_sure(self) -> bool:
        return self._node is not None and self._node.is_sure

    @property
    def is_running(self) -> bool:
        if self.process is None or self.engine is None or self.engine.is_closing:
            return False
        return not self.process.is_paused and self.loop.time() > self._woken_at + AWAKE_S

    @property
    def is_serving(self) -> bool:
        return self.engine is not None and bool(self.engine.workspaces.all())

    @property
    def tools(self) -> list[str]:
        return self.machine.alive

    # --- clocks --------------------------------------------------------------------------------------------------

    def _boot_time(self) -> float:
        return self._booted_at + self.loop.time() * self._speed

    def _loop_time(self, boot_time: float) -> float:
        return (boot_time - self._booted_at) / self._speed

    def _now_s(self) -> float:
        return 1e9 + self._skew_s + self.loop.time()

    # --- its parts -----------------------------------------------------------------------------------------------

    def _open_store(self, process: SimProcess) -> tuple[FaultyStore, Placement]:
        data, faults, link, checks = self.state.data, self.shared.faults, self.link, self._checks

        def clock() -> int:
            return int(self.loop.time() * 1000)

        leases = self._leases = NodeLeases(data, clock, self.incarnation, link, checks)
        store = SharedStore(data, faults, leases, link, checks, lambda reason: self._give_up(process, reason))
        self._placement = Leased(leases, ("/",))
        return store, self._placement

    def _join(self, engine: Engine, gate: Gate) -> Forwarder:
        process = self.process
        assert process is not None
        info = NodeInfo(self.name, self.url, ("/",), self.incarnation, "")
        node = self._node = ClusterNode(
            self._leases,
            info,
            LEASE_S,
            engine,
            self.machine,
            lambda reason: self._give_up(process, reason),
            self._boot_time,
        )
        forwarder = self.forwarder = Forwarder(engine, node, SECRET, self._connect, self._now_s)
        gate.verify_node = forwarder.verify

        async def leave() -> None:
            await node.close()
            await forwarder.close()

        self._placement.leave = leave
        return forwarder

    def _connect(self, url: str) -> NodeTransport:
        number = int(url.rpartition(":")[2]) - _PORT
        return NodeTransport(self, f"n{number}")

    # --- faults --------------------------------------------------------------------------------------------------

    def _give_up(self, process: SimProcess, reason: str) -> None:
        """Start again, as a process that replaces itself."""
        if process.is_dead:
            return
        self.state.counts["node gave up its leases"] += 1
        self.state.crashed_at.append(self.loop.time())
        self.lose(process)
        self._boot_later(BOOT_S)

    def lose(self, process: SimProcess) -> None:
        super().lose(process)
        self._node = None

    async def close(self) -> None:
        for _ in range(10):  # it may be starting again, since its last renewal was late
            if self.engine is None:
                await asyncio.sleep(BOOT_S)
        await super().close()

    async def pause(self, for_s: float) -> None:
        process = self.process
        if process is None or process.is_paused:
            return
        self.state.counts["node paused"] += 1
        self.state.node_pauses.append((self.name, self.loop.time(), self.loop.time() + for_s))
        process.pause()
        await asyncio.sleep(for_s)
        self.wake()

    def wake(self) -> None:
        if self.process is not None and self.process.is_paused:
            self._woken_at = self.loop.time()
            self.loop.resume(self.process)

    # --- requests ------------------------------------------------------------------------------------------------

    def _served(self, app: App) -> App:
        """Check that a node that is not sure of its leases serves no request, and that none is forwarded twice."""

        async def serve(scope: Any, receive: Any, send: Any) -> None:
            _forwarded.set(any(value.startswith(NODE_SCHEME) for _, value in scope["headers"]))
            was_sure = self.is_sure

            async def sending(message: Any) -> None:
                status = message.get("status", 503)
                if not was_sure and status < 400:
                    self.report(f"{scope['path']} was answered with {status} by a node that is not sure")
                if message.get("more_body") and not self.is_sure:
                    self.report(f"{scope['path']} was continued by a node that is not sure")
                await send(message)

            await app(scope, receive, sending)

        return serve

    def _check_closed(self, engine: Engine) -> None:
        super()._check_closed(engine)
        self._checks.closed(self.incarnation)


class NodeTransport(SimTransport):
    """The connections of one node to another one."""

    def __init__(self, node: SimNode, address: str) -> None:
        super().__init__(node.network, node.name, address)
        self._node = node

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if _forwarded.get():
            self._node.report(f"{request.url.path} was forwarded twice")
        return await super().handle_async_request(request)


class SimCluster:
    def __init__(self, shared: Shared) -> None:
        self.state = state = shared.state
        self.checks = LeaseChecks(state, shared.broken, LEASE_S)
        self.nodes = [SimNode(shared, number, self.checks) for number in range(state.plan.nodes)]
        self.checks.nodes = {node.name: node for node in self.nodes}
        names = [node.name for node in self.nodes]
        state.network.choose = lambda: state.rng.choice(names)

    def target(self, act: Act) -> SimNode:
        """Return the node that has the fault."""
        node = self._target(act)
        self.checks.disturbed.add(node.name)
        return node

    def _target(self, act: Act) -> SimNode:
        if act.node != HOLDER:
            return self.nodes[act.node]
        holder = self.checks.claimer.partition(".")[0]
        return next((node for node in self.nodes if node.name == holder), self.nodes[0])

    async def begin(self, act: Act) -> None:
        node, loop = self.target(act), self.state.loop
        match act.kind:
            case "node_pause":
                await node.pause(act.for_s)
            case "node_store":
                link, until = node.link, loop.time() + act.for_s
                away, late, lost = act.rates
                link.away_until = max(link.away_until, until * away)
                link.late_until = max(link.late_until, until * late)
                link.lost_rate = lost
                await asyncio.sleep(act.for_s)
                link.lost_rate = 0.0
            case "link_down":
                self.state.counts["link between nodes down"] += 1
                for other in self.nodes:
                    if other is not node:
                        self.state.network.take_down(node.name, other.name, act.for_s)
                        self.state.network.take_down(other.name, node.name, act.for_s * act.rates[0])

    def repair(self) -> None:
        """Stop all faults, and start the nodes that are down."""
        for node in self.nodes:
            node.link.repair()
            node.wake()
            if node.process is None:
                node.boot()
