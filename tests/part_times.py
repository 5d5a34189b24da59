"""A pytest plugin: prints a table of the parts of a run, with the number and the time of their tests.

A part is a directory of tests, or a file with proofs. Times are summed over tests that run in parallel.
"""

from __future__ import annotations

import time
from collections import defaultdict

import pytest

_began = time.monotonic()


def part_of(nodeid: str) -> str:
    path = nodeid.partition("::")[0]
    parts = path.split("/")
    return path if parts[0] == "proof" or len(parts) < 3 else "/".join(parts[:2])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    seconds: defaultdict[str, float] = defaultdict(float)
    counts: defaultdict[str, int] = defaultdict(int)
    failures: defaultdict[str, int] = defaultdict(int)
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                part = part_of(report.nodeid)
                seconds[part] += report.duration
                counts[part] += report.when == "call"
                failures[part] += report.failed
    terminalreporter.section("parts")
    for part in sorted(seconds, key=lambda part: -seconds[part]):
        failed = f"  {failures[part]} FAILED" if failures[part] else ""
        terminalreporter.write_line(f"{part:<40} {counts[part]:>6} tests {seconds[part]:>8.1f} s{failed}")
    total = time.monotonic() - _began
    terminalreporter.write_line(f"{'all, elapsed':<40} {sum(counts.values()):>6} tests {total:>8.1f} s")
