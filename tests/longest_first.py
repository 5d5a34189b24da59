"""A pytest plugin: the longest tests run first, so that no core is idle at the end.

Each xdist worker gets one part of the list, and then steals from the end of another part. So the tests are dealt out,
and each part begins with its longest tests.
"""

from __future__ import annotations

import json
import os

import pytest

from proof.figures import FIGURES


def durations_s() -> dict[str, float]:
    """Return the time of the longest part of each proof, from the last large run."""
    figures = json.loads(FIGURES.read_text())["figures"] if FIGURES.exists() else []
    return {test: figure["longest_s"] for figure in figures if figure["size"] == "long" for test in figure["tests"]}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    known = durations_s()

    def expected_s(item: pytest.Item) -> float:
        """Return the recorded time; without one, the timeout: rather too early than too late."""
        limit = item.get_closest_marker("timeout")
        return known.get(item.nodeid.partition("[")[0], float(limit.args[0]) if limit else 0.0)

    ordered = sorted(items, key=expected_s, reverse=True)
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    items[:] = [item for worker in range(workers) for item in ordered[worker::workers]]
