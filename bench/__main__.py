"""`python -m bench [--only NAME]... [--quick] [--json FILE]`: measure this server and print one table."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from pathlib import Path

from bench import life, rates, runs, steps, streams, terminal, trees
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
    "terminal": terminal.terminal_costs,
    "submit": rates.submit_rate,
    "append": rates.append_rate,
}

#: They send as much as the server takes: a round of its loop has hundreds of requests then, and lasts as long as these.
SATURATING = frozenset({"submit"})


async def measure(names: list[str], quick: bool) -> tuple[list[Line], int]:
    """The lines, and how often the event loop of the shared server stalled meanwhile."""
    lines: list[Line] = []
    with endpoint() as model, home() as directory, Server(directory, model).run() as running:
        stalls = 0
        for name in names:
            begun, before = time.perf_counter(), running.stalls
            lines += await MEASURES[name](Setting(model, running, quick))
            stalls += running.stalls - before if name not in SATURATING else 0
            print(f"{name}: {time.perf_counter() - begun:.1f} s", file=sys.stderr)
    return lines, stalls


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure this server; see bench/README.md.")
    parser.add_argument("--only", action="append", choices=list(MEASURES), metavar="NAME", help=", ".join(MEASURES))
    parser.add_argument("--quick", action="store_true", help="fewer repetitions: a look, not a result")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the lines there, too")
    given = parser.parse_args()
    lines, stalls = asyncio.run(measure(given.only or list(MEASURES), given.quick))
    print(table(lines))
    print(f"load average: {', '.join(f'{load:.1f}' for load in os.getloadavg())}", file=sys.stderr)
    if given.json:
        given.json.write_text(json.dumps(as_json(lines), indent=2) + "\n")
    if stalls:
        sys.exit(f"the server's event loop stalled {stalls} times; its log above says where")


if __name__ == "__main__":
    main()
