"""Run one mutant: python -m proof.mutants NAME. Exit code 1: found (and by what). 0: it survives.

python -m proof.mutants            list all mutants
python -m proof.mutants --check    check that every anchor matches exactly one place, and that the tests exist
python -m proof.mutants NAME 100   run at most so many simulations
python -m proof.mutants NAME 2000 recorded   start with the recorded seed
python -m proof.mutants --seeds    find every mutant of the simulator, and record the seeds
"""

from __future__ import annotations

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor

from proof.mutants.finders import PLANS, SCHEDULES_MAX, SEEDS
from proof.mutants.forks import Forks
from proof.mutants.table import ALL, CONTROLS, MUTANTS, problems


def main(name: str = "", schedules: str = str(SCHEDULES_MAX), seeds: str = "") -> int:
    if name == "--check":
        lines = problems()
        print(*lines, f"{len(ALL)} mutants, {len(lines)} problems", sep="\n")
        return int(bool(lines))
    if name == "--seeds":
        return record_seeds()
    if not name:
        for mutant in MUTANTS.values():
            print(f"{mutant.name}  ({mutant.finder}, {mutant.at}) {mutant.effect}")
        return 0
    known = MUTANTS | {control.name: control for control in CONTROLS}
    with Forks() as forks:
        result = forks.find(known[name], int(schedules), recorded_first=seeds == "recorded")
    print(f"{name}: {f'found by {result}' if result else 'survives'}")
    return int(bool(result))


def record_seeds() -> int:
    simulated = [name for name, mutant in MUTANTS.items() if mutant.finder in PLANS]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        seeds = dict(zip(simulated, pool.map(_seed_of, simulated), strict=True))
    SEEDS.write_text(json.dumps(dict(sorted(seeds.items())), indent=1) + "\n")
    return 0


def _seed_of(name: str) -> int:
    with Forks() as forks:
        return int(forks.find(MUTANTS[name]).removeprefix("seed ").partition(":")[0])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
