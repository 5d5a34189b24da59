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

import pytest

IS_LONG = os.environ.get("KEDGE_PROOF") == "long"
SCALE = int(os.environ.get("KEDGE_PROOF_SCALE", "1"))
SIZE = "ci" if not IS_LONG else "long" if SCALE == 1 else f"long / {SCALE}"


def size(ci: int, long: int) -> int:
    return max(ci, long // SCALE) if IS_LONG else ci


def slices(ci: int, long: int, each: int) -> list[range]:
    """Ranges of seeds, `each` of them or fewer in one, for `pytest.mark.parametrize`."""
    count = size(ci, long)
    return [range(first, min(first + each, count)) for first in range(0, count, each)]


@dataclass(slots=True)
class Figure:
    """What one proof has reached: how many were tried, how many went wrong, and what else is worth telling."""

    count: int = 0
    wrong: int = 0
    #: Numbers of the same name are added up over the parts of a proof; of texts the last one stays.
    notes: dict[str, int | str] = field(default_factory=dict)


@contextmanager
def proof(guarantee: str, what: str, wrong: str = "violations") -> Iterator[Figure]:
    """`guarantee`: its number, such as "G3". `what` is tried; `wrong` is what it is called when it goes wrong."""
    figure, began, path = Figure(), time.monotonic(), os.environ.get("KEDGE_FIGURES")
    try:
        yield figure
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
                "seconds": round(time.monotonic() - began, 1),
                "size": SIZE,
                # Without its parameters: "tests/x.py::test_name[part] (call)" is what pytest says.
                "test": os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0].partition("[")[0],
            }
            # One write, appended: proofs run side by side.
            with open(path, "ab", buffering=0) as file:
                file.write(json.dumps(told).encode() + b"\n")
    assert not figure.wrong, f"{guarantee}: {figure.wrong} {wrong} in {figure.count} {what}"
