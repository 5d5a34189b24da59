"""Mutants: small faults, each put into one module while it is imported. No source file is changed.

In this process an import hook compiles the changed syntax tree. Tests that start processes (a server, or the keeper of
the warden, which starts without environment and site) use a copy of the package that contains the fault.
"""

from __future__ import annotations

import ast
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Literal

from proof.mutants.anchor import AnchorError, mutate

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src"

#: "cluster" is the simulator with several nodes.
Finder = Literal["sim", "cluster", "walk", "tests"]


@dataclass(frozen=True, slots=True)
class Mutant:
    name: str
    #: Module without its package, and function: "engine.door:Door.write".
    at: str
    #: The anchor and its replacement (proof/mutants/anchor.py).
    old: str
    new: str
    #: What users of the product would see.
    effect: str = ""
    finder: Finder = "sim"
    #: For the finder "tests": the arguments of pytest.
    tests: tuple[str, ...] = ()

    @property
    def module(self) -> str:
        return self.at.partition(":")[0]

    @property
    def path(self) -> Path:
        return module_path(self.module)

    def tree(self) -> ast.Module:
        """Return the syntax tree of the module with the fault. Raises AnchorError."""
        try:
            return mutate(self.path.read_text("utf-8"), self.at.partition(":")[2], self.old, self.new)
        except (AnchorError, OSError) as error:
            raise AnchorError(f"mutant {self.name!r} ({self.at}): {error}") from error


def module_path(module: str) -> Path:
    return SRC / "kedge" / (module.replace(".", "/") + ".py")


class _Loader(SourceFileLoader):
    def __init__(self, fullname: str, path: str, tree: ast.Module) -> None:
        super().__init__(fullname, path)
        self._tree = tree

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._tree, self.path, "exec", dont_inherit=True)


class Hook(MetaPathFinder):
    """Loads one module from another syntax tree."""

    def __init__(self, module: str, tree: ast.Module) -> None:
        self._module = f"kedge.{module}"
        self._tree = tree

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._module:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        assert spec is not None
        assert spec.origin is not None
        spec.loader = _Loader(fullname, spec.origin, self._tree)
        return spec


def install(module: str, tree: ast.Module) -> None:
    """Make the next import of the module use this tree."""
    assert f"kedge.{module}" not in sys.modules, f"{module} is already imported"
    sys.meta_path.insert(0, Hook(module, tree))


def copy_with(mutant: Mutant, package: Path, directory: Path) -> None:
    """Copy the package to `directory`, with the fault. The compiled modules are copied too.

    `package` is a copy of the package on the same file system. It must not change: the copies are hard links."""
    shutil.copytree(package, directory / "kedge", copy_function=os.link)
    faulty = directory / "kedge" / mutant.path.relative_to(SRC / "kedge")
    faulty.unlink()
    faulty.write_text(ast.unparse(mutant.tree()), "utf-8")
