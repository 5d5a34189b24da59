"""Many simulations in a process of their own: frozen tasks of theirs shall not bother anybody else's tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Lived:
    bad: list[int]
    #: The first bad one, made small, with the command that replays it.
    first: str
    counted: dict[str, int]
    digests: list[str]


def live_through(seeds: range, *options: str, **environment: str) -> Lived:
    done = subprocess.run(
        [sys.executable, "-m", "proof.sim", f"{seeds.start}-{seeds.stop}", "--json", *options],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONWARNINGS": "ignore", **environment},
    )
    assert done.returncode in (0, 1), done.stderr[-3000:]
    return Lived(**json.loads(done.stdout))
