"""Nodes of a cluster on one machine, and their PostgreSQL, whose CPU time is read from the kernel."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.server import Address, Running, Server, cpu_s, home
from kedge.store.leases import LEASE_S
from tests.postgres_server import PostgresServer

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Database:
    """A PostgreSQL server with its default settings: each commit is flushed to the disk."""

    def __init__(self, server: PostgresServer) -> None:
        self.url = server.url
        self._pid = int((server.data / "postmaster.pid").read_text().split()[0])

    @classmethod
    @contextlib.contextmanager
    def open(cls) -> Iterator[Database]:
        server = PostgresServer()
        try:
            server.start()
            yield cls(server)
        finally:
            server.close()

    @property
    def cpu_s(self) -> float:
        """The CPU time of all its processes, also of those that have ended."""
        children = Path(f"/proc/{self._pid}/task/{self._pid}/children").read_text().split()
        ended = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()[13:15]
        total = cpu_s(self._pid) + sum(map(int, ended)) / _TICKS_PER_S
        for child in children:
            with contextlib.suppress(OSError):  # ended meanwhile
                total += cpu_s(int(child))
        return total


@dataclass(frozen=True, slots=True)
class Cluster:
    database: Database
    nodes: list[Running]

    @property
    def nodes_cpu_s(self) -> float:
        return sum(node.cpu_s for node in self.nodes)


def node(directory: Path, model: Address, store: str, secret: str, token: str, lease_s: float = LEASE_S) -> Server:
    """The configuration of one node. Its name is that of its directory."""
    server = Server(directory, model)
    server.token = token
    server.options = ("--store", store, "--node", directory.name, "--lease", str(lease_s))
    server.variables = {"KEDGE_CLUSTER_SECRET": secret}
    return server


@contextlib.contextmanager
def cluster(model: Address, count: int) -> Iterator[Cluster]:
    secret, token = secrets.token_hex(32), secrets.token_hex(16)
    with Database.open() as database, home() as directory, contextlib.ExitStack() as opened:
        nodes = [node(directory / f"node{number}", model, database.url, secret, token) for number in range(count)]
        yield Cluster(database, [opened.enter_context(one.run()) for one in nodes])
