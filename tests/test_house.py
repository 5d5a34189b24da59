"""Rules for the source: which package imports which, sizes, words in names, the public surface."""

from __future__ import annotations

import ast
import re
import runpy
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.source import ROOT, imports, modules, package_of

#: Packages of kedge that each package may import. Every package may also import `errors`.
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "paths": set(),
    "disk_space": set(),
    "process_identity": set(),
    "programs": set(),
    "qr_code": set(),
    "slices": set(),
    "struct_types": set(),
    "waiting": set(),
    "children": set(),
    "core": {"core"},
    "wire": {"wire", "core", "process_identity"},
    "store": {"store", "core", "disk_space", "process_identity"},
    "llm": {"llm", "core", "children", "slices"},
    "tools": {"tools", "core", "children", "programs", "waiting"},
    "warden": {"warden", "core", "waiting", "children"},
    "config": {"config", "core", "llm", "tools"},
    "bridge": {"bridge", "core"},
    "extensions": {"extensions", "bridge", "config", "core", "programs", "tools", "waiting"},
    "engine": {"engine", "config", "core", "store", "llm", "programs", "tools", "warden", "slices", "waiting"},
    "agent": {"agent", "engine", "config", "core", "store", "llm", "tools", "slices", "waiting"},
    "server": {
        "server",
        "agent",
        "config",
        "engine",
        "extensions",
        "wire",
        "core",
        "store",
        "tools",
        "warden",
        "paths",
        "slices",
        "struct_types",
        "waiting",
        "kedge",
    },
    "client": {"client", "wire", "core", "paths", "struct_types", "waiting", "disk_space", "process_identity"},
    "cli": {"cli", "client", "config", "wire", "core", "paths", "kedge", "disk_space", "qr_code"},
    "tui": {"tui", "client", "wire", "core", "paths", "programs", "qr_code", "waiting"},
    "testing": {
        "testing",
        "agent",
        "client",
        "config",
        "core",
        "engine",
        "llm",
        "server",
        "store",
        "struct_types",
        "tools",
        "wire",
    },
    "kedge": {"client", "server", "cli", "core", "paths"},
}
#: Imports inside functions, each for start-up time: module -> modules that it loads late.
LATE_IMPORTS: dict[str, set[str]] = {
    "kedge.agent.model_choice": {"kedge.llm.transport"},
    "kedge.cli.workspace_lookup": {"kedge.cli.config_files"},
    "kedge.cli.command_mcp": {"kedge.cli.mcp_browser_login", "kedge.cli.mcp_transport"},
    "kedge.cli.mcp_browser_login": {"kedge.bridge.mcp_authorization"},
    "kedge.cli.command_serve": {"kedge.server.harden", "kedge.server.startup"},
    "kedge.server.membership": {"kedge.server.cluster_member"},
    "kedge.cli.command_store": {"kedge.store.locations"},
    "kedge.store.locations": {"kedge.store.postgres_transfer"},
    "kedge.cli.command_tui": {"kedge.tui.app", "kedge.tui.render.themes"},
    "kedge.cli.command_doctor": {"kedge.tools.ripgrep", "kedge.warden.base", "kedge.warden.warden"},
}
FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 70
#: Larger ones with their size. A number may only fall.
LARGER_FILES: dict[str, int] = {}
LARGER_FUNCTIONS: dict[str, int] = {}

#: Words in names that the glossary replaces.
BANNED_WORDS = {
    "absorb",
    "chat",
    "chunk",
    "coordinator",
    "cursor",
    "dispatch",
    "dispatcher",
    "enqueue",
    "iteration",
    "manager",
    "notification",
    "refcount",
    "turn",
    "yolo",
}
#: (module, word): names of the wire format.
BANNED_ALLOWED = {("kedge.wire.models", "notification")}

#: Tests that replace a property of the machine (an older boot, a missing extension, a later clock), and those of the
#: loop with virtual time, where sleeping costs nothing, and polls of other processes: path -> number of places.
OTHER_MACHINES = {
    "tests/cluster/faults.py": 4,
    "tests/cluster/nodes.py": 1,
    "tests/cluster/travel.py": 2,
    "tests/warden/test_server_alive.py": 1,
    "tests/store/test_sqlite_damage.py": 4,
    "proof/sim/test_loop.py": 12,
    "tests/client/test_sync_client.py": 1,
    "tests/polling.py": 2,
    "tests/tools/sessions.py": 1,
    "tests/warden/newcomers.py": 1,
}

PUBLIC = ROOT / "tests" / "public_surface.txt"


def test_imports_go_one_way() -> None:
    wrong = [
        f"{module} imports {name}"
        for module, tree in modules().items()
        for name, at_top, _ in imports(module, tree)
        if package_of(name) not in MAY_IMPORT[package_of(module)] | {"errors"}
        and not (not at_top and name in LATE_IMPORTS.get(module, set()))
    ]
    assert wrong == []


