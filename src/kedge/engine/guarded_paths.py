"""The guarded files and directories of a workspace, which commands that run unasked cannot change.

Only paths that exist can be mounted read-only. Those that a command creates are withheld when it has ended, see
`withheld_files`. Of a git directory only the files that make git run programs are guarded, so that `git commit` works.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import chain, islice

from msgspec import Struct

from kedge.tools import own_writes
from kedge.tools.file_threads import checkpoint
from kedge.tools.workspace_paths import guards_entry, guards_link
from kedge.warden.sandbox_paths import is_below

#: Entries that are checked before a command, those next to the root first, at some 4 us each. Items.
SCANNED_MAX = 20_000
#: Entries of one directory: a larger one is not scanned. Its entries are in memory together. Items.
LISTED_MAX = 50_000
#: Guarded paths of one workspace, at some 100 us each for the mounts. Items.
GUARDED_MAX = 200
#: Workspaces whose guarded paths are remembered, at some 20 KB each. Items.
WORKSPACES_MAX = 100
#: Directories of others, with thousands of entries that nothing in this workspace obeys.
SKIPPED = frozenset({"node_modules", "__pycache__"})
#: Entries of a git directory that name programs, or another directory that does.
GIT_FILES = ("config", "config.worktree", "hooks", "commondir")
#: Entries of a git directory that contain others.
GIT_NESTED = frozenset({"modules", "worktrees"})


#: The guarded paths of earlier calls by workspace, the latest workspace last. They come first: a command could
#: otherwise create so many others that the limits leave out those that were there before it.
_earlier: dict[str, tuple[str, ...]] = {}


class GuardedEntry(Struct, frozen=True):
    path: str
    #: The text of a symlink. Empty: it is none.
    link: str = ""
    #: One of GIT_FILES.
    is_in_git: bool = False


class ScannedDirectory(Struct, frozen=True):
    """One directory: its guarded entries, and the directories in it that may have others."""

    directory: str
    guarded: tuple[GuardedEntry, ...]
    directories: tuple[str, ...]
    #: A git directory that can be given hooks.
    lacks_hooks: bool = False


class Scan(Struct, frozen=True):
    """The guarded files and directories of a workspace before a command."""

    workspace: str
    #: By path.
    guarded: dict[str, GuardedEntry]
    #: The directories whose entries are known, and all that were seen: some are beyond the limit.
    listed: frozenset[str]
    seen: frozenset[str]
    #: The last write of kedge itself, see `own_writes`.
    last_write: int


def scan(workspace: str) -> Scan:
    """Scan a workspace, up to SCANNED_MAX entries. Blocking."""
    last_write = own_writes.last()
    guarded: dict[str, GuardedEntry] = {}
    listed, seen = set[str](), {workspace}
    for listing in listings(workspace, SCANNED_MAX):
        listed.add(listing.directory)
        seen.update(listing.directories)
        guarded.update({entry.path: entry for entry in listing.guarded})
        if listing.lacks_hooks:
            hooks = os.path.join(listing.directory, "hooks")
            with suppress(OSError):
                # What does not exist cannot be protected. An empty directory changes nothing.
                os.mkdir(hooks)
                guarded[hooks] = GuardedEntry(hooks, is_in_git=True)
    return Scan(workspace, guarded, frozenset(listed), frozenset(seen), last_write)


def protected_paths(before: Scan) -> tuple[str, ...]:
    """Return the paths to mount read-only, without links, the nearest to the root first. Blocking."""
    workspace = before.workspace
    candidates = chain(_earlier.get(workspace, ()), before.guarded)
    paths = tuple(islice(dict.fromkeys(_real(candidates, workspace)), GUARDED_MAX))
    _earlier.pop(workspace, None)
    _earlier[workspace] = paths
    for oldest in tuple(_earlier)[:-WORKSPACES_MAX]:
        _earlier.pop(oldest, None)
    return paths


def listings(
    workspace: str,
    entries_max: int,
    enters: Callable[[str], bool] = lambda directory: True,
    make_accessible: Callable[[str], None] = lambda directory: None,
) -> Iterator[ScannedDirectory]:
    """Yield the directories of a workspace that `enters` accepts, the nearest to its root first. Blocking.

    `make_accessible`: called for a directory that cannot be listed, before the second attempt."""
    git = os.path.join(workspace, ".git")
    directories, left = deque([git, workspace]), entries_max
    while directories and left > 0:
        checkpoint()
        directory = directories.popleft()
        if not enters(directory):
            continue
        try:
            try:
                entries = _entries(directory)
            except PermissionError:
                make_accessible(directory)
                entries = _entries(directory)
        except OSError:
            continue
        if len(entries) > LISTED_MAX:
            continue
        left -= len(entries)
        listing = _listing(directory, entries)
        directories += [path for path in listing.directories if path != git]
        yield listing


def _entries(directory: str) -> list[os.DirEntry[str]]:
    with os.scandir(directory) as entries:
        return sorted(islice(entries, LISTED_MAX + 1), key=lambda entry: entry.name)


def _listing(directory: str, entries: list[os.DirEntry[str]]) -> ScannedDirectory:
    name = os.path.basename(directory)
    names = {entry.name for entry in entries}
    is_complete_git = "HEAD" in names and ({"objects", "refs"} <= names or "commondir" in names)
    is_git = is_complete_git or name.casefold() == ".git"
    guarded, directories = list[GuardedEntry](), list[str]()
    for entry in entries:
        is_directory = entry.is_dir(follow_symlinks=False)
        if is_git:
            if entry.name in GIT_FILES:
                guarded.append(GuardedEntry(entry.path, _link(entry), is_in_git=True))
            elif is_directory and entry.name in GIT_NESTED:
                directories.append(entry.path)
        elif is_directory and entry.name.casefold() == ".git":
            directories.append(entry.path)
        elif guards_entry(name, entry.name) or (entry.is_symlink() and guards_link(entry.name)):
            guarded.append(GuardedEntry(entry.path, _link(entry)))
        elif is_directory and entry.name not in SKIPPED:
            directories.append(entry.path)
    lacks_hooks = is_complete_git and names.isdisjoint(("hooks", "commondir"))
    return ScannedDirectory(directory, tuple(guarded), tuple(directories), lacks_hooks)


def _link(entry: os.DirEntry[str]) -> str:
    with suppress(OSError):
        return os.readlink(entry.path) if entry.is_symlink() else ""
    return ""


def _real(paths: Iterable[str], workspace: str) -> Iterator[str]:
    """Replace links by their targets in the workspace: a link itself cannot be protected."""
    for path in paths:
        real = os.path.realpath(path) if os.path.islink(path) else path
        if is_below(real, workspace) and os.path.exists(real):
            yield real
