"""The store of one node of a simulated cluster: what it sends to the database takes time, and may get no answer.

The database executes each request that has reached it, even if the node is paused or killed meanwhile.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from kedge.core.records import WorkspaceRecord
from kedge.errors import LeaseLost, StoreUnavailable
from kedge.store.base import Write
from kedge.store.leases import Claimed, HeldBy, NodeInfo, NodeLoad, NodeState
from kedge.store.memory import MemoryData, MemoryStore
from kedge.store.memory_leases import MemoryLeases
from kedge.waiting import retrieve_exception
from proof.sim.lease_checks import LeaseChecks
from proof.sim.loop import outside
from proof.sim.store import WRITE_S, Faults, FaultyStore

T = TypeVar("T")

#: The time of a lease. Short, so that schedules are short; longer than a slow request. Seconds.
LEASE_S = 4.0
#: The longest that a request to a slow database takes, and its answer. Seconds.
LATE_S = 1.5


class StoreLink:
    """The connection of one node to the database, with its faults."""

    def __init__(self, rng: random.Random, counts: Counter[str]) -> None:
        self.rng = rng
        self.counts = counts
        self.repair()

    def repair(self) -> None:
        #: Nothing reaches the database until this time of the loop; requests and answers are late until this one.
        self.away_until = self.late_until = 0.0
        #: The probability that an answer is lost.
        self.lost_rate = 0.0

    def check(self) -> None:
        if asyncio.get_running_loop().time() < self.away_until:
            self.counts["store out of reach of one node"] += 1
            raise StoreUnavailable("the store is out of reach of this node")

    async def travel(self) -> None:
        """Take the time of a request or an answer."""
        if asyncio.get_running_loop().time() < self.late_until:
            self.counts["store answers late"] += 1
            await asyncio.sleep(self.rng.random() ** 2 * LATE_S)

    async def read(self) -> None:
        self.check()
        await self.travel()

    async def change(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return the answer of the database to a change, which happens even if the answer is lost."""
        self.check()

        async def arrive() -> T:
            await self.travel()
            return await work()

        # In a context outside of the process: it may be paused or killed now.
        changing = asyncio.get_running_loop().create_task(arrive(), context=outside())
        changing.add_done_callback(retrieve_exception, context=outside())
        result = await asyncio.shield(changing)
        await self.travel()
        self.check()
        if self.lost_rate and self.rng.random() < self.lost_rate:
            self.counts["store answer lost"] += 1
            raise StoreUnavailable("the answer of the store was lost")
        return result


class NodeLeases(MemoryLeases):
    def __init__(
        self, data: MemoryData, clock: Callable[[], int], incarnation: str, link: StoreLink, checks: LeaseChecks
    ) -> None:
        super().__init__(data, clock, incarnation, LEASE_S)
        self._link = link
        self._checks = checks
        #: The workspaces that it has not released.
        self.held: set[str] = set()

    def check(self, workspace_id: str) -> None:
        try:
            super().check(workspace_id)
        except LeaseLost:
            self._link.counts["write without a lease refused"] += 1
            raise

    async def register(self, node: NodeInfo) -> None:
        async def register() -> None:
            await MemoryLeases.register(self, node)
            self._checks.registered(node)

        await self._link.change(register)

    async def heartbeat(self, load: NodeLoad) -> None:
        async def extend() -> None:
            await MemoryLeases.heartbeat(self, load)
            self._checks.renewed(self.incarnation)

        await self._link.change(extend)

    async def unregister(self) -> None:
        async def remove() -> None:
            await MemoryLeases.unregister(self)
            self._checks.left(self.incarnation)

        await self._link.change(remove)

    async def claim(self, workspace_id: str) -> Claimed | HeldBy:
        async def claim() -> Claimed | HeldBy:
            known = dict(self._tokens)
            result = await MemoryLeases.claim(self, workspace_id)
            self._tokens = known  # until the answer arrives
            if isinstance(result, Claimed):
                self._checks.claimed(self.incarnation, result.token)
            return result

        result = await self._link.change(claim)
        if isinstance(result, Claimed):
            self._tokens[workspace_id] = result.token
            self.held.add(workspace_id)
        return result

    async def release(self, workspace_id: str) -> None:
        self.held.discard(workspace_id)

        async def release() -> None:
            await MemoryLeases.release(self, workspace_id)
            self._checks.released(self.incarnation)

        await self._link.change(release)

    async def nodes(self) -> list[NodeState]:
        await self._link.read()
        return await super().nodes()

    async def holder(self, workspace_id: str) -> NodeInfo | None:
        await self._link.read()
        return await super().holder(workspace_id)

    async def orphans(self, limit: int) -> list[WorkspaceRecord]:
        await self._link.read()
        return await super().orphans(limit)


class SharedStore(FaultyStore):
    def __init__(
        self,
        data: MemoryData,
        faults: Faults,
        leases: NodeLeases,
        link: StoreLink,
        checks: LeaseChecks,
        on_lease_lost: Callable[[str], None],
    ) -> None:
        super().__init__(data, faults, leases)
        self._held = leases.held
        self._incarnation = leases.incarnation
        self._link = link
        self._checks = checks
        self._on_lease_lost = on_lease_lost

    async def _reach(self) -> None:
        await super()._reach()
        await self._link.read()

    async def _send(self, write: Write) -> tuple[int, int]:
        number = self._faults.check_before()

        async def arrive() -> int:
            await asyncio.sleep(self._faults.rng.random() ** 3 * WRITE_S)
            return await MemoryStore.append(self, write)

        try:
            return number, await self._link.change(arrive)
        except LeaseLost as error:
            if write.workspace_id in self._held:
                self._on_lease_lost(error.message)
            raise

    def _append(self, write: Write) -> int:
        head = super()._append(write)
        self._checks.written(self._incarnation, write)
        return head

    async def workspace(self, path: str, new: WorkspaceRecord) -> WorkspaceRecord:
        await self._link.read()
        return await super().workspace(path, new)
