"""G10: no branch of the core is left untried by its own tests. (Every kind of fault is counted in tests/sim.)"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from proof.figures import proof

ROOT = Path(__file__).parents[2]
#: Left out: this file itself.
REPEATED = ("test_coverage.py",)
#: The last case of a match that mypy holds to be complete, in functions that return in each: behind it is no way out.
CONFIG = r"""
[run]
branch = true
source = kedge.core
[report]
partial_also =
    case RunEdited\(\) \| RunMoved\(\) \| FoldMarked\(\):
"""


@pytest.mark.proof
@pytest.mark.timeout(300)
def test_every_branch_of_the_core_is_taken(tmp_path: Path) -> None:
    with proof("G10", "branches of the core", "not taken by its tests") as figure:
        (tmp_path / "coverage.ini").write_text(CONFIG)
        # Its own figures and sizes are no concern of the tests in there.
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("KEDGE_", "PYTEST_"))}
        environment |= {"COVERAGE_FILE": str(tmp_path / "coverage"), "COVERAGE_RCFILE": str(tmp_path / "coverage.ini")}
        files = [str(path) for path in sorted((ROOT / "tests/core").glob("test_*.py")) if path.name not in REPEATED]
        select = ("-m", "not long and not proof", "-p", "no:xdist", *files)
        for arguments in (("run", "-m", "pytest", *select), ("json", "-o", str(tmp_path / "told.json"))):
            done = subprocess.run(
                [sys.executable, "-m", "coverage", *arguments],
                cwd=ROOT,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        told = json.loads((tmp_path / "told.json").read_text())
        totals = told["totals"]
        figure.count = totals["num_branches"]
        figure.wrong = totals["missing_branches"] + totals["missing_lines"]
        figure.notes = {"statements": totals["num_statements"], "covered": f"{totals['percent_covered']:.1f} %"}
        missing = {
            name: {"lines": file["missing_lines"], "branches": file["missing_branches"]}
            for name, file in told["files"].items()
            if file["missing_lines"] or file["missing_branches"]
        }
        assert missing == {}
