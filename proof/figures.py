"""One proof, two sizes: small for each commit, large for `scripts/long`; and the figures that each has reached.

A proof is a test with the marker `proof`. It asks `size` how much to do and tells `proof` what it did; `scripts/long`
sets KEDGE_PROOF=long and gathers what is told in the file that KEDGE_FIGURES names, from which docs/reliability.md is
written. A proof that can be cut into parts asks `slices` for them, so that all cores have something to do.

KEDGE_PROOF_SCALE divides the large sizes, down to the small ones: to try `scripts/long` itself in some minutes.
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
#: What large runs have reached, and went up to.
FIGURES = Path(__file__).parent.parent / "docs" / "figures.json"
SIZE = "ci" if not IS_LONG else "long" if SCALE == 1 else f"long / {SCALE}"
#: With KEDGE_UNTIL runs one proof alone, of as many schedules as there is time left for, and there may be none left.
#: KEDGE_SEED plays one seed again, of which nothing may come: that is no proof.
MAY_BE_NONE = "KEDGE_UNTIL" in os.environ or "KEDGE_SEED" in os.environ


def size(ci: int, long: int) -> int:
    return max(ci, long // SCALE) if IS_LONG else ci


def slices(ci: int, long: int, each: int, goes_on: str = "") -> list[range]:
    """Ranges of seeds, `each` of them or fewer in one, for `pytest.mark.parametrize`.

    `goes_on` names a proof whose large size does not try the same seeds each time, but goes on behind the last ones."""
    first = seeds_tried(goes_on) if IS_LONG and goes_on else 0
    end = first + size(ci, long)
    return [range(start, min(start + each, end)) for start in range(first, end, each)]


def seeds_tried(what: str) -> int:
    """Up to which seed the large runs of this proof have come so far."""
    told = json.loads(FIGURES.read_text())["figures"] if FIGURES.exists() else []
    return max((figure.get("seeds_upto", 0) for figure in told if figure["what"] == what), default=0)


@dataclass(slots=True)
class Figure:
    """What one proof has reached: how many were tried, how many went wrong, and what else is worth telling."""

    count: int = 0
    wrong: int = 0
    #: Numbers of the same name are added up over the parts of a proof; of texts the last one stays.
    notes: dict[str, int | str] = field(default_factory=dict)
    #: Behind the last seed that was tried, for a proof that goes on there the next time.
    seeds_upto: int = 0


@contextmanager
def proof(guarantee: str, what: str, wrong: str = "violations") -> Iterator[Figure]:
    """`guarantee`: its number, such as "G3". `what` is tried; `wrong` is what it is called when it goes wrong.

    A proof that tried nothing has shown nothing, and fails."""
    figure, began, path = Figure(), time.monotonic(), os.environ.get("KEDGE_FIGURES")
    try:
        yield figure
        assert figure.count or figure.wrong or MAY_BE_NONE, f"{guarantee}: 0 {what} were tried"
    except pytest.skip.Exception:
        path = None  # nothing was tried
        raise
    except BaseException:
        figure.wrong = figure.wrong or 1
        raise
    finally:
        if path:
            told = {
                "guarantee": guarantee,
                "what": what,
                "count": figure.count,
                "wrong": figure.wrong,
                "wrong_is": wrong,
                "notes": figure.notes,
                "seeds_upto": figure.seeds_upto if SIZE == "long" else 0,
                "seconds": round(time.monotonic() - began, 1),
                "size": SIZE,
                # Without its parameters: "tests/x.py::test_name[part] (call)" is what pytest says.
                "test": os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0].partition("[")[0],
            }
            # One write, appended: proofs run side by side.
            with open(path, "ab", buffering=0) as file:
                file.write(json.dumps(told).encode() + b"\n")
    assert not figure.wrong, f"{guarantee}: {figure.wrong} {wrong} in {figure.count} {what}"
