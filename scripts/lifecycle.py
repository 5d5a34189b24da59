"""Draw `docs/lifecycle.svg` from the table LIFECYCLE.

The states and arrows come from the table; their positions are set here. A state or arrow without a position is an
error, so the picture cannot become outdated.

    scripts/docs            writes the file; a test fails while it is stale
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from xml.sax.saxutils import escape

from kedge.core.events import LaneEvent
from kedge.core.lane import LIFECYCLE, RunState

Rows = Iterable[tuple[RunState | None, type[LaneEvent], RunState]]

WIDTH, HEIGHT = 1130, 600
BOX_WIDTH, BOX_HEIGHT = 168, 64
#: Distance between two lines of a label.
LINE = 17


@dataclass(frozen=True, slots=True)
class Box:
    """The box of a state: its centre, description and colours."""

    x: int
    y: int
    means: str
    fill: str
    edge: str


@dataclass(frozen=True, slots=True)
class Arrow:
    """An arrow: its SVG path, and the position of its label."""

    path: str
    x: int
    y: int
    anchor: Literal["start", "middle", "end"] = "middle"
    note: str = ""


BOXES: dict[RunState, Box] = {
    "queued": Box(256, 190, "waits for its own start", "#e3effd", "#3b78c4"),
    "waiting to fold": Box(256, 430, "joins at the next Step", "#e3effd", "#3b78c4"),
    "active": Box(570, 190, "does its Steps", "#dff5e4", "#2e8b4f"),
    "stopping": Box(884, 190, "cancelled, cleans up", "#fdf0d5", "#b9770e"),
    "folded": Box(570, 430, "part of the active Run", "#efe6fb", "#7a4fc0"),
    "ended": Box(1010, 340, "once, with one outcome", "#e9ecf0", "#4a5568"),
}

#: The position of the dot where every Run begins.
START = (60, 310)

ARROWS: dict[tuple[RunState | None, RunState], Arrow] = {
    (None, "queued"): Arrow("M 65 300 C 85 240 110 190 167 190", 104, 208, "end"),
    (None, "waiting to fold"): Arrow("M 65 320 C 85 380 110 430 167 430", 104, 424, "end"),
    ("queued", "active"): Arrow("M 341 190 L 481 190", 411, 180),
    ("waiting to fold", "folded"): Arrow("M 341 430 L 481 430", 411, 420),
    ("waiting to fold", "queued"): Arrow("M 256 397 L 256 227", 246, 306, "end", "of the Run it waits for"),
    ("queued", "ended"): Arrow(
        "M 256 157 C 256 112 276 100 316 100 L 1000 100 C 1040 100 1050 120 1050 150 L 1050 303", 570, 90
    ),
    ("queued", "waiting to fold"): Arrow("M 296 223 L 296 393", 306, 313, "start"),
    ("waiting to fold", "ended"): Arrow(
        "M 256 463 C 256 508 276 520 316 520 L 980 520 C 1020 520 1030 500 1030 470 L 1030 377", 570, 510
    ),
    ("active", "stopping"): Arrow("M 655 190 L 795 190", 725, 163),
    ("active", "ended"): Arrow("M 594 223 C 630 294 760 326 920 328", 700, 282, "start"),
    ("stopping", "ended"): Arrow("M 900 223 C 912 260 930 282 955 304", 896, 264, "end"),
    ("folded", "ended"): Arrow("M 655 430 C 780 430 840 398 920 356", 800, 430, "start", "with the Run it is part of"),
}

# System fonts; the gaps are wide enough for any of them.
STYLE = """
    text { font-family: system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif; fill: #1a202c }
    .title { font-size: 20px; font-weight: 600 }
    .small { font-size: 13px; fill: #4a5568 }
    .state { font-size: 16px; font-weight: 600; text-anchor: middle }
    .means { font-size: 12.5px; fill: #4a5568; text-anchor: middle }
    .event { font-family: ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace; font-size: 13px }
    .note { font-size: 12px; font-style: italic; fill: #4a5568 }
    .way { fill: none; stroke: #4a5568; stroke-width: 1.6; marker-end: url(#head) }
"""


def lifecycle_svg(rows: Rows = LIFECYCLE) -> str:
    """Return the picture as SVG text. The same table always gives the same text."""
    events: dict[tuple[RunState | None, RunState], list[str]] = {}
    for was, event, is_now in rows:
        events.setdefault((was, is_now), []).append(event.__name__)
    for was, is_now in events:
        for state in (was, is_now):
            if state is not None and state not in BOXES:
                raise LookupError(f"the state {state!r} of LIFECYCLE has no position in the drawing; add it to BOXES")
        if (was, is_now) not in ARROWS:
            raise LookupError(
                f"the change from {was!r} to {is_now!r} in LIFECYCLE has no arrow in the drawing; add it to ARROWS"
            )
    states = [state for state in BOXES if any(state in ends for ends in events)]
    return "\n".join(
        [
            *_frame(),
            *(f'  <path class="way" d="{ARROWS[ends].path}"/>' for ends in events),
            *(line for state in states for line in _state(state)),
            *(line for ends, names in events.items() for line in _label(ARROWS[ends], names)),
            "</svg>\n",
        ]
    )


def _frame() -> list[str]:
    """Return the white background, for readability on dark pages, the title and the start."""
    x, y = START
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-labelledby="title">',
        '  <title id="title">The life of a Run: its states, and the events that move it</title>',
        f"  <style>{STYLE}  </style>",
        '  <marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M 0 1 L 10 5 L 0 9 z" fill="#4a5568"/></marker>',
        f'  <rect x="1" y="1" width="{WIDTH - 2}" height="{HEIGHT - 2}" rx="16" fill="#ffffff" stroke="#d5dae1"/>',
        '  <text class="title" x="32" y="44">The life of a Run</text>',
        f'  <text class="small" x="32" y="{HEIGHT - 22}">Drawn by scripts/docs from the table LIFECYCLE in '
        "src/kedge/core/lane.py.</text>",
        f'  <circle cx="{x}" cy="{y}" r="9" fill="#1a202c"/>',
    ]


def _state(state: RunState) -> list[str]:
    box = BOXES[state]
    left, top = box.x - BOX_WIDTH // 2, box.y - BOX_HEIGHT // 2
    return [
        f'  <rect x="{left}" y="{top}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="14" '
        f'fill="{box.fill}" stroke="{box.edge}" stroke-width="2"/>',
        f'  <text class="state" x="{box.x}" y="{box.y - 3}">{escape(state)}</text>',
        f'  <text class="means" x="{box.x}" y="{box.y + 17}">{escape(box.means)}</text>',
    ]


def _label(arrow: Arrow, names: list[str]) -> list[str]:
    texts = [("event", name) for name in names] + ([("note", arrow.note)] if arrow.note else [])
    at = f'x="{arrow.x}" text-anchor="{arrow.anchor}"'
    return [
        f'  <text class="{kind}" {at} y="{arrow.y + number * LINE}">{escape(text)}</text>'
        for number, (kind, text) in enumerate(texts)
    ]


def main() -> None:
    """Write the file below the current directory, which must be the project root."""
    Path("docs/lifecycle.svg").write_text(lifecycle_svg(), encoding="utf-8")


if __name__ == "__main__":
    main()
