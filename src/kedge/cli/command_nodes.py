"""`kedge nodes`: the nodes of a cluster."""

from __future__ import annotations

import asyncio

import click

from kedge.cli.options import examples, host_option, json_option
from kedge.cli.printing import ago, print_json, print_table
from kedge.cli.workspace_lookup import connected_or_started
from kedge.client.safe_text import one_line
from kedge.wire.cluster_models import NodeBody


@click.command(epilog=examples("kedge nodes", "kedge nodes --host http://10.0.0.1:7200 --json"))
@json_option
@host_option
def nodes(as_json: bool, host: str | None) -> int:
    """List the nodes of the cluster, with what each of them serves. A lost node is listed for a day."""

    async def read() -> list[NodeBody]:
        async with connected_or_started(host) as client:
            return await client.nodes()

    listed = asyncio.run(read())
    if as_json:
        print_json(listed)
    elif not listed:
        click.echo("this server is alone; nodes share a PostgreSQL store: kedge serve --store postgresql://...")
    else:
        header = ("NODE", "STATE", "STARTED", "WORKSPACES", "LIVE RUNS", "STREAMS", "ADDRESS", "ROOTS")
        print_table(header, [_row(node) for node in listed])
    return 0


def _row(node: NodeBody) -> tuple[str, ...]:
    return (
        f"{node.name}{' (this)' if node.is_this else ''}",
        node.state,
        ago(node.started_at),
        str(node.workspaces),
        str(node.live_runs),
        str(node.streams),
        one_line(node.url, 60) or "none",
        one_line(", ".join(node.roots), 120),
    )
