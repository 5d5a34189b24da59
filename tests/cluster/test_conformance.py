"""The conformance tests against two nodes on one PostgreSQL, with clients that send each request to another node.

They are those of one server: nothing that a client can see differs.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from proof.figures import proof
from tests.source import ROOT

#: There were 690 when this test was written: a selection that finds none must fail. Items.
TESTS_MIN = 500
#: Each has two nodes of its own. Items.
WORKERS_MAX = 4


@pytest.mark.proof
@pytest.mark.timeout(1800)
def test_two_nodes_conform(tmp_path: Path) -> None:
    with proof("G13", "conformance tests on two nodes, each request to another node", "failed") as figure:
        # Not the variables of this run: proofs among the tests have their small size, and write no figures.
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("KEDGE_", "PYTEST_"))}
        if url := os.environ.get("KEDGE_TEST_POSTGRES"):
            kept["KEDGE_TEST_POSTGRES"] = url
        workers = [
            "-n",
            str(min(WORKERS_MAX, os.cpu_count() or 1)),
            "--dist",
            "worksteal",
            f"--basetemp={tmp_path / 'tests'}",
        ]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *workers, "-m", "not long", "tests/conformance"],
            env={**kept, "KEDGE_CONFORMANCE": "cluster"},
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
        print(done.stdout, done.stderr)
        counts = {what: int(count) for count, what in re.findall(r"(\d+) (passed|failed|errors?)\b", done.stdout)}
        figure.count = sum(counts.values())
        figure.wrong = figure.count - counts.get("passed", 0)
        assert done.returncode == 0
        assert figure.count >= TESTS_MIN
