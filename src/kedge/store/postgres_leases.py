"""Leases in the PostgreSQL database, on its clock."""

from __future__ import annotations

from typing import Any

import msgspec

from kedge.core.records import WorkspaceRecord
from kedge.store import codec, leases
from kedge.store.leases import Claimed, HeldBy, NodeInfo, NodeLoad, NodeState
from kedge.store.postgres_connect import PostgresConnection
from kedge.store.postgres_database import PostgresDatabase

_ALIVE = "expires_at > clock_timestamp()"
_IS_HELD = f"EXISTS (SELECT 1 FROM nodes WHERE incarnation = workspaces.holder AND {_ALIVE})"


class PostgresLeases:
    """`lease_s`: the time for which a heartbeat extends the leases of the node."""

    def __init__(self, database: PostgresDatabase, lease_s: float) -> None:
        self._database = database
        self._fence = database.fence
        self._lease_s = lease_s
        self._name = ""

    async def register(self, node: NodeInfo) -> None:
        if node.incarnation != self._fence.incarnation:
            raise leases.other_incarnation()
        self._name = node.name
        await self._database.change(lambda db: self._register(db, node), is_lease=True)

    async def _register(self, db: PostgresConnection, node: NodeInfo) -> None:
        # One statement decides, also between two new nodes of the same name.
        registered = await db.fetchval(
            "INSERT INTO nodes (name, incarnation, host_id, info, load, started_at, expires_at)"
            " VALUES ($1, $2, $3, $4, $5, clock_timestamp(), clock_timestamp() + make_interval(secs => $6))"
            " ON CONFLICT (name) DO UPDATE SET incarnation = excluded.incarnation, host_id = excluded.host_id,"
            " info = excluded.info, load = excluded.load, started_at = excluded.started_at,"
            " expires_at = excluded.expires_at"
            " WHERE nodes.incarnation = excluded.incarnation OR nodes.host_id = excluded.host_id"
            f" OR NOT nodes.{_ALIVE} RETURNING 1",
            node.name,
            node.incarnation,
            node.host_id,
            msgspec.json.encode(node),
            msgspec.json.encode(NodeLoad()),
            self._lease_s,
        )
        if registered is None:
            raise leases.name_in_use(node.name)
        await db.execute(
            "DELETE FROM nodes WHERE expires_at < clock_timestamp() - make_interval(secs => $1)", leases.DEAD_NODE_S
        )

    async def heartbeat(self, load: NodeLoad) -> None:
        async def extend(db: PostgresConnection) -> None:
            extended = await db.fetchval(
                "UPDATE nodes SET expires_at = clock_timestamp() + make_interval(secs => $3), load = $2"
                f" WHERE incarnation = $1 AND {_ALIVE} RETURNING 1",
                self._fence.incarnation,
                msgspec.json.encode(load),
                self._lease_s,
            )
            if extended is None:
                raise leases.node_replaced(self._name)

        await self._database.change(extend, durable=False, is_lease=True)

    async def unregister(self) -> None:
        async def remove(db: PostgresConnection) -> list[Any]:
            await db.execute("DELETE FROM nodes WHERE incarnation = $1", self._fence.incarnation)
            # In the order of their ids, as everywhere: other transactions lock several workspaces too.
            return await db.fetch(
                "UPDATE workspaces SET holder = '' WHERE id IN"
                " (SELECT id FROM workspaces WHERE holder = $1 ORDER BY id FOR UPDATE) RETURNING id",
                self._fence.incarnation,
            )

        for (workspace_id,) in await self._database.change(remove, is_lease=True):
            self._database.notify(workspace_id)

    async def nodes(self) -> list[NodeState]:
        rows = await self._database.read(
            lambda db: db.fetch(
                f"SELECT info, load, {_ALIVE}, (extract(epoch FROM started_at) * 1000)::int8,"
                " (SELECT count(*) FROM workspaces WHERE holder = incarnation) FROM nodes ORDER BY name"
            )
        )
        return [NodeState(_node(row[0]), msgspec.json.decode(row[1], type=NodeLoad), *row[2:]) for row in rows]

    async def claim(self, workspace_id: str) -> Claimed | HeldBy:
        known = self._fence.tokens.get(workspace_id)
        try:
            return await self._database.change(lambda db: self._claim(db, workspace_id), is_lease=True)
        except BaseException:
            # If the commit has happened, the old token refuses writes until the next claim.
            if known is None:
                self._fence.tokens.pop(workspace_id, None)
            else:
                self._fence.tokens[workspace_id] = known
            raise

    async def _claim(self, db: PostgresConnection, workspace_id: str) -> Claimed | HeldBy:
        holder = await db.fetchval("SELECT holder FROM workspaces WHERE id = $1 FOR UPDATE", workspace_id)
        if holder is None:
            raise codec.unknown_workspace(workspace_id)
        is_alive = await db.fetchval(f"SELECT {_ALIVE} FROM nodes WHERE incarnation = $1", self._fence.incarnation)
        if is_alive is None:
            raise leases.node_replaced(self._name)
        if not is_alive:
            raise leases.node_expired(self._name)
        if holder not in ("", self._fence.incarnation):
            node = await db.fetchval(f"SELECT info FROM nodes WHERE incarnation = $1 AND {_ALIVE}", holder)
            if node is not None:
                return HeldBy(_node(node))
        token: int = await db.fetchval(
            "UPDATE workspaces SET holder = $2, token = token + 1 WHERE id = $1 RETURNING token",
            workspace_id,
            self._fence.incarnation,
        )
        # Before the commit: a Write that follows it must find the new token.
        self._fence.tokens[workspace_id] = token
        self._fence.held.add(workspace_id)
        return Claimed(token)

    async def release(self, workspace_id: str) -> None:
        self._fence.held.discard(workspace_id)
        released = await self._database.change(
            lambda db: db.fetchval(
                "UPDATE workspaces SET holder = '' WHERE id = $1 AND holder = $2 RETURNING 1",
                workspace_id,
                self._fence.incarnation,
            ),
            is_lease=True,
        )
        if released:
            self._database.notify(workspace_id)

    async def holder(self, workspace_id: str) -> NodeInfo | None:
        node = await self._database.read(
            lambda db: db.fetchval(
                f"SELECT info FROM workspaces JOIN nodes ON incarnation = holder WHERE workspaces.id = $1 AND {_ALIVE}",
                workspace_id,
            )
        )
        return None if node is None else _node(node)

    async def orphans(self, limit: int) -> list[WorkspaceRecord]:
        rows = await self._database.read(
            lambda db: db.fetch(
                "SELECT id, path, created_at, base FROM workspaces WHERE id IN"
                f" (SELECT workspace_id FROM runs WHERE state <> 'ended') AND NOT {_IS_HELD} ORDER BY id LIMIT $1",
                max(limit, 0),
            )
        )
        return [WorkspaceRecord(*row) for row in rows]


def _node(data: bytes) -> NodeInfo:
    return msgspec.json.decode(data, type=NodeInfo)
