"""Rules for the source of the web page. `tests/test_house_language.py` checks its language."""

from __future__ import annotations

import json
import re
import runpy

from tests.source import ROOT, web_files
from tests.test_house import FILE_LINES_MAX

LINE_CHARS_MAX = 120
#: Modules that may set HTML, which they sanitise.
SETS_HTML: set[str] = set()


def test_files_and_lines_of_the_page_stay_small() -> None:
    large = []
    for name, text in web_files().items():
        lines = text.splitlines()
        large += [name] if len(lines) > FILE_LINES_MAX else []
        large += [f"{name}:{number}" for number, line in enumerate(lines, 1) if len(line) > LINE_CHARS_MAX]
    assert large == []


def test_html_is_set_in_one_place() -> None:
    setters = re.compile(r"\b(innerHTML|outerHTML|insertAdjacentHTML|dangerouslySetInnerHTML|document\.write|eval\()")
    assert {name for name, text in web_files().items() if setters.search(text)} == SETS_HTML


def test_page_names_no_other_origin() -> None:
    address = re.compile(r"\bhttps?://(?!127\.0\.0\.1\b|x\b)[\w.]+")
    assert [match for text in web_files().values() for match in address.findall(text)] == []


def test_packages_are_pinned_without_addresses() -> None:
    package = json.loads((ROOT / "web" / "package.json").read_text())
    versions = [*package["dependencies"].values(), *package["devDependencies"].values()]
    assert [version for version in versions if not re.fullmatch(r"\d+\.\d+\.\d+", version)] == []
    locked = json.loads((ROOT / "web" / "package-lock.json").read_text())["packages"]
    assert [name for name, entry in locked.items() if name and ("resolved" in entry or "integrity" not in entry)] == []


def test_generated_types_are_fresh() -> None:
    is_fresh = runpy.run_path(str(ROOT / "scripts" / "web_types.py"))["is_fresh"]
    assert is_fresh(), "run scripts/docs"
