"""Lookup of programs that kedge starts without an approval: in PATH, and never in a workspace.

A repository may contain its own `bash` or `rg`, and PATH may lead there: an activated `.venv`, `node_modules/.bin`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def first_program(name: str, path: str) -> str | None:
    """Return the program that a shell with this PATH runs. Skips relative entries. Blocking."""
    return next(_programs(name, path), None)


def program_outside(name: str, path: str, workspace: Path) -> str | None:
    """Return the first program of that name outside of the workspace. Blocking."""
    return next((program for program in _programs(name, path) if is_outside(program, workspace)), None)


def is_outside(program: str, workspace: Path) -> bool:
    """Return True if neither the program nor its directory is in the workspace, as named and with links resolved.

    Directories are also compared by inode: a file system may be mounted twice, or ignore case."""
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
    for directory in path.split(os.pathsep):
        if os.path.normpath(directory).lstrip("/").startswith("proc/"):
            continue  # /proc/self/cwd is another directory for each process
        program = os.path.join(directory, name)
        if os.path.isabs(directory) and os.path.isfile(program) and os.access(program, os.X_OK):
            yield program
