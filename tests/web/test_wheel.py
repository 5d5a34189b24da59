"""The wheel contains the built page.

Hatchling, which builds wheels, is not in the environment of the tests. It calls the hook in hatch_build.py, and then
packs the files below `packages`, with those of `artifacts` although git ignores them."""

from __future__ import annotations

import re
import runpy
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.source import ROOT

HATCH = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]


class Interface:
    """A stand-in for the interface of Hatchling, with what the hook uses."""

    def __init__(self, root: Path) -> None:
        self.root = str(root)


def hook(monkeypatch: pytest.MonkeyPatch, root: Path) -> Any:
    name = "hatchling.builders.hooks.plugin.interface"
    module = ModuleType(name)
    module.BuildHookInterface = Interface  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, name, module)
    return runpy.run_path(str(ROOT / "hatch_build.py"))["WebPageHook"](root)


def test_wheel_has_the_page_and_its_assets(monkeypatch: pytest.MonkeyPatch) -> None:
    hook(monkeypatch, ROOT).initialize("standard", {})
    assert "custom" in HATCH["hooks"]
    [package] = HATCH["targets"]["wheel"]["packages"]
    [page] = HATCH["artifacts"]
    assert page.startswith(f"{package}/")
    files = {str(path.relative_to(ROOT / page)) for path in (ROOT / page).rglob("*") if path.is_file()}
    index = (ROOT / page / "index.html").read_text()
    named = set(re.findall(r'(?:src|href)="/([^"]+)"', index))
    assert {"index.html", "manifest.webmanifest", "icon-192.png", "icon-512.png"} | named <= files
    assets = {name for name in named if name.startswith("assets/")}
    assert {Path(name).suffix for name in assets} == {".js", ".css"}
    assert {f"{name}{suffix}" for name in assets for suffix in (".br", ".gz")} <= files
    assert not [name for name in files if name.endswith(".map") or "node_modules" in name]


def test_wheel_without_the_page_is_not_built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "scripts" / "web"
    script.parent.mkdir()
    script.write_text("#!/bin/sh\nexit 1\n")
    script.chmod(0o755)
    with pytest.raises(SystemExit, match="could not be built"):
        hook(monkeypatch, tmp_path).initialize("standard", {})
    hook(monkeypatch, tmp_path).initialize("editable", {})  # a clone builds the page when it is needed
