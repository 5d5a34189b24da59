"""`kedge serve`: run a server."""

from __future__ import annotations

import click

from kedge.cli.options import examples


@click.command(
    epilog=examples(
        "kedge serve                                    # on your own socket",
        "kedge serve --host tcp://127.0.0.1:8787        # with a token; see KEDGE_TOKEN",
        "kedge serve --host unix://$HOME/k.sock --host tcp://127.0.0.1:0",
        "kedge serve --store postgresql://kedge@db/kedge --node a --host tcp://10.0.0.1:7200 --allow-remote",
    )
)
@click.option(
    "--host",
    "hosts",
    metavar="URL",
    multiple=True,
    help="Address to listen on. Repeatable. Without a Unix socket among them, your own one is added.",
)
@click.option("--data-dir", metavar="DIR", type=click.Path(file_okay=False), help="Use this data directory.")
@click.option(
    "--store",
    metavar="URL",
    help="Location of the store: sqlite:///DIR, postgresql://USER:PASSWORD@HOST/DATABASE, or memory: to keep nothing.",
)
@click.option("--node", metavar="NAME", help="Name of this node of a cluster. Default: the host name.")
@click.option("--node-url", metavar="URL", help="Address of this node for other nodes. Default: the first TCP --host.")
@click.option(
    "--workspace-root",
    "roots",
    metavar="DIR",
    multiple=True,
    type=click.Path(file_okay=False),
    help="Serve only workspaces in this directory. Repeatable. Default: all.",
)
@click.option("--lease", "lease_s", type=click.FloatRange(1, 3600), hidden=True)
@click.option("--allow-remote", is_flag=True, help="Allow addresses that other machines can reach.")
@click.option("--exit-when-idle", is_flag=True, hidden=True)
def serve(
    hosts: tuple[str, ...],
    data_dir: str | None,
    store: str | None,
    node: str | None,
    node_url: str | None,
    roots: tuple[str, ...],
    lease_s: float | None,
    allow_remote: bool,
    exit_when_idle: bool,
) -> int:
    """Run a server until Ctrl-C, SIGTERM or `kedge stop`.

    It prints one line `listening on URL` per address when it is ready. Servers with the same PostgreSQL store are the
    nodes of a cluster; they need the same KEDGE_CLUSTER_SECRET, to forward requests to each other."""
    from kedge.server.harden import harden

    harden()  # before the slow imports
    from kedge.server.startup import serve as listen

    return listen(
        hosts=list(hosts),
        data_dir=data_dir,
        store=store,
        allow_remote=allow_remote,
        exit_when_idle=exit_when_idle,
        node=node or "",
        node_url=node_url or "",
        roots=roots,
        lease_s=lease_s or 0.0,
    )
