"""`kedge stats`: the statistics of ended runs, as a table, JSON or CSV."""

from __future__ import annotations

import asyncio
import csv
import io
import re
import time

import click
from msgspec.structs import asdict

from kedge.cli.options import examples, host_option, json_option
from kedge.cli.printing import print_json, print_table
from kedge.cli.workspace_lookup import connected_or_started
from kedge.client.client import Client
from kedge.client.safe_text import one_line
from kedge.core.statistics import GroupBy
from kedge.errors import NotFound
from kedge.wire.report_models import FiguresBody, SpreadBody, StatsBody, ToolFiguresBody

_DURATION = re.compile(r"(\d{1,6})([hdw])")
_HOURS = {"h": 1, "d": 24, "w": 7 * 24}
#: The key of a group, for users; of the columns of the table and the CSV file.
_EMPTY_KEY = "(none)"


@click.command(
    epilog=examples(
        "kedge stats                        # the last 30 days, by day",
        "kedge stats --by model --since 7d",
        "kedge stats --by tool --workspace .",
        "kedge stats --by workspace --csv > runs.csv",
        "kedge stats --json | jq .total.cost_usd",
    )
)
@click.option(
    "--by",
    type=click.Choice(["day", "model", "workspace", "outcome", "tool"]),
    default="day",
    help="The rows of the table. Default: day.",
)
@click.option("--since", metavar="TIME", default="30d", help="12h, 7d or 4w, until now. Default: 30d.")
@click.option(
    "--workspace",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False, resolve_path=True),
    help="Only runs in this directory. Default: all workspaces of the server.",
)
@json_option
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV, with times in milliseconds.")
@host_option
def stats(by: GroupBy, since: str, workspace: str | None, as_json: bool, as_csv: bool, host: str | None) -> int:
    """Show statistics of ended runs.

    WAIT is the time in the queue, FIRST the time from the start to the first token, TIME the time from start to end:
    each as median and 95th percentile. Runs of deleted sessions are included."""
    if as_json and as_csv:
        raise click.UsageError("--json and --csv exclude each other.")
    now = int(time.time() * 1000)
    start = now - _duration_ms(since)

    async def read() -> StatsBody:
        async with connected_or_started(host) as client:
            chosen = None if workspace is None else await _workspace_id(client, workspace)
            return await client.stats(
                by, since=max(0, start), until=now + 1, workspace_id=chosen, utc_offset_min=_utc_offset_min(now)
            )

    report = asyncio.run(read())
    if as_json:
        print_json(report)
    elif as_csv:
        click.echo(_csv(report), nl=False)
    elif not report.total.runs:
        click.echo(f"no runs ended in the last {since}")
    elif by == "tool":
        print_table(_TOOL_HEAD, [_tool_cells(tool) for tool in report.tools])
    else:
        rows = [_cells(group, group.label) for group in report.groups]
        print_table((by.upper(), *_HEAD), [*rows, _cells(report.total, "total")])
    return 0


def _duration_ms(text: str) -> int:
    match = _DURATION.fullmatch(text)
    if match is None:
        raise click.UsageError(f"--since {text!r} is not a time such as 12h, 7d or 4w.")
    return int(match[1]) * _HOURS[match[2]] * 3_600_000


def _utc_offset_min(now_ms: int) -> int:
    return time.localtime(now_ms / 1000).tm_gmtoff // 60


async def _workspace_id(client: Client, path: str) -> str:
    for known in await client.known_workspaces():
        if known.path == path:
            return known.id
    raise NotFound(f"No session was ever created in {path}. List workspaces with: kedge workspaces list")


# --- the table --------------------------------------------------------------------------------------------------------

_HEAD = ("RUNS", "OK", "FAILED", "CANCELLED", "INTERRUPTED", "WAIT", "FIRST", "TIME", "IN", "OUT", "COST", "TOOLS")
_TOOL_HEAD = ("TOOL", "RUNS", "CALLS", "FAILED", "NOT RUN", "MEAN TIME")


def _cells(figures: FiguresBody, label: str) -> tuple[str, ...]:
    outcomes = (figures.completed, figures.failed, figures.cancelled, figures.interrupted)
    return (
        one_line(label or _EMPTY_KEY, 100),
        str(figures.runs),
        *map(str, outcomes),
        *map(_spread, (figures.queue_wait, figures.first_token, figures.duration)),
        _count(figures.input_tokens),
        _count(figures.output_tokens),
        f"${figures.cost_usd:.2f}" if figures.cost_usd >= 0.01 or not figures.cost_usd else "<$0.01",
        f"{figures.tool_calls} ({figures.tool_failures} failed)" if figures.tool_failures else str(figures.tool_calls),
    )


def _tool_cells(tool: ToolFiguresBody) -> tuple[str, ...]:
    mean = _time(tool.busy_ms // tool.calls) if tool.calls else "-"
    return (one_line(tool.name, 64), *map(str, (tool.runs, tool.calls, tool.failures, tool.not_run)), mean)


def _spread(spread: SpreadBody) -> str:
    return f"{_time(spread.median_ms)} / {_time(spread.p95_ms)}" if spread.count else "-"


def _time(ms: int) -> str:
    if ms < 10_000:
        return f"{ms / 1000:.1f}s"
    seconds = ms // 1000
    if seconds < 3600:
        return f"{seconds // 60}m{seconds % 60:02}s" if seconds >= 60 else f"{seconds}s"
    return f"{seconds // 3600}h{seconds % 3600 // 60:02}m"


def _count(tokens: int) -> str:
    for unit, size in (("M", 1_000_000), ("k", 1_000)):
        if tokens >= size:
            return f"{tokens / size:.1f}{unit}"
    return str(tokens)


# --- CSV --------------------------------------------------------------------------------------------------------------


def _csv(report: StatsBody) -> str:
    """Return the groups, or the tools, with all their figures. A total is the sum of its rows, and is not repeated."""
    rows = [asdict(tool) for tool in report.tools] if report.by == "tool" else [_flat(group) for group in report.groups]
    heads = ToolFiguresBody.__struct_fields__ if report.by == "tool" else tuple(_flat(report.total))
    file = io.StringIO()
    writer = csv.DictWriter(file, heads, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _safe(value) for name, value in row.items()} for row in rows)
    return file.getvalue()


def _flat(figures: FiguresBody) -> dict[str, object]:
    flat: dict[str, object] = {}
    for name, value in asdict(figures).items():
        if isinstance(value, SpreadBody):
            flat |= {f"{name}_median_ms": value.median_ms, f"{name}_p95_ms": value.p95_ms}
        else:
            flat[name] = value
    return flat


def _safe(value: object) -> object:
    """Return a text that a spreadsheet does not take for a formula: a model can invent the name of a tool."""
    text = one_line(value, 1000) if isinstance(value, str) else value
    return f"'{text}" if isinstance(text, str) and text.startswith(("=", "+", "-", "@")) else text
