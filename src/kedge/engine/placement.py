"""The placement of workspaces: with the only server, or with one node of a cluster.

At most one node serves a workspace, because its directory, processes and stream are in one place. Requests to other
nodes are forwarded to it (`server/forwarding.py`).
"""

from __future__ import annotations

import posixpath
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

from kedge.core.records import WorkspaceRecord
from kedge.engine.workspace import no_node
from kedge.errors import ServedElsewhere
from kedge.store.base import Store
from kedge.store.leases import HeldBy, Leases, NodeInfo

#: Workspaces with live Runs that a node takes over in one pass. Items.
ORPHANS_MAX = 100


class Placement(Protocol):
    #: True if other processes may serve workspaces of the store.
    is_shared: bool

    @property
    def held(self) -> frozenset[str]:
        """The workspaces whose lease this process may have: an answer of the store may have been lost."""
        ...

    async def locate(self, path: str) -> None:
        """Raise ServedElsewhere, or NoNode, if this process does not serve this directory."""

    async def without_node(self, paths: Iterable[str]) -> set[str]:
        """Return the directories that no live node serves."""
        ...

    async def acquire(self, workspace_id: str) -> None:
        """Make this process the one that serves the workspace. ServedElsewhere if a live node does."""

    async def release(self, workspace_id: str) -> None:
        """Let other nodes serve the workspace, after this process has closed it."""

    async def unserved(self) -> list[WorkspaceRecord]:
        """Return the workspaces with live Runs that this process should recover."""
        ...

    async def close(self) -> None:
        """Leave the cluster, before the store is closed: other nodes continue at once with what is queued."""


class OneServer:
    """The only server of a store, which its lock ensures."""

    is_shared = False
    held: frozenset[str] = frozenset()

    def __init__(self, store: Store) -> None:
        self._store = store

    async def locate(self, path: str) -> None: ...

    async def without_node(self, paths: Iterable[str]) -> set[str]:
        return set()

    async def acquire(self, workspace_id: str) -> None: ...

    async def release(self, workspace_id: str) -> None: ...

    async def unserved(self) -> list[WorkspaceRecord]:
        return await self._store.live_workspaces()

    async def close(self) -> None: ...


class Leased:
    """A node that serves the workspaces whose leases it has."""

    is_shared = True

    def __init__(self, leases: Leases, roots: tuple[str, ...]) -> None:
        self._leases = leases
        self._roots = roots
        self._held: set[str] = set()
        #: Leaves the cluster.
        self.leave: Callable[[], Awaitable[None]] = leases.unregister

    @property
    def held(self) -> frozenset[str]:
        return frozenset(self._held)

    async def locate(self, path: str) -> None:
        if is_served(self._roots, path):
            return
        for state in await self._leases.nodes():
            if state.is_alive and is_served(state.info.roots, path):
                raise _elsewhere(path, state.info)
        raise no_node(path)

    async def without_node(self, paths: Iterable[str]) -> set[str]:
        missing = {path for path in paths if not is_served(self._roots, path)}
        roots = [state.info.roots for state in await self._leases.nodes() if state.is_alive] if missing else []
        return {path for path in missing if not any(is_served(one, path) for one in roots)}

    async def acquire(self, workspace_id: str) -> None:
        self._held.add(workspace_id)
        claim = await self._leases.claim(workspace_id)
        if isinstance(claim, HeldBy):
            self._held.discard(workspace_id)
            raise _elsewhere(f"Workspace {workspace_id}", claim.node)

    async def release(self, workspace_id: str) -> None:
        await self._leases.release(workspace_id)
        self._held.discard(workspace_id)

    async def unserved(self) -> list[WorkspaceRecord]:
        return [record for record in await self._leases.orphans(ORPHANS_MAX) if is_served(self._roots, record.path)]

    async def close(self) -> None:
        await self.leave()


def is_served(roots: tuple[str, ...], path: str) -> bool:
    """Return whether a node with these roots serves this directory, by its name: links may lead elsewhere."""
    path = posixpath.normpath(path)
    return any(path == root or path.startswith(root.rstrip("/") + "/") for root in roots)


def _elsewhere(what: str, node: NodeInfo) -> ServedElsewhere:
    return ServedElsewhere(f"{what} is served by node {node.name}. Send the request there.", node.name)
