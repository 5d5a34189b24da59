"""The syntax trees of the product, for tests about the source itself."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
SRC = ROOT / "src"


@cache
def modules() -> dict[str, ast.Module]:
    trees: dict[str, ast.Module] = {}
    for path in sorted(SRC.rglob("*.py")):
        parts = path.relative_to(SRC).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        trees[name] = ast.parse(path.read_text(), str(path))
    return trees


@cache
def web_files() -> dict[str, str]:
    """The source of the web page by path, without the generated types."""
    paths = [path for name in ("src", "tests") for path in (ROOT / "web" / name).rglob("*.*")]
    paths += [ROOT / "web" / "index.html", ROOT / "web" / "vite.config.ts"]
    return {str(path.relative_to(ROOT)): path.read_text() for path in sorted(paths) if path.name != "types.ts"}


def package_of(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] != "__main__" else "kedge"


def imports(module: str, tree: ast.AST) -> Iterator[tuple[str, bool, ast.stmt]]:
    """(imported module, at module level, node) for every import of kedge, except for type checking."""
    top = _top_level(tree)
    types = {part for node in ast.walk(tree) if _is_for_types_only(node) for part in ast.walk(node)}
    for node in ast.walk(tree):
        if node in types:
            continue
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            names = [f"{base}.{alias.name}" if f"{base}.{alias.name}" in modules() else base for alias in node.names]
        else:
            continue
        for name in names:
            if name.split(".")[0] == "kedge":
                yield name, node in top, node


def _top_level(tree: ast.AST) -> set[ast.stmt]:
    statements: set[ast.stmt] = set()
    stack: list[ast.AST] = [tree]
    while stack:
        for child in ast.iter_child_nodes(stack.pop()):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) or _is_for_types_only(child):
                continue
            if isinstance(child, ast.stmt):
                statements.add(child)
            stack.append(child)
    return statements


def _is_for_types_only(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
