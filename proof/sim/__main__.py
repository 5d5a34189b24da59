"""Run simulations: python -m proof.sim SEEDS

    python -m proof.sim 0-2000                  run two thousand simulations
    python -m proof.sim 4711                    run one, and print its acts
    python -m proof.sim 4711 --without 0,3      run it without two of its acts
    python -m proof.sim 4711 --cluster          run one of a cluster of nodes

The first failing simulation is reduced and printed with the command that replays it. The exit code is then 1.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from proof.sim.cluster_plan import draw as draw_cluster
from proof.sim.plan import Plan
from proof.sim.plan import draw as draw_one
from proof.sim.world import COLLECT_EACH, Report, simulate, simulate_all

Draw = Callable[[int], Plan]


def without(plan: Plan, removed: set[int]) -> Plan:
    return replace(plan, acts=tuple(act for number, act in enumerate(plan.acts) if number not in removed))


def shrunk(plan: Plan) -> set[int]:
    """Return the acts that can be removed while the plan still fails, tried one by one."""
    removed: set[int] = set()
    is_smaller = True
    while is_smaller:
        is_smaller = False
        for number in range(len(plan.acts)):
            if number not in removed and simulate(without(plan, removed | {number})).broken:
                removed.add(number)
                is_smaller = True
    return removed


def describe(report: Report) -> str:
    plan = report.plan
    parts = f"{plan.clients} clients, {plan.sessions} sessions, {plan.nodes} nodes"
    lines = [f"seed {plan.seed}: {parts}, {plan.schedule} schedule"]
    for act in plan.acts:
        names = ("client", "session", "run", "script", "when_busy", "node", "for_s", "rates")
        fields = {name: value for name in names if (value := getattr(act, name)) != (0.0, 0.0, 0.0)}
        text = " ".join(f"{name}={value}" for name, value in fields.items() if value)
        lines.append(f"  {act.at:7.3f} s  {act.kind} {text}")
    lines += [f"  broken: {problem}" for problem in report.broken] or ["  every promise kept"]
    return "\n".join(lines)


def failure(plan: Plan) -> str:
    """Describe a failing plan: reduced, and with the command that replays it."""
    removed = shrunk(plan)
    option = f" --without {','.join(map(str, sorted(removed)))}" if removed else ""
    option += " --cluster" if plan.nodes > 1 else ""
    small = simulate(without(plan, removed))
    return f"{describe(small)}\n  replay: python -m proof.sim {plan.seed}{option}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m proof.sim", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("seeds", help="one seed, or a range such as 0-2000 (without the last)")
    parser.add_argument("--without", default="", help="numbers of acts to remove: 0,3")
    parser.add_argument("--cluster", action="store_true", help="several nodes on one store")
    parser.add_argument("--json", action="store_true", help="print the results as one line of JSON")
    parser.add_argument("--digests", action="store_true", help="with --json: add a digest of each simulation")
    options = parser.parse_args()
    # A killed server leaves coroutines that never start.
    warnings.filterwarnings("ignore", "coroutine .* was never awaited")
    draw = draw_cluster if options.cluster else draw_one
    first, _, end = options.seeds.partition("-")
    if not end:
        removed = {int(number) for number in options.without.split(",") if number}
        report = simulate(without(draw(int(first)), removed))
        print(describe(report))
        return int(bool(report.broken))
    return _run_many(draw, range(int(first), int(end)), as_json=options.json, with_digests=options.digests)


def _run_many(draw: Draw, seeds: range, *, as_json: bool, with_digests: bool) -> int:
    counts: Counter[str] = Counter()
    digests: list[str] = []
    bad: list[int] = []
    for first in range(seeds.start, seeds.stop, COLLECT_EACH):
        results = _run_in_child(draw, range(first, min(first + COLLECT_EACH, seeds.stop)), with_digests)
        counts += results["counts"]
        digests += results["digests"]
        bad += results["bad"]
        if bad and not as_json:
            break
    if as_json:
        text = failure(draw(bad[0])) if bad else ""
        print(json.dumps({"bad": bad, "first": text, "counts": dict(sorted(counts.items())), "digests": digests}))
        return int(bool(bad))
    print(f"{len(digests)} simulations: " + ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())))
    if bad:
        print(failure(draw(bad[0])))
    return int(bool(bad))


def _run_in_child(draw: Draw, seeds: range, with_digests: bool) -> Any:
    """Run simulations in a forked process: its exit is cheaper than collecting their garbage."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            with open(write, "w") as pipe:
                json.dump(_run_seeds(draw, seeds, with_digests), pipe)
            code = 0
        finally:
            sys.stderr.flush()
            os._exit(code)
    os.close(write)
    with open(read) as pipe:
        text = pipe.read()
    if os.waitpid(child, 0)[1] != 0:
        raise RuntimeError(f"the process of the seeds {seeds.start}-{seeds.stop} failed")
    return json.loads(text)


def _run_seeds(draw: Draw, seeds: range, with_digests: bool) -> dict[str, Any]:
    counts: Counter[str] = Counter()
    digests: list[str] = []
    bad: list[int] = []
    reports = simulate_all(map(draw, seeds), with_digests=with_digests)
    for seed in seeds:
        report = next(reports)  # not to its end, where it would collect garbage
        counts += report.counts
        digests.append(report.digest[:16])
        if report.broken:
            bad.append(seed)
    return {"bad": bad, "counts": counts, "digests": digests}


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    # A normal exit would print warnings about frozen tasks.
    os._exit(code)
