"""Seeds of the fuzzed proofs: which are played, and how to play one again."""

from __future__ import annotations

import os

from proof.figures import slices

#: Set to play one seed alone.
VARIABLE = "KEDGE_FUZZ_SEED"
IS_REPLAY = VARIABLE in os.environ


def parts(ci: int, long: int, each: int) -> list[range]:
    """As `slices`, or the one seed that is to be played again."""
    if IS_REPLAY:
        seed = int(os.environ[VARIABLE])
        return [range(seed, seed + 1)]
    return slices(ci, long, each)


def replay(file: str, seed: int) -> str:
    """The line that plays it again; for the message of a failure."""
    return f"replay: {VARIABLE}={seed} .venv/bin/python -m pytest tests/fuzz/{file}"


def name_of(part: range) -> str:
    return f"{part[0]}-{part[-1]}"
