"""Results on standard output: JSON, tables, findings and ages."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click
import msgspec

from kedge.cli.exit_codes import EXIT_COMPLETED, EXIT_FAILED
from kedge.client.safe_text import one_line

if TYPE_CHECKING:
    from kedge.config.check import Finding


def print_json(data: object) -> None:
    click.echo(msgspec.json.format(msgspec.json.encode(data), indent=2))


def print_table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    """Print columns as wide as their contents. On a terminal, long lines are cut to its width."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    columns = _columns()
    for row in (head, *rows):
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        click.echo(line if columns is None or len(line) <= columns else line[: columns - 1] + "…")


def print_findings(findings: Sequence[Finding], *, as_json: bool) -> int:
    """Print the findings and return the exit code."""
    if as_json:
        print_json(findings)
    else:
        for finding in findings:
            status = "FAIL" if finding.status == "fail" else finding.status.ljust(4)
            click.echo(f"{status}  {one_line(f'{finding.subject}: {finding.message}', 1000)}")
            if finding.what_to_do:
                click.echo(f"      -> {one_line(finding.what_to_do, 1000)}")
    return EXIT_FAILED if any(finding.status == "fail" for finding in findings) else EXIT_COMPLETED


def _columns() -> int | None:
    try:
        return os.get_terminal_size(1).columns or None
    except OSError:
        return None


def ago(then_ms: int) -> str:
    """Return the time since `then_ms` in the largest unit that fits, such as `5m`."""
    seconds = max(0, int(time.time() - then_ms / 1000))
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"{seconds // length}{unit}"
    return f"{seconds}s"
