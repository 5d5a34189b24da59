"""The sizes of proofs (small for `scripts/prove`, large for `scripts/long`), and their figures.

A proof is a test with the marker `proof`. It gets its amount of work from `size`, and reports its figure through
`proof`. `scripts/long` sets KEDGE_PROOF=long and collects the figures in the file KEDGE_FIGURES, from which
docs/reliability.md is written. A large proof gets parts from `slices`, so that all cores are used.

KEDGE_PROOF_SCALE divides the large sizes, down to the small ones: to test `scripts/long` itself in a few minutes.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

IS_LONG = os.environ.get("KEDGE_PROOF") == "long"
SCALE = int(os.environ.get("KEDGE_PROOF_SCALE", "1"))
#: The figures of large runs.
FIGURES = Path(__file__).parent.parent / "docs" / "figures.json"
SIZE = "ci" if not IS_LONG else "long" if SCALE == 1 else f"long / {SCALE}"
#: With KEDGE_UNTIL one proof runs for the time left, which may be none. KEDGE_SEED replays one seed, which is not a
#: proof.
MAY_BE_NONE = "KEDGE_UNTIL" in os.environ or "KEDGE_SEED" in os.environ


def size(ci: int, long: int) -> int:
    return max(ci, long // SCALE) if IS_LONG else ci


def slices(ci: int, long: int, each: int, resumed: str = "") -> list[range]:
    """Return ranges of at most `each` seeds, for `pytest.mark.parametrize`.

    `resumed` names a proof whose large size uses new seeds in each run."""
    first = seeds_tried(resumed) if IS_LONG and resumed else 0
    end = first + size(ci, long)
    return [range(start, min(start + each, end)) for start in range(first, end, each)]


def seeds_tried(what: str) -> int:
    """Return the end of the seeds that large runs of this proof have used."""
    figures = json.loads(FIGURES.read_text())["figures"] if FIGURES.exists() else []
    return max((figure.get("seeds_upto", 0) for figure in figures if figure["what"] == what), default=0)


@dataclass(slots=True)
class Figure:
    """The figure of one proof: tries, failures, and notes."""

    count: int = 0
    wrong: int = 0
    #: Numbers of the same name are added up over the parts of a proof; of texts the last one counts.
    notes: dict[str, int | str] = field(default_factory=dict)
    #: The end of the seeds, for a proof that uses new seeds in each run.
    seeds_upto: int = 0


@contextmanager
def proof(guarantee: str, what: str, wrong: str = "violations") -> Iterator[Figure]:
    """Report the figure of a proof of `guarantee` ("G3"). `what` is counted; `wrong` is the name of its failures.

    A proof without a try fails."""
    figure, began, path = Figure(), time.monotonic(), os.environ.get("KEDGE_FIGURES")
    try:
        yield figure
        assert figure.count or figure.wrong or MAY_BE_NONE, f"{guarantee}: 0 {what} were tried"
    except pytest.skip.Exception:
        path = None  # no try, no figure
        raise
    except BaseException:
        figure.wrong = figure.wrong or 1
        raise
    finally:
        if path:
            line = {
                "guarantee": guarantee,
                "what": what,
                "count": figure.count,
                "wrong": figure.wrong,
                "wrong_is": wrong,
                "notes": figure.notes,
                "seeds_upto": figure.seeds_upto if SIZE == "long" else 0,
                "seconds": round(time.monotonic() - began, 1),
                "size": SIZE,
                # Without its parameters: pytest sets "tests/x.py::test_name[part] (call)".
                "test": os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0].partition("[")[0],
            }
            # One appending write: proofs run in parallel.
            with open(path, "ab", buffering=0) as file:
                file.write(json.dumps(line).encode() + b"\n")
    assert not figure.wrong, f"{guarantee}: {figure.wrong} {wrong} in {figure.count} {what}"
