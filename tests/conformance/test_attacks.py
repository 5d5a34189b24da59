"""The list of attacks, compared with the tests."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import pytest

from proof.figures import proof
from tests.conformance.attacks import ATTACKS

ROOT = Path(__file__).parents[2]
#: The least number of cases of all attacks; each set of parameters of a test is one case. Items.
CASES_MIN = 150


def named() -> set[str]:
    return {f"tests/{name}" for group in ATTACKS.values() for tests in group.values() for name in tests}


def test_each_attack_has_existing_tests() -> None:
    files = sorted({name.partition("::")[0] for name in named()})
    # Only the two plugins that the tests need: loading the others takes longer than the tests.
    plugins = ("-p", "pytest_asyncio.plugin", "-p", "pytest_timeout")
    command = [sys.executable, "-m", "pytest", "--collect-only", *plugins, *files]
    environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=50, check=True)
    listed = done.stdout
    cases = Counter(line.partition("[")[0] for line in listed.splitlines() if line.startswith("tests/"))
    assert all(group and all(group.values()) for group in ATTACKS.values())
    assert sorted(name for name in named() if not cases[name]) == []
    assert sum(cases[name] for name in named()) >= CASES_MIN


@pytest.mark.long
@pytest.mark.proof
@pytest.mark.timeout(3600)
def test_no_attack_gets_through(tmp_path: Path) -> None:
    """Run and count the attacks in the size of each commit."""
    report = tmp_path / "report.xml"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("KEDGE_")}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        f"--junitxml={report}",
        *sorted(named()),
    ]
    with proof("G14", "attacks", "bypasses") as figure:
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        suite = ElementTree.parse(report).getroot()[0]
        skipped = int(suite.attrib["skipped"])
        figure.wrong = int(suite.attrib["failures"]) + int(suite.attrib["errors"])
        figure.count = int(suite.attrib["tests"]) - skipped
        figure.notes = {"kinds of attack": sum(len(group) for group in ATTACKS.values()), "skipped": skipped}
        assert figure.wrong == 0, done.stdout[-5000:]
        assert figure.count >= CASES_MIN
