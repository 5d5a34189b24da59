"""docs/lifecycle.svg is drawn from the table, and is what the table says now."""

from __future__ import annotations

import runpy
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import cast

import pytest

from kedge.core.events import RunEdited, RunEnded
from kedge.core.lane import LIFECYCLE, RunState

ROOT = Path(__file__).parents[1]
PICTURE = runpy.run_path(str(ROOT / "scripts" / "lifecycle.py"))


def texts(svg: str, kind: str) -> list[str]:
    found = ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")
    return [element.text or "" for element in found if element.get("class") == kind]


def test_the_stored_picture_is_the_one_the_table_gives() -> None:
    stored = (ROOT / "docs" / "lifecycle.svg").read_text(encoding="utf-8")
    assert stored == PICTURE["lifecycle_svg"](), "docs/lifecycle.svg is stale: run scripts/docs"


def test_the_picture_shows_every_state_and_every_row_once() -> None:
    svg = PICTURE["lifecycle_svg"]()
    states = {state for was, _, is_now in LIFECYCLE for state in (was, is_now) if state is not None}
    assert sorted(texts(svg, "state")) == sorted(states)
    assert sorted(texts(svg, "event")) == sorted(event.__name__ for _, event, _ in LIFECYCLE)


def test_a_row_more_is_an_event_more_in_the_picture() -> None:
    svg = PICTURE["lifecycle_svg"]([*LIFECYCLE, ("queued", RunEdited, "active")])
    assert sorted(texts(svg, "event")) == sorted([*(event.__name__ for _, event, _ in LIFECYCLE), "RunEdited"])


def test_what_is_not_in_the_table_is_not_in_the_picture() -> None:
    svg = PICTURE["lifecycle_svg"]([row for row in LIFECYCLE if "folded" not in row])
    assert "folded" not in texts(svg, "state")


def test_state_without_a_position_is_an_error() -> None:
    paused = cast(RunState, "paused")
    with pytest.raises(LookupError, match="the state 'paused' of LIFECYCLE has no position in the drawing"):
        PICTURE["lifecycle_svg"]([*LIFECYCLE, (paused, RunEnded, "ended")])


def test_an_arrow_without_a_place_is_an_error() -> None:
    with pytest.raises(LookupError, match="the change from 'ended' to 'queued' in LIFECYCLE has no arrow"):
        PICTURE["lifecycle_svg"]([*LIFECYCLE, ("ended", RunEdited, "queued")])


def test_main_writes_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "docs").mkdir()
    monkeypatch.chdir(tmp_path)
    PICTURE["main"]()
    assert (tmp_path / "docs" / "lifecycle.svg").read_text(encoding="utf-8") == PICTURE["lifecycle_svg"]()
