"""ls: show a directory as a tree."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from heapq import nsmallest
from itertools import islice
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from kedge.tools import disk
from kedge.tools.base import OUTPUT_CHARS_MAX, Prepared, Tool, ToolContext, ToolOutput, count_of
from kedge.tools.file_threads import checkpoint
from kedge.tools.ripgrep import list_files
from kedge.tools.workspace_paths import Target, printable, read_intent, resolve

#: Limit of the entries shown. Those nearest to the top come first, so that one large directory does not hide others.
ENTRIES_MAX = 500
#: Default and limit of the levels shown.
DEPTH_DEFAULT = 4
DEPTH_MAX = 20
#: Entries of the directory itself that are scanned for those that rg does not list. Items.
OWN_ENTRIES_MAX = 5000
#: Files and directories held in memory: some 50 MB. Further ones are ignored. Items.
NODES_MAX = 200_000
#: Limit of the tree, with room for the last line. Characters.
TREE_CHARS_MAX = OUTPUT_CHARS_MAX - 500

_DESCRIPTION = """\
Shows a directory as a tree, directories first.
- `path` is the directory, by default the workspace; `depth` is the number of levels shown.
- Files that .gitignore excludes are not listed below the first level, and .git never is. Hidden files are listed.
- At most 500 entries are shown, those nearest to the top first. A collapsed directory shows its number of files.
- To find files by name use glob, by content grep.
"""


class LsInput(msgspec.Struct, frozen=True):
    path: Annotated[str, Meta(min_length=1, description="The directory. Default: the workspace.")] = "."
    depth: Annotated[int, Meta(ge=1, le=DEPTH_MAX, description="The number of levels to show.")] = DEPTH_DEFAULT


class LsTool(Tool):
    name = "ls"
    description = _DESCRIPTION
    input: type[msgspec.Struct] = LsInput
    read_only = True
    for_children = True

    def __init__(self, guarded: tuple[Path, ...] = ()) -> None:
        self._guarded = guarded

    def title(self, args: LsInput) -> str:
        return f"ls {printable(args.path)}"

    async def prepare(self, args: LsInput, context: ToolContext) -> Prepared:
        target = await context.threads.look(resolve, args.path, context.root, self._guarded)

        async def run() -> ToolOutput:
            async with context.threads.searches:
                files, is_all = await list_files(context, target)
                return await context.threads.run(_listing, target, files, is_all, args.depth)

        return Prepared(read_intent(("ls", "view"), target, f"List {target.shown}", {"depth": args.depth}), run)


@dataclass(slots=True)
class _Node:
    """A directory or a file."""

    children: dict[str, _Node] = field(default_factory=dict)
    is_directory: bool = False
    #: Number of files in it, at any depth.
    files: int = 0
    #: Shown after its name.
    note: str = ""
    is_shown: bool = False


def _listing(target: Target, files: list[str], is_all: bool, depth: int) -> ToolOutput:
    top, is_whole = _tree(files)
    is_all = is_all and is_whole
    _add_unlisted(top, target.path)
    shown, total = _choose(top, depth)
    rows = [f"{target.shown.rstrip('/')}/", *_rows(top, 1)]
    while sum(len(row) + 1 for row in rows) > TREE_CHARS_MAX:
        rows = rows[: len(rows) * 3 // 4]
    shown = min(shown, len(rows) - 1)
    if shown < total:
        rows.append(f"({total - shown} more entries are not shown; give a path or another depth.)")
    if not is_all:
        rows.append("(There are too many files; some were not scanned.)")
    if not top.children:
        rows = [f"{target.shown} is empty."]
    metadata = {"path": target.subject, "shown": shown, "entries": total}
    return ToolOutput("\n".join(rows), metadata, summary=count_of(total, "entry", "entries"))


def _tree(files: list[str]) -> tuple[_Node, bool]:
    """Return the tree, and whether it is complete: a path may have two thousand parts."""
    top = _Node(is_directory=True)
    room = NODES_MAX
    for file in files:
        checkpoint()
        node = top
        *directories, name = file.split("/")
        if len(directories) >= room:
            return top, False
        for part in directories:
            child = node.children.get(part)
            if child is None:
                room -= 1
                child = node.children[part] = _Node(is_directory=True)
            node = child
            node.files += 1
        if name not in node.children:
            room -= 1
            node.children[name] = _Node()
    return top, True


def _add_unlisted(top: _Node, path: Path) -> None:
    """Add symlinks and ignored or empty entries of the directory itself: rg does not list them."""
    with disk.opened_directory(path) as directory, os.scandir(directory) as entries:
        for entry in islice(entries, OWN_ENTRIES_MAX):
            if entry.name in top.children or entry.name == ".git":
                continue
            if entry.is_symlink():
                node = _Node(note=f" -> {printable(os.readlink(entry.name, dir_fd=directory))}")
            elif entry.is_dir(follow_symlinks=False):
                node = _Node(is_directory=True, note=" (ignored or empty)")
            else:
                node = _Node(note=" (ignored, or not a file)")
            top.children[entry.name] = node


def _choose(top: _Node, depth: int) -> tuple[int, int]:
    """Mark the entries to show, level by level. Return their number and the number of all entries."""
    shown = total = 0
    number = 0
    level = [top]
    while level:
        number += 1
        below: list[_Node] = []
        for node in level:
            checkpoint()
            room = ENTRIES_MAX - shown if number <= depth else 0
            # Not sorted(): that is one step of the interpreter, which holds its lock meanwhile.
            first = dict.fromkeys(nsmallest(room, node.children))
            for name in first:
                node.children[name].is_shown = True
            shown += len(first)
            below += [node.children[name] for name in first]
            below += [child for name, child in node.children.items() if name not in first]
        total += len(below)
        level = below
    return shown, total


def _rows(node: _Node, depth: int) -> list[str]:
    rows: list[str] = []
    shown = [name for name, child in node.children.items() if child.is_shown]
    for name in sorted(shown, key=lambda name: (not node.children[name].is_directory, name)):
        child = node.children[name]
        hidden = sum(not grandchild.is_shown for grandchild in child.children.values())
        files = f" ({child.files} file{'' if child.files == 1 else 's'})"
        count = files if hidden == len(child.children) and hidden else ""
        rows.append(f"{'  ' * depth}{printable(name)}{'/' * child.is_directory}{child.note}{count}")
        rows += _rows(child, depth + 1)
    return rows
