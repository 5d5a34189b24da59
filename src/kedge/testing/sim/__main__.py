"""python -m kedge.testing.sim: live through seeds, replay one, make a bad one small.

    python -m kedge.testing.sim 0-2000                  two thousand simulations
    python -m kedge.testing.sim 4711                    one, told act by act
    python -m kedge.testing.sim 4711 --without 0,3      the same without two of its acts

The first that breaks a promise is made smaller and printed with the command that replays it; the exit code is 1 then.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter

from msgspec.structs import replace

from kedge.testing.sim.plan import Plan, draw
from kedge.testing.sim.world import Report, simulate, simulate_all


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
    return f"{told(small)}\n  replay: python -m kedge.testing.sim {seed}{option}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m kedge.testing.sim", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("seeds", help="one seed, or a range such as 0-2000 (the last one left out)")
    parser.add_argument("--without", default="", help="acts to leave out of the one seed, by number: 0,3")
    parser.add_argument("--json", action="store_true", help="figures and faults as one line of JSON")
    parser.add_argument("--digests", action="store_true", help="with --json: a digest of each, equal for equal runs")
    given = parser.parse_args()
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
    for report in simulate_all(map(draw, seeds), with_digests=with_digests):
        counted += report.counted
        digests.append(report.digest[:16])
        if report.broken:
            bad.append(report.plan.seed)
            if not as_json:
                break
    if as_json:
        first = failure(bad[0]) if bad else ""
        print(json.dumps({"bad": bad, "first": first, "counted": dict(sorted(counted.items())), "digests": digests}))
        return int(bool(bad))
    print(f"{len(digests)} simulations: " + ", ".join(f"{count} {what}" for what, count in sorted(counted.items())))
    if bad:
        print(failure(bad[0]))
    return int(bool(bad))


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    # Frozen tasks would complain on their way out.
    os._exit(code)
