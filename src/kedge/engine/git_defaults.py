"""The check that a new git repository is as git creates it: its configuration and hooks name no programs.

A command in the sandbox may run `git init`, `git clone` and `git worktree add`. What else it puts into a new git
directory is withheld: see `withheld_files`. All functions block.
"""

from __future__ import annotations

import os
import re
import stat
from itertools import islice, pairwise
from pathlib import Path

from kedge.engine.guarded_paths import GIT_NESTED, GuardedEntry
from kedge.tools import disk
from kedge.tools.tool_failed import ToolFailed
from kedge.warden.sandbox_paths import is_below

#: Limit of a configuration: hundreds of branches. Bytes.
CONFIG_BYTES_MAX = 64 * 1024
#: Limit of the files in hooks: git creates fourteen samples. Items.
HOOKS_MAX = 100

_SECTION = re.compile(r'\[([a-z]+)(?: "[^"]*")?\]')
_SETTING = re.compile(r"[ \t]*([A-Za-z][A-Za-z0-9-]*)[ \t]*=[ \t]*(.*)")
#: The settings that git itself writes, by section. None of them names a program or a file to include.
_SETTINGS = frozenset(
    {"core.repositoryformatversion", "core.filemode", "core.bare", "core.logallrefupdates", "core.symlinks"}
    | {"core.ignorecase", "core.precomposeunicode", "core.worktree", "core.autocrlf", "core.eol"}
    | {"core.sparsecheckout", "core.sparsecheckoutcone"}
    | {"extensions.objectformat", "extensions.refstorage", "extensions.worktreeconfig"}
    | {"remote.url", "remote.fetch", "branch.remote", "branch.merge", "branch.rebase", "pull.rebase", "pull.ff"}
    | {"submodule.url", "submodule.active", "user.name", "user.email", "init.defaultbranch"}
)


def is_default(entry: GuardedEntry, workspace: str) -> bool:
    """Return whether a new entry of a git directory, or a new `.git` file, is as git creates it."""
    path = Path(entry.path)
    try:
        if not entry.is_in_git:
            return path.name == ".git" and _leads_inside(path, workspace)
        if path.name == "hooks":
            return _has_only_samples(path)
        if path.name == "commondir":
            return path.parent.parent.name == "worktrees" and _text(path) == "../..\n"
        return is_default_config(_text(path), path.parent, workspace)
    except (ToolFailed, OSError, ValueError):
        return False


def _text(path: Path) -> str:
    content = disk.read(path, bytes_max=CONFIG_BYTES_MAX)
    return "" if content is None else content.data.decode()


def _leads_inside(path: Path, workspace: str) -> bool:
    """Return whether a `.git` file names a work tree or module of a repository in this workspace, which is scanned."""
    text = _text(path)
    if not text.startswith("gitdir: ") or not text.endswith("\n") or "\n" in text[:-1]:
        return False
    target = os.path.realpath(path.parent / text.removeprefix("gitdir: ")[:-1])
    if not is_below(target, workspace):
        return False
    parts = Path(target).relative_to(workspace).parts
    return any(name == ".git" and nested in GIT_NESTED for name, nested in pairwise(parts))


def _has_only_samples(path: Path) -> bool:
    with disk.opened_directory(path) as directory, os.scandir(directory) as listing:
        entries = list(islice(listing, HOOKS_MAX + 1))
        return len(entries) <= HOOKS_MAX and all(
            entry.name.endswith(".sample") and stat.S_ISREG(entry.stat(follow_symlinks=False).st_mode)
            for entry in entries
        )


def is_default_config(text: str, directory: Path, workspace: str) -> bool:
    """Return whether a configuration of git has only settings of the table. `directory`: the git directory.

    A subset of the syntax is understood, the one that git itself writes; anything else is not a default."""
    section = ""
    for line in text.split("\n"):
        if not line.strip(" \t"):
            continue
        if not line.replace("\t", " ").isprintable() or "\\" in line:
            return False
        if match := _SECTION.fullmatch(line.strip(" \t")):
            section = match[1]
        elif not (match := _SETTING.fullmatch(line)) or not _is_harmless(
            f"{section}.{match[1].lower()}", match[2].strip(" \t"), directory, workspace
        ):
            return False
    return True


def _is_harmless(name: str, value: str, directory: Path, workspace: str) -> bool:
    if name.endswith(".url"):
        return name in _SETTINGS and "::" not in value and not value.startswith("-")  # `ext::COMMAND` runs a command
    if name == "core.worktree":
        return is_below(os.path.realpath(directory / value.strip('"')), workspace)
    return name in _SETTINGS
