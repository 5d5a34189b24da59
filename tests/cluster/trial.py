"""A cluster for a trial: PostgreSQL, two nodes and a balancer on this machine.

    python -m tests.cluster.trial [COMMAND ...]

A command gets KEDGE_URL and KEDGE_TOKEN of the balancer; without one, the cluster runs until Ctrl-C.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from pathlib import Path

from kedge.store import leases
from tests.cluster.balancer import Balancer
from tests.cluster.nodes import Nodes
from tests.conformance.harness import Server
from tests.postgres_server import PostgresServer


def main(command: list[str]) -> int:
    postgres = PostgresServer()
    with tempfile.TemporaryDirectory(prefix="kedge-cluster-") as home:
        nodes = Nodes(Path(home), postgres.url, "", leases.LEASE_S)
        try:
            postgres.start()
            print("PostgreSQL runs", file=sys.stderr)
            servers = [nodes.add(name, plain=True) for name in ("a", "b")]
            return asyncio.run(_balance(nodes, servers, command))
        except KeyboardInterrupt:
            return 130
        finally:
            nodes.stop()
            postgres.close()


async def _balance(nodes: Nodes, servers: list[Server], command: list[str]) -> int:
    port = await Balancer(lambda: [int(server.url.rpartition(":")[2]) for server in servers]).start()
    url = f"http://127.0.0.1:{port}"
    environment = {"KEDGE_URL": url, "KEDGE_TOKEN": nodes.token}
    for name, server in zip(("a", "b"), servers, strict=True):
        print(f"node {name}: {server.url}, pid {server.pid}, log {server.home / 'server.log'}", file=sys.stderr)
    if command:
        process = await asyncio.create_subprocess_exec(*command, env={**os.environ, **environment})
        return await process.wait()
    print("In another shell (Ctrl-C here ends the cluster):", file=sys.stderr)
    print(f"  export KEDGE_TOKEN={nodes.token}")
    print(f"  kedge nodes --host {url}; kedge run --host {url} 'Read README.md'", flush=True)
    await asyncio.Event().wait()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
