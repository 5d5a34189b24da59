"""Leases on the data of memory stores, for simulations: several stores may then be open on the same data."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kedge.core.records import WorkspaceRecord
from kedge.store import codec, leases
from kedge.store.leases import Claimed, HeldBy, NodeInfo, NodeLoad, NodeState

if TYPE_CHECKING:
    from kedge.store.memory import MemoryData


@dataclass(slots=True)
class StoredNode:
    info: NodeInfo
    load: NodeLoad
    started_at: int
    expires_at: int


@dataclass(slots=True)
class StoredLease:
    holder: str = ""
    token: int = 0


class MemoryLeases:
    """`clock` returns the time of the shared data in milliseconds, whatever the clock of the node shows."""

    def __init__(
        self, data: MemoryData, clock: Callable[[], int], incarnation: str, lease_s: float = leases.LEASE_S
    ) -> None:
        self._data, self._clock, self._lease_ms = data, clock, int(lease_s * 1000)
        self.incarnation = incarnation
        self._name = ""
        self._tokens: dict[str, int] = {}

    def check(self, workspace_id: str) -> None:
        """Raise LeaseLost if this store must not write to the workspace."""
        lease = self._data.leases.get(workspace_id, StoredLease())
        if lease.holder not in ("", self.incarnation) or self._tokens.get(workspace_id, lease.token) != lease.token:
            raise leases.lease_lost(workspace_id)

    async def register(self, node: NodeInfo) -> None:
        if node.incarnation != self.incarnation:
            raise leases.other_incarnation()
        await asyncio.sleep(0)
        now, known = self._clock(), self._data.nodes.get(node.name)
        is_same = known is None or known.info.host_id == node.host_id or known.info.incarnation == node.incarnation
        if known is not None and known.expires_at > now and not is_same:
            raise leases.name_in_use(node.name)
        self._name = node.name
        self._data.nodes[node.name] = StoredNode(node, NodeLoad(), now, now + self._lease_ms)
        dead = [name for name, one in self._data.nodes.items() if one.expires_at < now - leases.DEAD_NODE_S * 1000]
        for name in dead:
            del self._data.nodes[name]

    async def heartbeat(self, load: NodeLoad) -> None:
        await asyncio.sleep(0)
        node = self._own_node()
        if node.expires_at <= self._clock():
            raise leases.node_replaced(self._name)
        node.load, node.expires_at = load, self._clock() + self._lease_ms

    async def unregister(self) -> None:
        await asyncio.sleep(0)
        self._data.nodes = {
            name: node for name, node in self._data.nodes.items() if node.info.incarnation != self.incarnation
        }
        for lease in self._data.leases.values():
            if lease.holder == self.incarnation:
                lease.holder = ""

    async def nodes(self) -> list[NodeState]:
        now = self._clock()
        held = [lease.holder for lease in self._data.leases.values()]
        states = [
            NodeState(node.info, node.load, node.expires_at > now, node.started_at, held.count(node.info.incarnation))
            for _, node in sorted(self._data.nodes.items())
        ]
        await asyncio.sleep(0)
        return states

    async def claim(self, workspace_id: str) -> Claimed | HeldBy:
        await asyncio.sleep(0)
        if workspace_id not in self._data.logs:
            raise codec.unknown_workspace(workspace_id)
        if self._own_node().expires_at <= self._clock():
            raise leases.node_expired(self._name)
        lease = self._data.leases.setdefault(workspace_id, StoredLease())
        if lease.holder != self.incarnation and (node := self._alive(lease.holder)) is not None:
            return HeldBy(node)
        lease.holder, lease.token = self.incarnation, lease.token + 1
        self._tokens[workspace_id] = lease.token
        return Claimed(lease.token)

    async def release(self, workspace_id: str) -> None:
        await asyncio.sleep(0)
        lease = self._data.leases.get(workspace_id)
        if lease is not None and lease.holder == self.incarnation:
            lease.holder = ""

    async def holder(self, workspace_id: str) -> NodeInfo | None:
        node = self._alive(self._data.leases.get(workspace_id, StoredLease()).holder)
        await asyncio.sleep(0)
        return node

    async def orphans(self, limit: int) -> list[WorkspaceRecord]:
        live = {run.workspace_id for run in self._data.live.values()}
        result = [
            self._data.logs[workspace_id].record
            for workspace_id in sorted(live & self._data.logs.keys())
            if self._alive(self._data.leases.get(workspace_id, StoredLease()).holder) is None
        ]
        await asyncio.sleep(0)
        return result[: max(limit, 0)]

    def _own_node(self) -> StoredNode:
        for node in self._data.nodes.values():
            if node.info.incarnation == self.incarnation:
                return node
        raise leases.node_replaced(self._name)

    def _alive(self, incarnation: str) -> NodeInfo | None:
        now = self._clock()
        nodes = (node for node in self._data.nodes.values() if node.info.incarnation == incarnation)
        return next((node.info for node in nodes if node.expires_at > now), None)
