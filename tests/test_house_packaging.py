"""The distributions: the version, and the contents of kedge-client."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from typing import Any

import kedge
from tests.source import ROOT, SRC, imports, modules, package_of

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
CLIENT = tomllib.loads((ROOT / "packaging" / "client" / "pyproject.toml").read_text())


def test_version_has_one_source() -> None:
    for project, path in ((PROJECT, "src/kedge/__init__.py"), (CLIENT, "../../src/kedge/__init__.py")):
        assert "version" in project["project"]["dynamic"]
        assert project["tool"]["hatch"]["version"]["path"] == path
    assert f"## {kedge.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_client_distribution_contains_what_the_client_imports() -> None:
    needed = {"kedge", "kedge.client"} | {name for name in modules() if package_of(name) == "client"}
    pending = set(needed)
    while pending:
        module = pending.pop()
        found = {name for name, at_top, _ in imports(module, modules()[module]) if at_top} - needed
        needed |= found
        pending |= found
    tops = {package_of(name) for name in needed} - {"kedge"}
    paths = {top if (SRC / "kedge" / top).is_dir() else f"{top}.py" for top in tops} | {"__init__.py", "py.typed"}
    included = CLIENT["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert included == {f"../../src/kedge/{path}": f"kedge/{path}" for path in paths}
    third_party = {
        name.partition(".")[0]
        for module in needed
        for name in _imported(modules()[module])
        if name.partition(".")[0] not in {*sys.stdlib_module_names, "kedge"}
    }
    assert third_party == _names(CLIENT)
    assert set(CLIENT["project"]["dependencies"]) <= set(PROJECT["project"]["dependencies"])


def _imported(tree: ast.Module) -> list[str]:
    return [
        *(alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names),
        *(node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)),
    ]


def _names(project: dict[str, Any]) -> set[str]:
    return {re.match(r"[a-z0-9-]+", text).group() for text in project["project"]["dependencies"]}  # type: ignore[union-attr]
