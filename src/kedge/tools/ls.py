"""ls: what is in a directory, as a tree."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from heapq import nsmallest
from itertools import islice
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from kedge.tools import disk
from kedge.tools.base import OUTPUT_CHARS_MAX, Prepared, ToolContext, ToolOutput
from kedge.tools.paths import Target, look, printable, resolve
from kedge.tools.ripgrep import list_files
from kedge.tools.tool_threads import checkpoint

#: Entries shown: what is nearest to the top comes first, so that one large directory does not hide the others.
ENTRIES_MAX = 500
#: Directories below each other, unless asked otherwise and at most.
DEPTH_DEFAULT = 4
DEPTH_MAX = 20
#: Entries of the directory itself that are looked at for those rg does not list.
OWN_ENTRIES_MAX = 5000
#: Files and directories held at once: some 50 MB. What comes after them is not seen. Items.
NODES_MAX = 200_000
#: Of the tree, in characters, with room for the last line.
TREE_CHARS_MAX = OUTPUT_CHARS_MAX - 500


class LsInput(msgspec.Struct, frozen=True):
    path: Annotated[str, Meta(min_length=1, description="The directory; the workspace unless given.")] = "."
    depth: Annotated[int, Meta(ge=1, le=DEPTH_MAX, description="How many levels to show.")] = DEPTH_DEFAULT


class LsTool:
    name = "ls"
    input: type[msgspec.Struct] = LsInput
    kind: Literal["look", "change"] = "look"

    def __init__(self, guarded: tuple[Path, ...] = ()) -> None:
        self._guarded = guarded

    async def prepare(self, args: LsInput, context: ToolContext) -> Prepared:
        target = await context.threads.run(resolve, args.path, context.root, self._guarded)

        async def run() -> ToolOutput:
            async with context.threads.searches:
                files, is_all = await list_files(context, target)
                return await context.threads.run(_listing, target, files, is_all, args.depth)

        intent = look(("ls", "view"), target, f"List {target.shown}", {"depth": args.depth})
        return Prepared(intent, run, f"ls {target.shown}")


@dataclass(slots=True)
class _Node:
    """A directory, or a file if it is nobody's parent."""

    children: dict[str, _Node] = field(default_factory=dict)
    is_directory: bool = False
    #: Files in it, at any depth.
    files: int = 0
    #: Said after its name.
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
        rows.append(f"({total - shown} more entries were left out; give a path or another depth.)")
    if not is_all:
        rows.append("(There are very many files; not all were seen.)")
    if not top.children:
        rows = [f"{target.shown} is empty."]
    return ToolOutput("\n".join(rows), {"path": target.subject, "shown": shown, "entries": total})


def _tree(files: list[str]) -> tuple[_Node, bool]:
    """And whether all of them are in it: a path may have two thousand parts."""
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
    """rg lists files that are not ignored. Of the directory itself, links and what is ignored or empty are named."""
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
    """Mark what is shown, level by level; how many that are, and how many there are in all."""
    shown = total = 0
    number = 0
    level = [top]
    while level:
        number += 1
        below: list[_Node] = []
        for node in level:
            checkpoint()
            room = ENTRIES_MAX - shown if number <= depth else 0
            # Not sorted whole: that is one step of the interpreter, and the server waits for it.
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
        count = f" ({child.files} files)" if hidden == len(child.children) and hidden else ""
        rows.append(f"{'  ' * depth}{printable(name)}{'/' * child.is_directory}{child.note}{count}")
        rows += _rows(child, depth + 1)
    return rows
