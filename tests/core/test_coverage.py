"""G10: the tests of the core take every branch of it. (proof/sim counts the kinds of faults.)"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from proof.figures import proof

ROOT = Path(__file__).parents[2]
#: Excludes this file.
EXCLUDED = ("test_coverage.py",)
#: The last case of a match that mypy proves exhaustive. Each case returns, so the branch past it is never taken.
CONFIG = r"""
[run]
branch = true
source = kedge.core
[report]
partial_also =
    case RunEdited\(\):
"""


@pytest.mark.proof
@pytest.mark.timeout(300)
def test_every_branch_of_the_core_is_taken(tmp_path: Path) -> None:
    with proof("G10", "branches of the core", "not taken by its tests") as figure:
        (tmp_path / "coverage.ini").write_text(CONFIG)
        # The sizes and figures of this proof do not apply to the tests.
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("KEDGE_", "PYTEST_"))}
        environment |= {"COVERAGE_FILE": str(tmp_path / "coverage"), "COVERAGE_RCFILE": str(tmp_path / "coverage.ini")}
        files = [str(path) for path in sorted((ROOT / "tests/core").glob("test_*.py")) if path.name not in EXCLUDED]
        select = ("-m", "not long and not proof", "-p", "no:xdist", *files)
        for arguments in (("run", "-m", "pytest", *select), ("json", "-o", str(tmp_path / "coverage.json"))):
            done = subprocess.run(
                [sys.executable, "-m", "coverage", *arguments],
                cwd=ROOT,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        report = json.loads((tmp_path / "coverage.json").read_text())
        totals = report["totals"]
        figure.count = totals["num_branches"]
        figure.wrong = totals["missing_branches"] + totals["missing_lines"]
        figure.notes = {"statements": totals["num_statements"], "covered": f"{totals['percent_covered']:.1f} %"}
        missing = {
            name: {"lines": file["missing_lines"], "branches": file["missing_branches"]}
            for name, file in report["files"].items()
            if file["missing_lines"] or file["missing_branches"]
        }
        assert missing == {}
