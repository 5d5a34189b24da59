"""`python -m bench [--only NAME]... [--quick] [--json FILE]`: measure the server and print one table."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from pathlib import Path

from bench import extensions, life, page, rates, runs, steps, streams, terminal, trees
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

#: Measures that saturate the server. One pass of its event loop then handles hundreds of requests, and may exceed the
#: stall limit.
SATURATING = frozenset({"submit"})


async def measure(names: list[str], quick: bool) -> tuple[list[Line], int]:
    """Return the lines and the number of event loop stalls of the shared server."""
    lines: list[Line] = []
    with endpoint() as model, home() as directory, Server(directory, model).run() as running:
        stalls = 0
        for name in names:
            start, before = time.perf_counter(), running.stalls
            lines += await MEASURES[name](Setting(model, running, quick))
            stalls += running.stalls - before if name not in SATURATING else 0
            print(f"{name}: {time.perf_counter() - start:.1f} s", file=sys.stderr)
    return lines, stalls


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure the server; see bench/README.md.")
    parser.add_argument("--only", action="append", choices=list(MEASURES), metavar="NAME", help=", ".join(MEASURES))
    parser.add_argument("--quick", action="store_true", help="fewer repetitions, for a rough estimate")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows to FILE as JSON")
    arguments = parser.parse_args()
    lines, stalls = asyncio.run(measure(arguments.only or list(MEASURES), arguments.quick))
    print(table(lines))
    print(f"load average: {', '.join(f'{load:.1f}' for load in os.getloadavg())}", file=sys.stderr)
    if arguments.json:
        arguments.json.write_text(json.dumps(as_json(lines), indent=2) + "\n")
    if stalls:
        sys.exit(f"the server's event loop stalled {stalls} times; its log above has the stacks")


if __name__ == "__main__":
    main()
