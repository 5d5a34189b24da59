"""Programs that kedge starts without asking: looked up in PATH, and never taken from a workspace.

A repository may bring its own `bash`, `rg` or `ls`, and PATH may lead there: an activated `.venv`, `node_modules/.bin`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def first_program(name: str, path: str) -> str | None:
    """The program that a shell with this PATH runs. Relative entries of PATH are skipped. Blocking."""
    return next(_programs(name, path), None)


def program_outside(name: str, path: str, workspace: Path) -> str | None:
    """The first program of that name that is not from the workspace. Blocking."""
    return next((found for found in _programs(name, path) if is_outside(found, workspace)), None)


def is_outside(program: str, workspace: Path) -> bool:
    """Neither the program nor its directory lies in the workspace, as they are named and as their links lead.

    Directories are compared by what they are, too: a file system may be mounted twice, or take `Bin` for `bin`."""
    inside = (os.path.normpath(workspace), os.path.realpath(workspace))
    names = (os.path.normpath(program), os.path.realpath(program), os.path.realpath(os.path.dirname(program)))
    if any(Path(name).is_relative_to(root) for name in names for root in inside):
        return False
    try:
        root = os.stat(workspace)
        parents = {parent for name in names for parent in Path(name).parents}
        return not any(os.path.samestat(os.stat(parent), root) for parent in parents)
    except OSError:
        return False


def _programs(name: str, path: str) -> Iterator[str]:
    for place in path.split(os.pathsep):
        if os.path.normpath(place).lstrip("/").startswith("proc/"):
            continue  # /proc/self/cwd is another directory for each process
        found = os.path.join(place, name)
        if os.path.isabs(place) and os.path.isfile(found) and os.access(found, os.X_OK):
            yield found
