"""A mutant: one small fault, put into one module of ours while it is imported. No file of ours is touched.

In this process an import hook compiles the changed text. Tests that start processes of their own (a server, the keeper
of the warden, which is started without environment and site) get a copy of the package with the fault in it instead.
"""

from __future__ import annotations

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

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src"

Finder = Literal["sim", "walk", "tests"]


@dataclass(frozen=True, slots=True)
class Mutant:
    name: str
    #: The module without its package: "engine.door".
    module: str
    #: Occurs exactly once in the module.
    old: str
    new: str
    #: What users would have of it.
    hurts: str
    finder: Finder = "sim"
    #: Of the finder "tests": what pytest is to run.
    tests: tuple[str, ...] = ()

    @property
    def path(self) -> Path:
        return SRC / "kedge" / (self.module.replace(".", "/") + ".py")

    def text(self) -> str:
        """The module with the fault in it."""
        source = self.path.read_text("utf-8")
        found = source.count(self.old)
        if found != 1:
            raise LookupError(f"mutant {self.name}: its text occurs {found} times in {self.module}; write it anew")
        return source.replace(self.old, self.new)


class _Loader(SourceFileLoader):
    def __init__(self, fullname: str, path: str, text: str) -> None:
        super().__init__(fullname, path)
        self._text = text

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._text, self.path, "exec", dont_inherit=True)


class Hook(MetaPathFinder):
    """Gives the one module its other text."""

    def __init__(self, module: str, text: str) -> None:
        self._module = f"kedge.{module}"
        self._text = text

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._module:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        assert spec is not None
        assert spec.origin is not None
        spec.loader = _Loader(fullname, spec.origin, self._text)
        return spec


def install(module: str, text: str) -> None:
    """From here on the module is imported with this text."""
    assert f"kedge.{module}" not in sys.modules, f"{module} is imported already"
    sys.meta_path.insert(0, Hook(module, text))


def copy_with(mutant: Mutant, package: Path, directory: Path) -> None:
    """Our package in `directory`, with the fault. What was compiled before is taken along: it is still true.

    `package` is a copy of it in the same file system, which must stay as it is: its files are shared."""
    shutil.copytree(package, directory / "kedge", copy_function=os.link)
    faulty = directory / "kedge" / mutant.path.relative_to(SRC / "kedge")
    faulty.unlink()
    faulty.write_text(mutant.text(), "utf-8")
