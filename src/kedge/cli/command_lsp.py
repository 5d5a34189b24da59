"""`kedge lsp`: the language servers of a workspace."""

from __future__ import annotations

import asyncio

import click

from kedge.cli.command_approvals import Listing
from kedge.cli.options import cwd_option, examples, host_option, json_option
from kedge.cli.printing import print_json, print_table
from kedge.cli.workspace_lookup import opened
from kedge.client.safe_text import one_line
from kedge.wire.extension_models import ExtensionBody


@click.group(cls=Listing, epilog=examples("kedge lsp", "kedge lsp list --json"))
def lsp() -> None:
    """List the language servers that report errors after edits and find definitions and references."""


@lsp.command("list", epilog=examples("kedge lsp", "kedge lsp --json | jq -r '.[].name'"))
@json_option
@cwd_option
@host_option
def list_(as_json: bool, cwd: str, host: str | None) -> int:
    """List the language servers of this directory: those found, and what to install for its other languages.

    A server is started by the first edit of one of its files, so `idle` is the usual state."""

    async def read() -> list[ExtensionBody]:
        async with opened(host, cwd) as workspace:
            every = await workspace.client.extensions(workspace.id)
        return [extension for extension in every if extension.kind == "lsp"]

    listed = asyncio.run(read())
    if as_json:
        print_json(listed)
    elif not listed:
        click.echo("no language servers were found, and none is known for the files here")
    else:
        rows = [
            (server.name, server.condition, " ".join(server.offers), one_line(server.error or server.path, 200))
            for server in listed
        ]
        print_table(("SERVER", "STATE", "FILES", "PROGRAM OR ERROR"), rows)
    return 0
