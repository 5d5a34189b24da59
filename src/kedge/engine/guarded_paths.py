"""The guarded files and directories of a workspace, which commands that run unasked cannot change.

Only paths that exist can be mounted read-only: a command can still create a missing `AGENTS.md`, or a new repository
with hooks of its own. Of a git directory only the files that make git run programs are guarded, so that
`git commit` works.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain, islice

from kedge.tools.file_threads import checkpoint
from kedge.tools.workspace_paths import guards_entry
from kedge.warden.sandbox_paths import is_below

log = logging.getLogger("kedge.engine")

#: Entries that are checked for each command, those next to the root first, at some 4 us each. Items.
SCANNED_MAX = 20_000
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


def guarded_paths(workspace: str) -> tuple[str, ...]:
    """Return the guarded paths in a workspace, without links, the nearest to its root first. Blocking."""
    candidates = chain(_earlier.get(workspace, ()), _guarded(workspace))
    paths = tuple(islice(dict.fromkeys(_real(candidates, workspace)), GUARDED_MAX))
    _earlier.pop(workspace, None)
    _earlier[workspace] = paths
    for oldest in tuple(_earlier)[:-WORKSPACES_MAX]:
        _earlier.pop(oldest, None)
    return paths


def remove_redirections(protected: Iterable[str]) -> None:
    """Remove a `commondir` that a command created in a git directory with guarded hooks: git would obey the
    configuration and the hooks of the directory that it names. Blocking."""
    existing = frozenset(protected)
    for path in existing:
        directory, name = os.path.split(path)
        redirection = os.path.join(directory, "commondir")
        if name == "hooks" and redirection not in existing:
            with suppress(OSError):
                os.unlink(redirection)
                log.warning("%s was created by a confined command, and removed", redirection)


def _guarded(workspace: str) -> Iterator[str]:
    git = os.path.join(workspace, ".git")
    directories, left = deque([git, workspace]), SCANNED_MAX
    while directories and left > 0:
        checkpoint()
        directory = directories.popleft()
        try:
            with os.scandir(directory) as listing:
                entries = sorted(islice(listing, left), key=lambda entry: entry.name)
        except OSError:
            continue
        left -= len(entries)
        names = {entry.name for entry in entries}
        is_git = "HEAD" in names and ({"objects", "refs"} <= names or "commondir" in names)
        if is_git:
            yield from _git_files(directory, names)
        for entry in entries:
            is_directory = entry.is_dir(follow_symlinks=False)
            is_git_directory = is_directory and entry.name.casefold() == ".git"
            if not is_git and not is_git_directory and guards_entry(os.path.basename(directory), entry.name):
                yield entry.path
            elif is_directory and (entry.name in GIT_NESTED or not is_git) and entry.name not in SKIPPED:
                directories += [entry.path] if entry.path != git else []


def _git_files(directory: str, names: set[str]) -> Iterator[str]:
    if "hooks" not in names and "commondir" not in names:
        with suppress(OSError):
            # What does not exist cannot be protected. An empty directory changes nothing.
            os.mkdir(os.path.join(directory, "hooks"))
    yield from (os.path.join(directory, name) for name in GIT_FILES)


def _real(paths: Iterable[str], workspace: str) -> Iterator[str]:
    """Replace links by their targets in the workspace: a link itself cannot be protected."""
    for path in paths:
        real = os.path.realpath(path) if os.path.islink(path) else path
        if is_below(real, workspace) and os.path.exists(real):
            yield real
