"""This node's part in a cluster: it renews its row, knows the other nodes, and takes over what lost nodes have left.

A node that could not renew its row in time has lost its leases, and others may have them. It does not try to continue:
it ends at once, with its processes, as after a `kill -9`, and starts again. So there is one way to lose work, which
recovery handles in any case.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

from msgspec.structs import replace

from kedge.engine.engine import Engine
from kedge.engine.ports import Machine
from kedge.errors import KedgeError, LeaseLost, NodeReplaced, NodeUnreachable, StoreUnavailable
from kedge.store.leases import Leases, NodeInfo, NodeLoad, NodeState
from kedge.waiting import wait_uncancelled

log = logging.getLogger("kedge.server")

#: Renewals within the time of a lease: some may fail before it is lost. Items.
RENEWALS_PER_LEASE = 5
#: The part of a lease after which a node that could not renew it gives up: before any other node may take it over, with
#: clocks that differ in speed. Ratio.
SURE_PART = 0.9


class ClusterNode:
    def __init__(
        self,
        leases: Leases,
        info: NodeInfo,
        lease_s: float,
        engine: Engine,
        machine: Machine,
        lost: Callable[[str], None],
        boot_time: Callable[[], float] | None = None,
    ) -> None:
        """`lost` ends the process; its argument is the reason. `boot_time` is for a simulated clock."""
        self._boot_time = boot_time or _boot_time
        self._leases = leases
        self.info = info
        self._lease_s = lease_s
        self._engine = engine
        self._machine = machine
        #: Calls back when nodes release workspaces: a hint.
        self.listen: Callable[[Callable[[frozenset[str]], None]], None] = lambda callback: None
        #: Reads the users again: other nodes may have changed them.
        self.refresh_users: Callable[[], Awaitable[None]] = _no_refresh
        #: Returns the number of open streams.
        self.streams: Callable[[], int] = lambda: 0
        self._lost = lost
        self._tasks: set[asyncio.Task[None]] = set()
        #: The other live nodes by name, as of the last renewal.
        self._others: dict[str, NodeInfo] = {}
        #: By incarnation: done when a node is known to be dead.
        self._dead: dict[str, asyncio.Future[None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        #: By the clock that also counts while the machine is suspended.
        self._sure_until = 0.0
        self._woken = asyncio.Event()

    # --- life cycle ----------------------------------------------------------------------------------------------

    async def start(self, url: str, host_id: str) -> None:
        """Register, and renew from now on. `url`: unless it was configured."""
        self.info = replace(self.info, url=self.info.url or url, host_id=host_id)
        began = self._boot_time()
        await self._leases.register(self.info)
        self._renewed(began)
        await self._learn()
        self.listen(lambda _: self._woken.set())
        self._spawn(self._renew_for_ever())
        self._spawn(self._take_over_for_ever())
        self._spawn(self._refresh_for_ever())

    async def close(self) -> None:
        """Leave the cluster: its leases end, and other nodes continue with what it has queued."""
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()
        await wait_uncancelled(self._tasks)
        with suppress(KedgeError):  # the leases expire
            await self._leases.unregister()

    @property
    def is_sure(self) -> bool:
        """True if no other node can have a lease of this node. A process that was stopped is not sure."""
        return self._boot_time() < self._sure_until

    # --- renewal -------------------------------------------------------------------------------------------------

    async def _renew_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._lease_s / RENEWALS_PER_LEASE)
            began = self._boot_time()
            try:
                async with asyncio.timeout(self._lease_s / 2):
                    await self._leases.heartbeat(self._load())
            except (NodeReplaced, LeaseLost) as error:
                self._lost(error.message)
                return
            except (StoreUnavailable, TimeoutError) as error:
                log.warning("the lease of node %s could not be renewed: %s", self.info.name, str(error) or "no answer")
                continue
            if not self.is_sure:
                self._lost(f"node {self.info.name} was paused for longer than its lease")
                return
            self._renewed(began)
            with suppress(StoreUnavailable):
                await self._learn()

    def _renewed(self, began: float) -> None:
        """The lease counts from before the request: the database may have answered late."""
        self._sure_until = began + SURE_PART * self._lease_s
        self._machine.stay_alive(self._sure_until)
        if self._timer is not None:
            self._timer.cancel()
        reason = f"node {self.info.name} could not renew its lease for {self._lease_s:g} s"
        rest_s = max(self._sure_until - self._boot_time(), 0.0)
        self._timer = asyncio.get_running_loop().call_later(rest_s, self._lost, reason)

    def _load(self) -> NodeLoad:
        workspaces = self._engine.workspaces.all()
        return NodeLoad(sum(len(one.live_runs()) for one in workspaces), len(workspaces), self.streams())

    # --- other nodes ---------------------------------------------------------------------------------------------

    async def nodes(self) -> list[NodeState]:
        return await self._leases.nodes()

    async def _learn(self) -> None:
        states = await self._leases.nodes()
        alive = {state.info.name: state.info for state in states if state.is_alive and state.info != self.info}
        self._others = {name: info for name, info in alive.items() if info.incarnation != self.info.incarnation}
        live = {info.incarnation for info in self._others.values()}
        for incarnation in [known for known in self._dead if known not in live]:
            self._dead.pop(incarnation).set_result(None)

    def death_of(self, node: NodeInfo) -> asyncio.Future[None]:
        """Return a future that is done when this incarnation of a node is dead."""
        return self._dead.setdefault(node.incarnation, asyncio.get_running_loop().create_future())

    @property
    def others(self) -> list[NodeInfo]:
        return [self._others[name] for name in sorted(self._others)]

    async def _refresh_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._lease_s / RENEWALS_PER_LEASE)
            await self.refresh_users()

    async def holder(self, workspace_id: str) -> NodeInfo | None:
        """Return the other live node that serves the workspace."""
        node = await self._leases.holder(workspace_id)
        return None if node is None or node.incarnation == self.info.incarnation else node

    async def by_name(self, name: str) -> NodeInfo:
        """Return another live node. It may have registered, or started again, a moment ago."""
        await self._learn()
        if name not in self._others:
            raise NodeUnreachable(f"Node {name} was lost. Try again in a moment.")
        return self._others[name]

    # --- take-over -----------------------------------------------------------------------------------------------

    async def _take_over_for_ever(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._lease_s / RENEWALS_PER_LEASE):
                    await self._woken.wait()
            self._woken.clear()
            try:
                await self._engine.take_over()
            except KedgeError as error:
                log.warning("workspaces of lost nodes were not taken over: %s", error.message)

    def _spawn(self, work: object) -> None:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)  # type: ignore[arg-type]
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _no_refresh() -> None:
    """The default of `refresh_users`: a simulated node has only its owner."""


def _boot_time() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
