"""New guarded files of a command in the sandbox: they are withheld, since programs and agents would obey them unasked.

Guarded files that exist are read-only for such a command, but it can create others: `CLAUDE.md`, `.vscode/tasks.json`,
hooks of a new repository. When all its processes have ended, the workspace is compared with the scan from before the
command, and what is new is moved into a directory of kedge, or renamed if that is on another file system. Nothing is
deleted: a user may have created the file meanwhile. A replaced link is restored. A new git repository stays if it is
as git creates it.

    not covered    what is below a directory that the scan before did not reach (SCANNED_MAX entries), `node_modules`
                   and `__pycache__`; files of a command that still runs, or that was killed with the server
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from kedge.engine.git_defaults import is_default
from kedge.engine.guarded_paths import GuardedEntry, Scan, listings
from kedge.tools import disk, own_writes
from kedge.tools.file_threads import checkpoint
from kedge.tools.tool_failed import ToolFailed
from kedge.tools.workspace_paths import printable

log = logging.getLogger("kedge.engine")

#: Entries that are compared after a command, at some 4 us each: those of the scan before, and new ones. Items.
COMPARED_MAX = 1_000_000
#: Directories of withheld files that are kept, the newest. Items.
KEPT_MAX = 100
#: Names in one message, and the length of one. Items and characters.
NAMED_MAX, NAME_CHARS_MAX = 5, 200


class Withheld(Struct):
    """The withheld files of one command."""

    #: The directory that it was moved to. Those on another file system have its name as a suffix.
    moved_to: str = ""
    has_moved: bool = False
    has_renamed: bool = False
    #: The paths in the workspace: the first of them, and the number of all.
    names: tuple[str, ...] = ()
    count: int = 0
    #: The number of those that could not be moved.
    left: int = 0

    def note(self) -> str:
        """Return one line for the model and the user. Empty: nothing was withheld."""
        if not self.names:
            return ""
        more = f" and {self.count - len(self.names)} more" if self.count > len(self.names) else ""
        ways = [f"moved to {self.moved_to}"] if self.has_moved else []
        ways += [f"renamed, with the suffix .{os.path.basename(self.moved_to)}"] if self.has_renamed else []
        ways += [f"in part ({self.left}) left there, since they cannot be moved"] if self.left else []
        return (
            f"Withheld: {', '.join(self.names)}{more}. A command in the sandbox must not leave new guarded files; they "
            f"were {' and '.join(ways)}. If they are needed, write them with the edit tools, or repeat the command "
            "with the reason in `unconfined`; the user is asked."
        )


def withhold(before: Scan, directory: str) -> Withheld:
    """Move new guarded files of the workspace to a new directory in `directory`. Blocking."""
    moving = _Moving(before.workspace, directory)
    accepted = own_writes.since(before.last_write)
    for entry in _new(before):
        if not is_default(entry, before.workspace):
            for path in _not_accepted(entry.path, accepted):
                moving.move(path)
    for entry in before.guarded.values():
        if entry.link and entry.path not in accepted and _link(entry.path) != entry.link:
            if os.path.lexists(entry.path):
                moving.move(entry.path)
            with suppress(ToolFailed):
                disk.make_link(Path(entry.path), entry.link)
    if moving.withheld.names:
        log.warning("%s: %s", before.workspace, moving.withheld.note())
    return moving.withheld


def remove_oldest(directory: str) -> None:
    """Delete withheld files that are older than the last KEPT_MAX. Blocking."""
    with suppress(OSError), os.scandir(directory) as entries:
        directories = sorted(entries, key=lambda entry: entry.stat(follow_symlinks=False).st_mtime_ns)
        for entry in directories[:-KEPT_MAX]:
            shutil.rmtree(entry.path, ignore_errors=True)


def _new(before: Scan) -> Iterator[GuardedEntry]:
    """Yield the guarded entries that the workspace did not have before. A directory is new if it is in a listed or new
    directory and was not seen there."""
    git = os.path.join(before.workspace, ".git")
    new = set() if git in before.seen else {git}

    def enters(path: str) -> bool:
        return path in new or path in before.listed

    def make_accessible(path: str) -> None:
        if path in new:
            with suppress(ToolFailed):
                disk.make_accessible(Path(path))

    for listing in listings(before.workspace, COMPARED_MAX, enters, make_accessible):
        new.update(path for path in listing.directories if path not in before.seen)
        yield from (entry for entry in listing.guarded if entry.path not in before.guarded)


def _not_accepted(path: str, accepted: frozenset[str]) -> Iterator[str]:
    """Yield the path, or of a directory with files that kedge has written, everything else."""
    if path not in accepted:
        yield path
    elif os.path.isdir(path) and not os.path.islink(path):
        with suppress(OSError), os.scandir(path) as entries:
            for entry in list(entries):
                yield from _not_accepted(entry.path, accepted)


def _link(path: str) -> str:
    with suppress(OSError):
        return os.readlink(path)
    return ""


class _Moving:
    def __init__(self, workspace: str, directory: str) -> None:
        self._workspace = workspace
        self._directory = directory
        self.withheld = Withheld()

    def move(self, path: str) -> None:
        checkpoint()
        withheld, name = self.withheld, os.path.relpath(path, self._workspace)
        try:
            moved_to = self._make_directory()
            target = Path(moved_to, name)
            os.makedirs(target.parent, 0o700, exist_ok=True)
            moved = disk.move_away(Path(path), target, f"{target.name}.{os.path.basename(moved_to)}")
            withheld.has_moved = withheld.has_moved or moved == target
            withheld.has_renamed = withheld.has_renamed or moved != target
        except (ToolFailed, OSError) as error:
            withheld.left += 1
            log.debug("%s cannot be moved: %s", path, error)
        withheld.count += 1
        if len(withheld.names) < NAMED_MAX:
            withheld.names += (printable(name)[:NAME_CHARS_MAX],)

    def _make_directory(self) -> str:
        if not self.withheld.moved_to:
            os.makedirs(self._directory, 0o700, exist_ok=True)
            self.withheld.moved_to = tempfile.mkdtemp(prefix="withheld-", dir=self._directory)
        return self.withheld.moved_to
