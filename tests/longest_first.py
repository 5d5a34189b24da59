"""A plugin of pytest: what takes longest begins first, so that no core is idle at the end.

Each worker of xdist gets one piece of the list, and takes from the end of another's when it has done its own; so the
list is dealt out, and each piece begins with its longest tests.
"""

from __future__ import annotations

import json
import os

import pytest

from proof.figures import FIGURES


def durations_s() -> dict[str, float]:
    """Of the longest part of each test, when all proofs were last run in their large size."""
    told = json.loads(FIGURES.read_text())["figures"] if FIGURES.exists() else []
    return {test: figure["longest_s"] for figure in told if figure["size"] == "long" for test in figure["tests"]}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    known = durations_s()

    def expected_s(item: pytest.Item) -> float:
        """Of what was never seen, as long as it may take: rather too early than too late."""
        limit = item.get_closest_marker("timeout")
        return known.get(item.nodeid.partition("[")[0], float(limit.args[0]) if limit else 0.0)

    ordered = sorted(items, key=expected_s, reverse=True)
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    items[:] = [item for worker in range(workers) for item in ordered[worker::workers]]
