"""`kedge extensions`: what the user, the repository and plugins add to a workspace."""

from __future__ import annotations

import asyncio
from typing import get_args

import click

from kedge.cli.options import cwd_option, examples, host_option, json_option
from kedge.cli.printing import print_json, print_table
from kedge.cli.workspace_lookup import opened
from kedge.client.safe_text import one_line
from kedge.core.extensions import ExtensionKind
from kedge.wire.extension_models import ExtensionBody

#: One text in the table; the JSON has it in full. Characters.
COLUMN_CHARS_MAX = 200


@click.command(epilog=examples("kedge extensions", "kedge extensions --kind skill", "kedge extensions --json"))
@click.option("--kind", type=click.Choice(get_args(ExtensionKind)), help="List only extensions of this kind.")
@json_option
@cwd_option
@host_option
def extensions(kind: ExtensionKind | None, as_json: bool, cwd: str, host: str | None) -> int:
    """List the skills, commands, agents, servers and hooks of this directory, with their states."""

    async def read() -> list[ExtensionBody]:
        async with opened(host, cwd) as workspace:
            return await workspace.client.extensions(workspace.id)

    listed = [one for one in asyncio.run(read()) if kind in (None, one.kind)]
    if as_json:
        print_json(listed)
    elif not listed:
        click.echo("no extensions")
    else:
        rows = [
            (
                one.kind,
                one_line(one.name, COLUMN_CHARS_MAX),
                one.condition,
                one_line(one.origin, COLUMN_CHARS_MAX),
                one_line(one.error or one.description, COLUMN_CHARS_MAX),
                one_line(one.path, COLUMN_CHARS_MAX),
            )
            for one in listed
        ]
        print_table(("KIND", "NAME", "STATE", "ORIGIN", "DESCRIPTION", "PATH"), rows)
    return 0
