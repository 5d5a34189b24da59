"""`python -m bench [--cluster] [--only NAME]... [--quick] [--json FILE]`: measure the server and print one table."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from pathlib import Path

from bench import cluster, extensions, failover, life, page, rates, runs, steps, streams, terminal, trees
from bench.report import Line, as_json, table
from bench.server import Server, endpoint, home
from bench.setting import Measure, Setting

MEASURES: dict[str, Measure] = {
    "start": life.start_and_memory,
    "first-delta": streams.first_delta,
    "one-reader": streams.one_reader,
    "many-readers": streams.many_readers,
    "sessions": runs.sessions_at_once,
    "cancel": runs.cancel_latency,
    "cancel-after": runs.cancel_after_accept,
    "cancel-with": runs.cancel_with_prompt,
    "cancel-between": runs.cancel_between,
    "dropped": runs.dropped_stream,
    "kill": life.kill,
    "steps": steps.step_overhead,
    "calls": steps.tool_calls,
    "tool-start": trees.tool_start,
    "cancel-tree": trees.cancel_to_dead,
    "mcp-call": extensions.mcp_call,
    "mcp-unused": extensions.mcp_unused,
    "lsp-edit": extensions.lsp_edit,
    "terminal": terminal.terminal_costs,
    "page": page.page_costs,
    "submit": rates.submit_rate,
    "append": rates.append_rate,
}
#: Measures of a cluster, instead of those of one server.
CLUSTER: dict[str, Measure] = {
    "cluster-commands": cluster.commands,
    "cluster-sessions": cluster.sessions,
    "cluster-steps": cluster.steps,
    "cluster-claims": cluster.claims,
    "cluster-forward": cluster.forwarded,
    "cluster-streams": cluster.streams,
    "cluster-appends": cluster.appends,
    "cluster-looks": cluster.looks,
}
#: Measures that take minutes: only by name.
LONG: dict[str, Measure] = {"failover": failover.failover}

#: Measures that saturate the server. One pass of its event loop then handles hundreds of requests, and may exceed the
#: stall limit.
SATURATING = frozenset({"submit", "cluster-commands"})


async def measure(names: list[str], quick: bool) -> tuple[list[Line], int]:
    """Return the lines and the number of event loop stalls of the shared server."""
    lines: list[Line] = []
    with endpoint() as model, home() as directory, Server(directory, model).run() as running:
        stalls = 0
        for name in names:
            start, before = time.perf_counter(), running.stalls
            lines += await (MEASURES | CLUSTER | LONG)[name](Setting(model, running, quick))
            stalls += running.stalls - before if name not in SATURATING else 0
            print(f"{name}: {time.perf_counter() - start:.1f} s", file=sys.stderr)
    return lines, stalls


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure the server; see bench/README.md.")
    known = [*MEASURES, *CLUSTER, *LONG]
    parser.add_argument("--only", action="append", choices=known, metavar="NAME", help=", ".join(known))
    parser.add_argument("--cluster", action="store_true", help="measure several nodes on one PostgreSQL")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions, for a rough estimate")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows to FILE as JSON")
    arguments = parser.parse_args()
    names = arguments.only or list(CLUSTER if arguments.cluster else MEASURES)
    lines, stalls = asyncio.run(measure(names, arguments.quick))
    print(table(lines))
    print(f"load average: {', '.join(f'{load:.1f}' for load in os.getloadavg())}", file=sys.stderr)
    if arguments.json:
        arguments.json.write_text(json.dumps(as_json(lines), indent=2) + "\n")
    if stalls:
        sys.exit(f"the server's event loop stalled {stalls} times; its log above has the stacks")


if __name__ == "__main__":
    main()
