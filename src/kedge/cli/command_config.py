"""`kedge config`: show, check and trust the configuration files. It needs no server."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import click

from kedge import paths
from kedge.cli.config_files import load_config, plugin_store, trusted_files
from kedge.cli.exit_codes import EXIT_FAILED
from kedge.cli.options import cwd_option, examples, host_option, json_option
from kedge.cli.printing import print_findings, print_json
from kedge.cli.workspace_lookup import opened, print_config_problem
from kedge.client.safe_text import one_line
from kedge.config.check import check_config
from kedge.config.trusted_files import files_needing_trust, flat_settings, paths_needing_trust
from kedge.core.untrusted_text import visible

#: One value in the list; the JSON has it in full. Characters.
VALUE_CHARS_MAX = 200
#: Longer lines do not widen the first column. Characters.
ALIGNED_CHARS_MAX = 60


@click.group()
def config() -> None:
    """Show, check and trust the configuration."""


@config.command(epilog=examples("kedge config path", '$EDITOR "$(kedge config path)"'))
@json_option
def path(as_json: bool) -> int:
    """Print the path of your configuration file. The file may not exist yet."""
    print_config_problem()
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
    """Print the effective settings and their sources.

    Secrets are masked. The settings are read from the files of this directory; with --host, from that server and
    without sources."""
    if host is not None:
        return _show_from_server(host, cwd, as_json)
    loaded = load_config(Path(cwd))
    if as_json:
        print_json({**loaded.config.masked(), "sources": loaded.sources, "ignored": loaded.ignored})
        return 0
    rows = [
        (f"{name} = {one_line(value, VALUE_CHARS_MAX)}", _source(loaded.sources, name))
        for name, value in flat_settings("", loaded.config.masked())
    ]
    width = max(min(len(left), ALIGNED_CHARS_MAX) for left, _ in rows)
    for left, source in rows:
        click.echo(f"{left.ljust(width)}  # {one_line(source, 1000)}")
    for sentence in loaded.ignored:
        click.echo(f"kedge: {one_line(sentence, 1000)}", err=True)
    return 0


@config.command(epilog=examples("kedge config check", "kedge config check --json", "kedge config check && git push"))
@json_option
@cwd_option
def check(as_json: bool, cwd: str) -> int:
    """Check the configuration files of this directory. The exit code is 1 if there is an error.

    Settings that are ignored because their file is not trusted are warnings."""
    return print_findings(
        check_config(paths.config_file(), Path(cwd), trusted_files(), plugins=plugin_store()), as_json=as_json
    )


@config.command(epilog=examples("kedge config trust", "kedge config trust --yes", "kedge config trust --revoke"))
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--revoke", is_flag=True, help="Revoke the trust in this repository's files.")
@cwd_option
def trust(yes: bool, revoke: bool, cwd: str) -> int:
    """Trust the files of this repository, exactly as they are now.

    An untrusted kedge.toml can only set the model, the limits of runs and the instruction files. Commands, skills and
    agents that bring permissions, programs or a model do nothing before they are trusted. A changed file must be
    trusted again."""
    print_config_problem()
    if revoke:
        return _revoke(Path(cwd))
    trusted = trusted_files()
    files = files_needing_trust(Path(cwd))
    untrusted = [file for file in files if not trusted.contains(file.path, file.content)]
    if not untrusted:
        click.echo("already trusted" if files else "nothing to trust")
        return 0
    for file in untrusted:
        click.echo(f"{visible(str(file.path), keep='')} sets:\n")
        for name, value in file.settings:
            click.echo(f"  {visible(name, keep='')} = {visible(value, keep='')}")
        click.echo()
    if not yes and not _confirmed():
        click.echo("nothing was trusted")
        return EXIT_FAILED
    for file in untrusted:
        # The content that was shown: the file may have changed since.
        trusted.add(file.path, file.content)
        click.echo(f"trusted: {visible(str(file.path), keep='')}")
    return 0


def _confirmed() -> bool:
    if not os.isatty(0):
        raise click.UsageError("There is no terminal to confirm on. Read the settings above, then use --yes")
    return click.confirm("These settings can run programs and use your keys. Trust them?", default=False)


def _revoke(workspace: Path) -> int:
    trusted = trusted_files()
    # Also files that are gone or changed: they could return with the trusted content.
    revoked = [file for file in paths_needing_trust(workspace, trusted) if trusted.revoke(file)]
    for file in revoked:
        click.echo(f"no longer trusted: {visible(str(file), keep='')}")
    if not revoked:
        click.echo("nothing was trusted here")
    return 0


def _show_from_server(host: str, cwd: str, as_json: bool) -> int:
    async def read() -> dict[str, Any]:
        async with opened(host, cwd) as workspace:
            return await workspace.client.config(workspace.id)

    config = asyncio.run(read())
    if as_json:
        print_json(config)
    else:
        for name, value in flat_settings("", config):
            click.echo(f"{name} = {one_line(value, VALUE_CHARS_MAX)}")
    return 0


def _source(sources: dict[str, str], name: str) -> str:
    """Return the source of a value; that of `providers.x.models[0].id` is the source of the list."""
    return sources.get(name) or sources.get(name.partition("[")[0]) or "default"
