"""Seeds of the fuzz tests: selection and replay."""

from __future__ import annotations

import os

from proof.figures import slices

#: Set to run a single seed.
VARIABLE = "KEDGE_FUZZ_SEED"
IS_REPLAY = VARIABLE in os.environ


def parts(ci: int, long: int, each: int) -> list[range]:
    """Return `slices`, or the single seed to replay."""
    if IS_REPLAY:
        seed = int(os.environ[VARIABLE])
        return [range(seed, seed + 1)]
    return slices(ci, long, each)


def replay(file: str, seed: int) -> str:
    """The command that replays a seed, for failure messages."""
    return f"replay: {VARIABLE}={seed} .venv/bin/python -m pytest tests/fuzz/{file}"


def name_of(part: range) -> str:
    return f"{part[0]}-{part[-1]}"
