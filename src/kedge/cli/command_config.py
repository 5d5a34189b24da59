"""`kedge config`. It reads files and needs no server; the engine's part that knows them is loaded when it is used."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kedge import paths
from kedge.cli.exit_codes import EXIT_FAILED
from kedge.cli.options import cwd_option, examples, host_option, json_option
from kedge.cli.printing import print_json
from kedge.cli.workspace_lookup import opened
from kedge.client.safe_text import one_line
from kedge.core.untrusted_text import visible

if TYPE_CHECKING:
    from kedge.config.load import Loaded, RepositoryFile
    from kedge.config.trust import Trust

_SIGNS = {"ok": "ok  ", "warn": "warn", "fail": "FAIL"}
#: Of a value in the list; the whole of it is in the file and in the JSON. Characters.
VALUE_CHARS_MAX = 200
#: Values longer than this do not push the column of sources aside. Characters.
ALIGNED_CHARS_MAX = 60


@click.group()
def config() -> None:
    """Show, check and trust the configuration."""


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
    """Print the configuration in force in this directory, and where each value comes from. Secrets are masked.

    It is read from the files. With --host, that server is asked what it has; it does not tell where from."""
    if host is not None:
        return _show_servers(host, cwd, as_json)
    loaded = _loaded(Path(cwd))
    if as_json:
        print_json({**loaded.config.masked(), "sources": loaded.sources, "ignored": loaded.ignored})
        return 0
    rows = [
        (f"{name} = {one_line(value, VALUE_CHARS_MAX)}", _source(loaded.sources, name))
        for name, value in _flat("", loaded.config.masked())
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
    """Check every configuration file that counts in this directory. Exit code 1: something is wrong.

    What is ignored because it is not trusted is told and is no mistake."""
    from kedge.config.check import findings

    found = findings(paths.config_file(), Path(cwd), _trust())
    if as_json:
        print_json(found)
    else:
        for finding in found:
            click.echo(f"{_SIGNS[finding.status]}  {one_line(f'{finding.about}: {finding.message}', 1000)}")
            if finding.what_to_do:
                click.echo(f"      -> {one_line(finding.what_to_do, 1000)}")
    return EXIT_FAILED if any(finding.status == "fail" for finding in found) else 0


@config.command(epilog=examples("kedge config trust", "kedge config trust --yes", "kedge config trust --revoke"))
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--revoke", is_flag=True, help="Trust this repository's files no longer.")
@cwd_option
def trust(yes: bool, revoke: bool, cwd: str) -> int:
    """Trust what this repository's kedge.toml says, exactly as it is now.

    Until then it can choose a model, how runs go and which instruction files count, and nothing else. A change of the
    file has to be trusted again."""
    from kedge.config.load import repository_files

    if revoke:
        return _revoke(Path(cwd))
    known = _trust()
    files = [file for file in repository_files(Path(cwd)) if file.content is not None]
    waiting = [file for file in files if _dangerous(file) and not known.holds(file.path, file.content or b"")]
    if not waiting:
        click.echo("There is nothing to trust here." if not any(map(_dangerous, files)) else "It is trusted already.")
        return 0
    for file in waiting:
        click.echo(f"{visible(str(file.path), keep='')} wants to set:\n")
        for name, value in _dangerous(file):
            click.echo(f"  {visible(name, keep='')} = {visible(value, keep='')}")
        click.echo()
    if not yes and not _agreed():
        click.echo("Nothing was trusted.")
        return EXIT_FAILED
    for file in waiting:
        # What was shown, and not what the file may hold by now.
        known.add(file.path, file.content or b"")
        click.echo(f"Trusted: {visible(str(file.path), keep='')}")
    return 0


def _agreed() -> bool:
    if not os.isatty(0):
        raise click.UsageError("Nobody can be asked here: read the above and say --yes.")
    return click.confirm("Programs may be run and keys be used as it says. Trust it?", default=False)


def _revoke(workspace: Path) -> int:
    from kedge.config.load import FILE_NAMES
    from kedge.config.repository import levels

    known = _trust()
    # Also those that are gone or changed: they could come back as they were.
    candidates = [place / name for place in levels(workspace) for name in FILE_NAMES]
    revoked = [file for file in candidates if known.revoke(file)]
    for file in revoked:
        click.echo(f"No longer trusted: {visible(str(file), keep='')}")
    if not revoked:
        click.echo("Nothing here was trusted.")
    return 0


def _dangerous(file: RepositoryFile) -> list[tuple[str, str]]:
    """(dotted name, value) of everything that takes effect only when the file is trusted. BadConfig if it is wrong."""
    from kedge.config.load import checked, needing_trust, parsed
    from kedge.config.schema import masked_secret

    plain = parsed(file.content or b"", file.path)
    checked(plain, file.path)
    lines = [line for key in needing_trust(plain) for line in _flat(key, plain[key])]
    # A key in a repository is no longer a secret, but it need not be on this screen.
    return [(name, masked_secret(value) if name.endswith(".api_key") else value) for name, value in lines]


def _trust() -> Trust:
    from kedge.config.trust import FILE_NAME, Trust

    return Trust(paths.data_dir() / FILE_NAME)


def _loaded(workspace: Path) -> Loaded:
    from kedge.config.load import layered, user_layer

    return layered(user_layer(paths.config_file()), workspace, _trust(), strict=False)


def _show_servers(host: str, cwd: str, as_json: bool) -> int:
    async def read() -> dict[str, Any]:
        async with opened(host, cwd) as workspace:
            return await workspace.client.config(workspace.id)

    found = asyncio.run(read())
    if as_json:
        print_json(found)
    else:
        for name, value in _flat("", found):
            click.echo(f"{name} = {one_line(value, VALUE_CHARS_MAX)}")
    return 0


def _source(sources: dict[str, str], name: str) -> str:
    """`providers.x.models[0].id` comes from where its list does."""
    return sources.get(name) or sources.get(name.partition("[")[0]) or "default"


def _flat(prefix: str, value: Any) -> list[tuple[str, str]]:
    """(dotted name, value) of everything that is set."""
    if isinstance(value, dict):
        return [line for name, inner in value.items() for line in _flat(_dotted(prefix, name), inner)]
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return [line for number, inner in enumerate(value) for line in _flat(f"{prefix}[{number}]", inner)]
    if value in (None, "", []):
        return []
    return [(prefix, str(value).lower() if isinstance(value, bool) else str(value))]


def _dotted(prefix: str, name: str) -> str:
    bare = name if name.replace("-", "").replace("_", "").isalnum() and name.isascii() else f'"{name}"'
    return f"{prefix}.{bare}" if prefix else bare
