"""The reducers of the view in Python and TypeScript give the same view for the same events."""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from proof.sim.view_vectors import Operation, recorded, scrambled, vector
from tests.source import ROOT

#: Simulated schedules. Each gives two vectors.
SCHEDULES = range(200)
#: What the schedules must contain, or the comparison would show less than it says.
KINDS = {
    "session deleted",
    "run deleted",
    "message deleted",
    "rewind created",
    "gap created",
    "delta updated",
    "progress updated",
    "permission_request created",
    "permission_notification created",
    "question_batch_request created",
    "agent_event created",
    "run_complete created",
}


@pytest.mark.timeout(180)
def test_both_reducers_give_the_same_views(tmp_path: Path) -> None:
    kinds: Counter[str] = Counter()
    path = tmp_path / "vectors.ndjson"
    count = 0
    with path.open("wb") as file:
        for seed, operations in recorded(SCHEDULES):
            kinds.update(_kinds(operations))
            for name, sequence in (
                (f"seed {seed}", operations),
                (f"seed {seed} scrambled", scrambled(operations, seed)),
            ):
                file.write(msgspec.json.encode(vector(name, sequence)) + b"\n")
                count += 1
    assert KINDS - kinds.keys() == set()
    environment = {**os.environ, "KEDGE_VIEW_VECTORS": str(path), "KEDGE_VIEW_VECTORS_COUNT": str(count)}
    done = subprocess.run(
        [ROOT / "scripts" / "web", "vitest", "run", "tests/view.test.ts"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-8000:]


def _kinds(operations: list[Operation]) -> list[str]:
    events = [operation["event"] for operation in operations if operation["op"] == "event"]
    return [f"{event['type']} {event['change']}" for event in events]