def test_no_import_cycles() -> None:
    graph = {
        module: {name for name, at_top, _ in imports(module, tree) if at_top and name in modules() and name != module}
        for module, tree in modules().items()
    }
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, f"cycle: {' -> '.join((*path[path.index(module) :], module))}"
        if module not in done:
            for name in sorted(graph[module]):
                visit(name, (*path, module))
            done.add(module)

    for module in graph:
        visit(module, ())


def test_late_imports_are_listed() -> None:
    late: dict[str, set[str]] = {}
    for module, tree in modules().items():
        if module == "kedge":
            continue  # the public surface is lazy as a whole
        for name, at_top, _ in imports(module, tree):
            if not at_top:
                late.setdefault(module, set()).add(name)
    assert late == LATE_IMPORTS


def test_files_stay_small() -> None:
    large = {}
    for path in [path for name in ("src", "tests", "bench", "proof") for path in (ROOT / name).rglob("*.py")]:
        lines = len(path.read_text().splitlines())
        name = str(path.relative_to(ROOT))
        if lines > LARGER_FILES.get(name, FILE_LINES_MAX):
            large[name] = lines
    assert large == {}


def test_functions_stay_small() -> None:
    large = {}
    for module, tree in modules().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or 0) - node.lineno + 1
                name = f"{module}.{node.name}"
                if lines > LARGER_FUNCTIONS.get(name, FUNCTION_LINES_MAX) and not _is_table(node):
                    large[name] = lines
    assert large == {}


def _is_table(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return True for a route table, which may be as long as its list."""
    return node.name == "routes" and not any(isinstance(part, ast.If | ast.For | ast.While) for part in ast.walk(node))


def test_names_follow_the_glossary() -> None:
    wrong = []
    for module, tree in modules().items():
        for name in _names(tree):
            words = set(re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower().split("_"))
            for word in words & BANNED_WORDS:
                if (module, word) not in BANNED_ALLOWED:
                    wrong.append(f"{module}: {name}")
    assert wrong == []


def _names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.arg(arg=name):
                yield name
            case ast.Name(id=name, ctx=ast.Store()):
                yield name
            case _:
                pass


@pytest.mark.parametrize("package", ["core", "config", "engine", "agent"])
def test_time_randomness_and_threads_come_through_ports(package: str) -> None:
    banned = {"time", "random", "secrets", "uuid", "threading", "datetime", "subprocess", "concurrent"}
    allowed_third_party = {"msgspec"} if package in ("core", "engine") else {"msgspec", "httpx2"}
    wrong = []
    for module, tree in modules().items():
        if package_of(module) != package:
            continue
        for node in ast.walk(tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for top in (name.split(".")[0] for name in names):
                foreign = top not in sys.stdlib_module_names and top not in {"kedge", *allowed_third_party}
                if top in banned or foreign:
                    wrong.append(f"{module} imports {top}")
    assert wrong == []


def test_core_never_awaits() -> None:
    waiting = [
        f"{module}:{node.lineno}"
        for module, tree in modules().items()
        if package_of(module) == "core"
        for node in ast.walk(tree)
        if isinstance(node, ast.Await | ast.AsyncFunctionDef)
    ]
    assert waiting == []


def test_only_the_door_appends_to_the_log() -> None:
    callers = {
        module
        for module, tree in modules().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "append"
        and ast.unparse(node.func.value).endswith("store")
    }
    assert callers == {"kedge.engine.door"}


def test_tests_do_not_sleep_or_mock() -> None:
    wrong = []
    for path in [*(ROOT / "tests").rglob("*.py"), *(ROOT / "proof").rglob("test_*.py")]:
        if path == Path(__file__) or "mutants" in path.parts:
            continue
        text = path.read_text()
        # A test may lower a limit (in capitals), but not replace a function.
        patched = r"monkeypatch\.setattr\((?!.*[.\"][A-Z_]+\")"
        for pattern in (r"time\.sleep\(", r"asyncio\.sleep\((?!0\))", r"unittest\.mock", patched):
            wrong += [str(path.relative_to(ROOT))] * len(re.findall(pattern, text))
    assert Counter(wrong) == OTHER_MACHINES


def test_public_surface_is_listed() -> None:
    import kedge
    import kedge.testing

    names = [f"kedge.{name}" for name in kedge.__all__]
    names += [f"kedge.testing.{name}" for name in kedge.testing.__all__]
    assert sorted(names) == PUBLIC.read_text().split()
    for name in kedge.__all__:
        assert getattr(kedge, name) is not None


def test_generated_documents_are_fresh() -> None:
    lifecycle = runpy.run_path(str(ROOT / "scripts" / "lifecycle.py"))["lifecycle_svg"]
    assert (ROOT / "docs" / "lifecycle.svg").read_text() == lifecycle(), "run scripts/docs"
    page = runpy.run_path(str(ROOT / "scripts" / "scenarios.py"))["page"]
    assert (ROOT / "docs" / "scenarios.md").read_text() == page(), "run scripts/docs"
    configuration = runpy.run_path(str(ROOT / "scripts" / "configuration.py"))["page"]
    assert (ROOT / "docs" / "configuration.md").read_text() == configuration(), "run scripts/docs"
