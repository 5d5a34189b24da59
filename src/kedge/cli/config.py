"""`kedge config`."""

from __future__ import annotations

from typing import Any

import click

from kedge import paths
from kedge.cli.common import cwd_option, do, examples, host_option, json_option, opened, print_json
from kedge.client.text import one_line


@click.group()
def config() -> None:
    """Show the configuration and where it is."""


@config.command(epilog=examples("kedge config path", '$EDITOR "$(kedge config path)"'))
@json_option
def path(as_json: bool) -> int:
    """Print where your configuration file is, or would be."""
    file = paths.config_file()
    if as_json:
        print_json({"path": str(file), "exists": file.is_file()})
    else:
        click.echo(str(file))
    return 0


@config.command(epilog=examples("kedge config show", "kedge config show --json | jq .model"))
@json_option
@cwd_option
@host_option
def show(as_json: bool, cwd: str, host: str | None) -> int:
    """Print the configuration in force in this workspace, as the server has it. Secrets are masked."""

    async def read() -> dict[str, Any]:
        async with opened(host, cwd) as workspace:
            return await workspace.client.config(workspace.id)

    found = do(read())
    if as_json:
        print_json(found)
    else:
        for name, value in _flat("", found):
            click.echo(f"{name} = {one_line(value, 200)}")
    return 0


def _flat(prefix: str, value: Any) -> list[tuple[str, str]]:
    """(dotted name, value) of everything that is set."""
    if isinstance(value, dict):
        return [line for name, inner in value.items() for line in _flat(f"{prefix}.{name}" if prefix else name, inner)]
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return [line for number, inner in enumerate(value) for line in _flat(f"{prefix}[{number}]", inner)]
    if value in (None, "", []):
        return []
    return [(prefix, str(value))]
