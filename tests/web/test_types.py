"""The types of the page are those of the server."""

from __future__ import annotations

import runpy
from pathlib import Path

from tests.source import ROOT


def test_generated_types_are_what_the_generator_writes(tmp_path: Path) -> None:
    """The digest in the first line does not show a change by hand, or of the generator."""
    types = tmp_path / "types.ts"
    runpy.run_path(str(ROOT / "scripts" / "web_types.py"))["write"](types)
    assert types.read_text() == (ROOT / "web" / "src" / "api" / "types.ts").read_text(), "run scripts/docs"
