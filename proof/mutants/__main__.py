"""python -m proof.mutants NAME: is this mutant found? 1: it is (and by what); 0: it survives.

python -m proof.mutants            lists them
python -m proof.mutants NAME 100   within so many simulations
python -m proof.mutants NAME 2000 remembered   where it was found before first
python -m proof.mutants --seeds    finds all that the simulator finds, and remembers where
"""

from __future__ import annotations

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor

from proof.mutants.finders import SCHEDULES_MAX, SEEDS
from proof.mutants.forks import Forks
from proof.mutants.table import CONTROLS, MUTANTS


def main(name: str = "", schedules: str = str(SCHEDULES_MAX), memory: str = "") -> int:
    if name == "--seeds":
        return remember()
    if not name:
        for mutant in MUTANTS.values():
            print(f"{mutant.name}  ({mutant.finder}, {mutant.module}) {mutant.hurts}")
        return 0
    known = MUTANTS | {control.name: control for control in CONTROLS}
    with Forks() as forks:
        found = forks.find(known[name], int(schedules), from_memory=memory == "remembered")
    print(f"{name}: {f'found by {found}' if found else 'survives'}")
    return int(bool(found))


def remember() -> int:
    simulated = [name for name, mutant in MUTANTS.items() if mutant.finder == "sim"]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        seeds = dict(zip(simulated, pool.map(_seed_of, simulated), strict=True))
    SEEDS.write_text(json.dumps(dict(sorted(seeds.items())), indent=1) + "\n")
    return 0


def _seed_of(name: str) -> int:
    with Forks() as forks:
        return int(forks.find(MUTANTS[name]).removeprefix("seed ").partition(":")[0])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
