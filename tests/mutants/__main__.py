"""python -m tests.mutants NAME: is this mutant found? 1: it is (and by what); 0: it survives.

python -m tests.mutants            lists them
python -m tests.mutants NAME 100   within so many simulations
"""

from __future__ import annotations

import os
import sys

from tests.mutants.finders import SCHEDULES_MAX, find
from tests.mutants.table import CONTROLS, MUTANTS


def main(name: str = "", schedules: str = str(SCHEDULES_MAX)) -> int:
    if not name:
        for mutant in MUTANTS.values():
            print(f"{mutant.name}  ({mutant.finder}, {mutant.module}) {mutant.hurts}")
        return 0
    known = MUTANTS | {control.name: control for control in CONTROLS}
    found = find(known[name], int(schedules))
    print(f"{name}: {f'found by {found}' if found else 'survives'}")
    return int(bool(found))


if __name__ == "__main__":
    code = main(*sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)  # tasks frozen by the simulator would complain on their way out
