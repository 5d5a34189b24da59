"""The measured values and the table that compares them with the targets."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from bench.figures import FIGURES


@dataclass(frozen=True, slots=True)
class Line:
    """One measured value. `name` is also the key of its target in `figures.py`, if it has one."""

    name: str
    value: float
    unit: str
    #: Spread, counts and the baseline.
    note: str = ""

    @property
    def verdict(self) -> str:
        figure = FIGURES.get(self.name)
        if figure is None:
            return ""
        reached = self.value >= figure.target if figure.at_least else self.value <= figure.target
        return "ok" if reached else "missed"


def median(values: Iterable[float]) -> float:
    return statistics.median(values)


def p95(values: Iterable[float]) -> float:
    """Return the 95th percentile: always one of the values, rounded up, never interpolated."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * 0.95))]


def shown(value: float) -> str:
    """Return the value with three significant digits."""
    if value == int(value):
        return f"{int(value):,}"
    digits = max(0, 2 - int(f"{abs(value):e}".partition("e")[2]))
    return f"{value:,.{digits}f}"


def table(lines: list[Line]) -> str:
    """Return the lines as an aligned Markdown table."""
    rows = [("measured", "value", "unit", "target", "", "best other server", "note")]
    for line in lines:
        figure = FIGURES.get(line.name)
        target = f"{'>=' if figure.at_least else '<='} {shown(figure.target)}" if figure else ""
        rows.append(
            (line.name, shown(line.value), line.unit, target, line.verdict, figure.best if figure else "", line.note)
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    text = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    text.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(text)


def as_json(lines: list[Line]) -> dict[str, Any]:
    return {
        "machine": {
            "cores": os.cpu_count(),
            "load": os.getloadavg(),
            "python": platform.python_version(),
            "system": platform.platform(),
        },
        "lines": [
            asdict(line)
            | {"target": FIGURES[line.name].target if line.name in FIGURES else None, "verdict": line.verdict}
            for line in lines
        ],
    }
