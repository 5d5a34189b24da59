"""What was measured, beside what is to be reached."""

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
    """One measured value. `name` is that of its figure in `figures.py`, where it has one."""

    name: str
    value: float
    unit: str
    #: How it came about: spread, counts, what it compares with.
    note: str = ""

    @property
    def verdict(self) -> str:
        figure = FIGURES.get(self.name)
        if figure is None:
            return ""
        reached = self.value >= figure.reach if figure.at_least else self.value <= figure.reach
        return "ok" if reached else "behind"


def median(values: Iterable[float]) -> float:
    return statistics.median(values)


def p95(values: Iterable[float]) -> float:
    """The value that 95 % stay below; of so few values the next one up, never an invented one."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * 0.95))]


def shown(value: float) -> str:
    """Three digits that count."""
    if value == int(value):
        return f"{int(value):,}"
    digits = max(0, 2 - int(f"{abs(value):e}".partition("e")[2]))
    return f"{value:,.{digits}f}"


def table(lines: list[Line]) -> str:
    """The lines in Markdown, in columns."""
    rows = [("measured", "value", "unit", "to reach", "", "best of the others", "note")]
    for line in lines:
        figure = FIGURES.get(line.name)
        reach = f"{'>=' if figure.at_least else '<='} {shown(figure.reach)}" if figure else ""
        rows.append(
            (line.name, shown(line.value), line.unit, reach, line.verdict, figure.best if figure else "", line.note)
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
            | {"reach": FIGURES[line.name].reach if line.name in FIGURES else None, "verdict": line.verdict}
            for line in lines
        ],
    }
