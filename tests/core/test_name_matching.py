"""The names that the letters of a user match, and their order."""

from __future__ import annotations

import pytest

from kedge.core.name_matching import best_matches, can_be_mentioned


def test_better_matches_come_first() -> None:
    names = ["src/mapper.py", "docs/amap.md", "src/maps/other.py", "m/a/p.txt", "readme.md", "a/b/map.c", "Map.c"]
    assert best_matches("map", names, 9) == [
        "Map.c",  # the last part begins with the letters: the least deep first
        "src/mapper.py",
        "a/b/map.c",
        "docs/amap.md",  # the last part contains them
        "src/maps/other.py",  # the path contains them
        "m/a/p.txt",  # they occur in this order
    ]
    assert best_matches("map", names, 2) == ["Map.c", "src/mapper.py"]
    assert best_matches("pam", ["map.c"], 9) == []
    assert best_matches("", ["b", "a"], 9) == ["a", "b"]


@pytest.mark.parametrize(
    ("name", "can"), [("a b.txt", True), ("wörd", True), ('a"b', False), ("a\x1b[31m", False), ("a\u202eb", False)]
)
def test_only_visible_names_can_be_mentioned(name: str, can: bool) -> None:
    assert can_be_mentioned(name) == can
