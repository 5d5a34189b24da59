"""python -m proof.sim: live through seeds, replay one, make a bad one small.

    python -m proof.sim 0-2000                  two thousand simulations
    python -m proof.sim 4711                    one, told act by act
    python -m proof.sim 4711 --without 0,3      the same without two of its acts

The first that breaks a promise is made smaller and printed with the command that replays it; the exit code is 1 then.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import warnings
from collections import Counter
from typing import Any

from msgspec.structs import replace

from proof.sim.plan import Plan, draw
from proof.sim.world import COLLECT_EACH, Report, simulate, simulate_all


def without(plan: Plan, left_out: set[int]) -> Plan:
    return replace(plan, acts=tuple(act for number, act in enumerate(plan.acts) if number not in left_out))


def shrunk(plan: Plan) -> set[int]:
    """Acts that can be left out, and the plan still ends badly: tried one by one, until none is left to try."""
    left_out: set[int] = set()
    is_smaller = True
    while is_smaller:
        is_smaller = False
        for number in range(len(plan.acts)):
            if number not in left_out and simulate(without(plan, left_out | {number})).broken:
                left_out.add(number)
                is_smaller = True
    return left_out


def told(report: Report) -> str:
    plan = report.plan
    lines = [f"seed {plan.seed}: {plan.clients} clients, {plan.sessions} sessions, {plan.schedule} schedule"]
    for act in plan.acts:
        said = {name: getattr(act, name) for name in ("client", "session", "run", "script", "when_busy", "for_s")}
        about = " ".join(f"{name}={value}" for name, value in said.items() if value)
        lines.append(f"  {act.at:7.3f} s  {act.kind} {about}")
    lines += [f"  broken: {what}" for what in report.broken] or ["  every promise kept"]
    return "\n".join(lines)


def failure(seed: int) -> str:
    """A bad seed as people want it: small, and with the one line that replays it."""
    plan = draw(seed)
    left_out = shrunk(plan)
    option = f" --without {','.join(map(str, sorted(left_out)))}" if left_out else ""
    small = simulate(without(plan, left_out))
    return f"{told(small)}\n  replay: python -m proof.sim {seed}{option}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m proof.sim", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("seeds", help="one seed, or a range such as 0-2000 (the last one left out)")
    parser.add_argument("--without", default="", help="acts to leave out of the one seed, by number: 0,3")
    parser.add_argument("--json", action="store_true", help="figures and faults as one line of JSON")
    parser.add_argument("--digests", action="store_true", help="with --json: a digest of each, equal for equal runs")
    given = parser.parse_args()
    # Of a server that was killed, as is meant: what it was about to begin never begins.
    warnings.filterwarnings("ignore", "coroutine .* was never awaited")
    first, _, behind = given.seeds.partition("-")
    if not behind:
        left_out = {int(number) for number in given.without.split(",") if number}
        report = simulate(without(draw(int(first)), left_out))
        print(told(report))
        return int(bool(report.broken))
    return _many(range(int(first), int(behind)), as_json=given.json, with_digests=given.digests)


def _many(seeds: range, *, as_json: bool, with_digests: bool) -> int:
    counted: Counter[str] = Counter()
    digests: list[str] = []
    bad: list[int] = []
    for first in range(seeds.start, seeds.stop, COLLECT_EACH):
        lived = _in_a_child(range(first, min(first + COLLECT_EACH, seeds.stop)), with_digests)
        counted += lived["counted"]
        digests += lived["digests"]
        bad += lived["bad"]
        if bad and not as_json:
            break
    if as_json:
        told = failure(bad[0]) if bad else ""
        print(json.dumps({"bad": bad, "first": told, "counted": dict(sorted(counted.items())), "digests": digests}))
        return int(bool(bad))
    print(f"{len(digests)} simulations: " + ", ".join(f"{count} {what}" for what, count in sorted(counted.items())))
    if bad:
        print(failure(bad[0]))
    return int(bool(bad))


def _in_a_child(seeds: range, with_digests: bool) -> Any:
    """A process that just ends is cheaper than collecting what so many simulations leave behind."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            with open(write, "w") as told:
                json.dump(_lived(seeds, with_digests), told)
            code = 0
        finally:
            sys.stderr.flush()
            os._exit(code)
    os.close(write)
    with open(read) as told:
        said = told.read()
    if os.waitpid(child, 0)[1] != 0:
        raise RuntimeError(f"the process that lived through {seeds.start}-{seeds.stop} broke")
    return json.loads(said)


def _lived(seeds: range, with_digests: bool) -> dict[str, Any]:
    counted: Counter[str] = Counter()
    digests: list[str] = []
    bad: list[int] = []
    reports = simulate_all(map(draw, seeds), with_digests=with_digests)
    for seed in seeds:
        report = next(reports)  # never to the end, where it would collect
        counted += report.counted
        digests.append(report.digest[:16])
        if report.broken:
            bad.append(seed)
    return {"bad": bad, "counted": counted, "digests": digests}


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    # Frozen tasks would complain on their way out.
    os._exit(code)
