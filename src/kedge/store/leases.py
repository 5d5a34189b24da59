"""Leases: the node of a cluster that serves a workspace.

The row of a workspace names its holder, the incarnation of a store, and has a token, which each claim raises. A lease
is valid while the row of the holder's node is alive: `heartbeat` extends it, on the clock of the database.

Every write of a workspace compares both, under the lock of its row. So a node that was paused, and whose lease was
taken meanwhile, writes nothing: it gets `LeaseLost`. A workspace without a holder may be written by every store: a
single server needs no leases. A node whose lease has expired may write until another node claims the workspace.
"""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from kedge.core.records import WorkspaceRecord
from kedge.errors import LeaseLost, NodeReplaced, StoreError, StoreUnavailable

#: The time for which a heartbeat extends the leases of a node. Seconds.
LEASE_S = 15.0
#: The time after which the row of a dead node is removed. Seconds.
DEAD_NODE_S = 24 * 3600.0


class NodeInfo(Struct, frozen=True):
    name: str
    #: The address by which other nodes reach it.
    url: str
    #: The directories whose workspaces it can serve.
    roots: tuple[str, ...]
    #: The incarnation of its store: a node that starts again has another one.
    incarnation: str
    #: The id of its data directory, which one process locks: a later incarnation proves that the earlier one has ended.
    host_id: str


class NodeLoad(Struct, frozen=True):
    live_runs: int = 0
    workspaces: int = 0
    streams: int = 0


class NodeState(Struct, frozen=True):
    info: NodeInfo
    load: NodeLoad
    is_alive: bool
    #: Milliseconds since the epoch.
    started_at: int
    #: The workspaces that it holds.
    workspaces: int


class Claimed(Struct, frozen=True):
    token: int


class HeldBy(Struct, frozen=True):
    node: NodeInfo


class Leases(Protocol):
    """The leases of one node."""

    @property
    def incarnation(self) -> str: ...

    async def register(self, node: NodeInfo) -> None:
        """Add this node, or replace an earlier incarnation of it.

        StoreError if a node of this name is alive elsewhere, with another `host_id`."""

    async def heartbeat(self, load: NodeLoad) -> None:
        """Extend the leases of this node by the lease time from now.

        NodeReplaced if it has no row any more, or if its row has expired: others may have taken its workspaces."""

    async def unregister(self) -> None:
        """Remove this node, and release all its workspaces."""

    async def nodes(self) -> list[NodeState]:
        """Return the nodes by name, also dead ones for a day."""
        ...

    async def claim(self, workspace_id: str) -> Claimed | HeldBy:
        """Make this node the holder, unless another live node is. Each claim raises the token.

        WorkspaceNotFound if it is unknown. StoreUnavailable if the row of this node has expired: a heartbeat extends
        it. NodeReplaced if this node has no row."""
        ...

    async def release(self, workspace_id: str) -> None:
        """Leave the workspace without a holder, if this node is its holder."""

    async def holder(self, workspace_id: str) -> NodeInfo | None:
        """Return the live node that holds the workspace."""
        ...

    async def orphans(self, limit: int) -> list[WorkspaceRecord]:
        """Return workspaces with live Runs that no live node holds, by id."""
        ...


# Errors with the same text in all stores.


def lease_lost(workspace_id: str) -> LeaseLost:
    return LeaseLost(f"workspace {workspace_id} is served by another node now; send the request to that node")


def name_in_use(name: str) -> StoreError:
    return StoreError(f"a node named {name} is running elsewhere; choose another --node name")


def node_replaced(name: str) -> NodeReplaced:
    return NodeReplaced(f"node {name} is not registered any more, or runs in another process; start this server again")


def node_expired(name: str) -> StoreUnavailable:
    return StoreUnavailable(f"node {name} has not renewed its leases in time; it claims workspaces after a heartbeat")


def other_incarnation() -> StoreError:
    return StoreError("a node must have the incarnation of its store")
