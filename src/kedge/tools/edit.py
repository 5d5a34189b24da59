"""edit and multiedit: replace pieces of a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from kedge.tools.base import Prepared, ToolContext, ToolFailed
from kedge.tools.disk import FILE_BYTES_MAX
from kedge.tools.file_change import Rewritten, prepare_change
from kedge.tools.matching import Work, replace, too_large
from kedge.tools.textfile import TextFile, decode

#: Of one multiedit: beyond that, write is simpler.
EDITS_MAX = 200
#: Of all old and new strings of one call: no model writes more at once. Characters.
STRINGS_CHARS_MAX = 1_000_000

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
        Meta(min_length=1, max_length=EDITS_MAX, description="Made in this order, each on what the one before left."),
    ]


class EditTool:
    name = "edit"
    input: type[msgspec.Struct] = EditInput
    kind: Literal["look", "change"] = "change"

    def __init__(self, guarded: tuple[Path, ...] = ()) -> None:
        self._guarded = guarded

    async def prepare(self, args: EditInput, context: ToolContext) -> Prepared:
        edit = Replacement(args.old_string, args.new_string, args.replace_all)
        return await _prepare(("edit",), args.path, [edit], context, self._guarded)


class MultiEditTool:
    name = "multiedit"
    input: type[msgspec.Struct] = MultiEditInput
    kind: Literal["look", "change"] = "change"

    def __init__(self, guarded: tuple[Path, ...] = ()) -> None:
        self._guarded = guarded

    async def prepare(self, args: MultiEditInput, context: ToolContext) -> Prepared:
        return await _prepare(("multiedit", "edit"), args.path, args.edits, context, self._guarded)


async def _prepare(
    names: tuple[str, ...], path: str, edits: list[Replacement], context: ToolContext, guarded: tuple[Path, ...]
) -> Prepared:
    def rewrite(before: bytes | None, shown: str) -> Rewritten:
        return _rewrite(before, shown, edits)

    return await prepare_change(path, names, rewrite, context, guarded, again=True)


def _rewrite(before: bytes | None, shown: str, edits: list[Replacement]) -> Rewritten:
    """All or nothing: the first that does not fit refuses them all."""
    if sum(len(edit.old_string) + len(edit.new_string) for edit in edits) > STRINGS_CHARS_MAX:
        raise ToolFailed(f"the texts of the edits are larger than {STRINGS_CHARS_MAX // 1000} kB; use write or bash")
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
    hows: list[str] = []
    work = Work()
    for number, edit in numbered:
        try:
            done = replace(text, edit.old_string, edit.new_string, edit.replace_all, shown, work)
        except ToolFailed as error:
            if len(edits) == 1:
                raise
            raise ToolFailed(f"edit {number} of {len(edits)}: {error}; none of them was made") from None
        text, count = done.text, count + done.count
        hows += [done.how] if done.how and done.how not in hows else []
    found = f" (found {' and '.join(hows)})" if hows else ""
    verb = "Created" if before is None else "Edited"
    amount = "" if before is None else f": {count} replacement{'s' * (count != 1)}{found}"
    data = file.encode(text)
    if len(data) > FILE_BYTES_MAX:
        raise too_large()
    return Rewritten(data, text, f"{verb} {shown}{amount}.")
