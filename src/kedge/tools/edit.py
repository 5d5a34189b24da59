"""edit and multiedit: replace parts of a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from kedge.tools.base import Prepared, Tool, ToolContext, ToolFailed, count_of
from kedge.tools.disk import READ_FILE_BYTES_MAX
from kedge.tools.file_change import Rewritten, prepare_change
from kedge.tools.matching import WorkBudget, replace, too_large
from kedge.tools.textfile import TextFile, decode
from kedge.tools.workspace_paths import printable

#: Limit of one multiedit: beyond that, write is simpler. Items.
EDITS_MAX = 200
#: Limit of all old and new strings of one call: no model writes more at once. Characters.
STRINGS_CHARS_MAX = 1_000_000

_EDIT_DESCRIPTION = """\
Replaces one part of a file.
- View the file first. Copy `old_string` exactly from it, with its indentation, without the line numbers.
- `old_string` must occur exactly once: add surrounding lines until it does, or set `replace_all` to replace them all.
- An empty `old_string` creates a new file with `new_string` as its content.
- The file keeps its line endings, encoding and mode. If only whitespace differs and only one place matches, that place
  is changed, and the result states it.
- For several changes in one file use multiedit; to replace a whole file use write.
- The user may have to approve the diff. If the file changes in the meantime, nothing is written: view it again.
"""
_MULTIEDIT_DESCRIPTION = """\
Makes several replacements in one file: all of them or none.
- View the file first. Each edit has `old_string`, `new_string` and `replace_all`, as in edit.
- They are applied in order, each to the result of the one before. Do not repeat text that an earlier edit replaces.
- If one does not match, nothing is written, and the error names it.
- An empty `old_string` in the first edit creates a new file.
- Prefer this to several calls of edit on the same file.
"""

PathField = Annotated[str, Meta(min_length=1, description="The file, relative to the workspace or absolute.")]


class Replacement(msgspec.Struct, frozen=True):
    old_string: Annotated[str, Meta(description="The text to replace, exactly as in the file.")]
    new_string: Annotated[str, Meta(description="What to put there.")]
    replace_all: Annotated[bool, Meta(description="Replace every occurrence instead of exactly one.")] = False


class EditInput(msgspec.Struct, frozen=True):
    path: PathField
    old_string: Annotated[str, Meta(description="The text to replace, exactly as in the file. Empty: a new file.")]
    new_string: Annotated[str, Meta(description="What to put there.")]
    replace_all: Annotated[bool, Meta(description="Replace every occurrence instead of exactly one.")] = False


class MultiEditInput(msgspec.Struct, frozen=True):
    path: PathField
    edits: Annotated[
        list[Replacement],
        Meta(
            min_length=1,
            max_length=EDITS_MAX,
            description="Applied in this order, each to the result of the one before.",
        ),
    ]


class EditTool(Tool):
    name = "edit"
    description = _EDIT_DESCRIPTION
    input: type[msgspec.Struct] = EditInput

    def __init__(self, guarded: tuple[Path, ...] = ()) -> None:
        self._guarded = guarded

    def title(self, args: EditInput) -> str:
        return f"edit {printable(args.path)}"

    async def prepare(self, args: EditInput, context: ToolContext) -> Prepared:
        edit = Replacement(args.old_string, args.new_string, args.replace_all)
        return await _prepare(("edit",), args.path, [edit], context, self._guarded)


class MultiEditTool(Tool):
    name = "multiedit"
    description = _MULTIEDIT_DESCRIPTION
    input: type[msgspec.Struct] = MultiEditInput

    def __init__(self, guarded: tuple[Path, ...] = ()) -> None:
        self._guarded = guarded

    def title(self, args: MultiEditInput) -> str:
        return f"multiedit {printable(args.path)}"

    async def prepare(self, args: MultiEditInput, context: ToolContext) -> Prepared:
        return await _prepare(("multiedit", "edit"), args.path, args.edits, context, self._guarded)


async def _prepare(
    names: tuple[str, ...], path: str, edits: list[Replacement], context: ToolContext, guarded: tuple[Path, ...]
) -> Prepared:
    def rewrite(before: bytes | None, shown: str) -> Rewritten:
        return _rewrite(before, shown, edits)

    return await prepare_change(path, names, rewrite, context, guarded, can_rebase=True)


def _rewrite(before: bytes | None, shown: str, edits: list[Replacement]) -> Rewritten:
    """Apply all edits or none."""
    if sum(len(edit.old_string) + len(edit.new_string) for edit in edits) > STRINGS_CHARS_MAX:
        raise ToolFailed(f"the strings of the edits are larger than {STRINGS_CHARS_MAX // 1000} kB; use write or bash")
    numbered = list(enumerate(edits, 1))
    if before is None:
        first, *_ = edits
        numbered = numbered[1:]
        if first.old_string:
            raise ToolFailed(f"{shown} does not exist; to create it, leave old_string empty")
        file: TextFile | None = TextFile("")
        text, count = first.new_string, 1
    else:
        file = decode(before)
        if file is None:
            raise ToolFailed(f"{shown} is not a text file and cannot be edited; use bash")
        text, count = file.text, 0
    assert file is not None
    notes: list[str] = []
    work = WorkBudget()
    for number, edit in numbered:
        try:
            done = replace(text, edit.old_string, edit.new_string, edit.replace_all, shown, work)
        except ToolFailed as error:
            if len(edits) == 1:
                raise
            raise ToolFailed(f"edit {number} of {len(edits)}: {error}; no edit was applied") from None
        text, count = done.text, count + done.count
        notes += [done.note] if done.note and done.note not in notes else []
    matched = f" (matched {' and '.join(notes)})" if notes else ""
    verb = "Created" if before is None else "Edited"
    amount = "" if before is None else f": {count_of(count, 'replacement')}{matched}"
    data = file.encode(text)
    if len(data) > READ_FILE_BYTES_MAX:
        raise too_large()
    return Rewritten(data, text, f"{verb} {shown}{amount}.")
