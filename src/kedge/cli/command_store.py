"""`kedge store`: check and copy the stores of servers that are stopped. It needs no server."""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING

import click

from kedge import paths
from kedge.cli.exit_codes import EXIT_COMPLETED, EXIT_FAILED
from kedge.cli.options import examples, json_option
from kedge.cli.printing import print_json
from kedge.cli.terminal import is_terminal
from kedge.cli.workspace_lookup import print_config_problem
from kedge.client.safe_text import one_line

if TYPE_CHECKING:
    from kedge.store.transfer import TransferProgress

#: The time between two updates of the progress line. Seconds.
_UPDATE_S = 0.2
_MB = 1_000_000


@click.group()
def store() -> None:
    """Check and copy the store of a server: its sessions, runs and logs.

    A store is sqlite:///DIR, with the data directory of a server, or postgresql://USER:PASSWORD@HOST/DATABASE."""
    print_config_problem()


@store.command(epilog=examples("kedge store check", "kedge store check postgresql://kedge@db/kedge --json"))
@click.argument("url", required=False)
@json_option
def check(url: str | None, as_json: bool) -> int:
    """Check the hash chain of every workspace, all records and attachments. The exit code is 1 if any is damaged.

    Without URL, the store of KEDGE_STORE or of the data directory. A server that uses a data directory must be stopped
    first; those of a PostgreSQL database may run."""
    from kedge.store.locations import check as check_store

    with _ProgressLine() as progress:
        report = asyncio.run(check_store(url or os.environ.get("KEDGE_STORE") or _own(), progress.show))
    if as_json:
        print_json(report)
    else:
        for damage in report.damage:
            name = f"workspace {damage.workspace_id} ({damage.path})" if damage.workspace_id else "the database"
            more = f" (and {damage.count - 1} more)" if damage.count > 1 else ""
            click.echo(f"FAIL  {one_line(f'{name}: {damage.message}', 1000)}{more}")
        rows = sum(report.rows.values())
        checked = f"{report.workspaces:,} workspaces, {report.entries:,} log entries, {rows:,} other rows"
        result = f"{len(report.damage):,} damaged" if report.damage else "no damage"
        click.echo(f"{one_line(report.store)}: {checked}: {result}")
    return EXIT_FAILED if report.damage else EXIT_COMPLETED


@store.command(
    epilog=examples(
        "kedge store copy sqlite://$HOME/.local/share/kedge postgresql://kedge@db/kedge",
        "kedge store copy postgresql://kedge@db/kedge sqlite:///srv/kedge",
        "kedge store copy sqlite://$HOME/.local/share/kedge sqlite:///backup/kedge   # a backup",
    )
)
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@json_option
def copy(source: str, target: str, as_json: bool) -> int:
    """Copy a store to an empty one, and compare the two.

    The copy has the same Positions, so that clients resume their streams on it. No server can use either store
    meanwhile. If the copy fails or is interrupted, TO is empty."""
    from kedge.store.locations import copy as copy_store

    began = time.monotonic()
    with _ProgressLine() as progress:
        report = asyncio.run(copy_store(source, target, progress.show))
    if as_json:
        print_json(report)
        return EXIT_COMPLETED
    size_mb = sum(table.size_bytes for table in report.tables.values()) / _MB
    duration_s = time.monotonic() - began
    for name, table in report.tables.items():
        click.echo(f"{name:<16}{table.rows:>12,} rows {table.size_bytes / _MB:>12,.1f} MB")
    names = f"{one_line(report.source)} to {one_line(report.target)}"
    click.echo(f"copied {names}: {size_mb:,.1f} MB in {duration_s:.1f} s")
    click.echo(f"verified: {report.entries:,} log entries by their hashes, and the digest of each table")
    return EXIT_COMPLETED


def _own() -> str:
    return f"sqlite://{paths.data_dir()}"


class _ProgressLine:
    """One line on standard error, if that is a terminal."""

    def __init__(self) -> None:
        self._shows = is_terminal(2) and os.environ.get("TERM") != "dumb"
        self._drawn_at = time.monotonic()
        self._width = 0

    def __enter__(self) -> _ProgressLine:
        return self

    def __exit__(self, *_: object) -> None:
        self._draw("")

    def show(self, progress: TransferProgress) -> None:
        if self._shows and time.monotonic() - self._drawn_at >= _UPDATE_S:
            size = f", {progress.size_bytes / _MB:,.0f} MB" if progress.size_bytes else ""
            self._draw(f"{progress.step}: {progress.table}, {progress.rows:,} rows{size}")
            self._drawn_at = time.monotonic()

    def _draw(self, text: str) -> None:
        if self._shows and (text or self._width):
            end = "" if text else "\r"
            click.echo(f"\r{text.ljust(self._width)}{end}", nl=False, err=True)
            self._width = len(text)
