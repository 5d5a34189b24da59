"""The membership of a server in a cluster. Loaded only if the store is PostgreSQL."""

from __future__ import annotations

import os
import socket
from urllib.parse import urlsplit

from kedge import paths
from kedge.engine.engine import Engine
from kedge.engine.placement import Leased
from kedge.engine.ports import Machine
from kedge.errors import BadConfig
from kedge.server.auth import Gate
from kedge.server.cluster_node import ClusterNode
from kedge.server.forwarding import ClusterSecret, Forwarder
from kedge.server.membership import NODE_NAME, SECRET, NodeOptions, restart
from kedge.store.data_directory import DataDirectory
from kedge.store.leases import LEASE_S, NodeInfo
from kedge.store.postgres import PostgresStore


class Member:
    """A server whose store is shared with other nodes."""

    def __init__(self, store: PostgresStore, info: NodeInfo, lease_s: float, secret: ClusterSecret | None) -> None:
        self.store = store
        self.placement = Leased(store, info.roots)
        self._info = info
        self._lease_s = lease_s
        self._secret = secret

    def join(self, engine: Engine, machine: Machine, gate: Gate) -> Forwarder:
        """Return the connections to the other nodes. Its node is started when the sockets are bound."""
        node = ClusterNode(self.store, self._info, self._lease_s, engine, machine, restart)
        forwarder = Forwarder(engine, node, self._secret)
        gate.verify_node = forwarder.verify
        if gate.users is not None:
            node.refresh_users = gate.users.refresh
        if name := urlsplit(self._info.url).hostname:
            gate.names.add(name)

        async def leave() -> None:
            await node.close()
            await forwarder.close()

        self.placement.leave = leave
        node.listen = self.store.listen
        return forwarder


def make_member(url: str, options: NodeOptions) -> Member:
    name = options.name or socket.gethostname()
    if not NODE_NAME.fullmatch(name):
        raise BadConfig(f"{name!r} is not a valid name of a node: letters, digits, '.', '_' and '-', at most 63.")
    roots = tuple(os.path.realpath(root) for root in options.roots) or ("/",)
    text = os.environ.get(SECRET, "")
    secret = ClusterSecret.of(text) if text else None
    lease_s = options.lease_s or LEASE_S
    store = PostgresStore(
        url,
        DataDirectory(paths.data_dir()),
        cluster_id=secret.cluster_id if secret else "",
        lease_s=lease_s,
        on_lease_lost=restart,
    )
    info = NodeInfo(name, options.url.rstrip("/"), roots, store.incarnation, "")
    return Member(store, info, lease_s, secret)
