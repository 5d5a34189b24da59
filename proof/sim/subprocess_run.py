"""Run many simulations in a subprocess: their frozen tasks must not disturb other tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SeedResults:
    #: The failing seeds.
    bad: list[int]
    #: The first of them, reduced, with the command that replays it.
    first: str
    counts: dict[str, int]
    digests: list[str]


def run_seeds(seeds: range, *options: str, **environment: str) -> SeedResults:
    done = subprocess.run(
        [sys.executable, "-m", "proof.sim", f"{seeds.start}-{seeds.stop}", "--json", *options],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONWARNINGS": "ignore", **environment},
    )
    assert done.returncode in (0, 1), done.stderr[-3000:]
    return SeedResults(**json.loads(done.stdout))
