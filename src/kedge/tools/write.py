"""write: create or replace a whole file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from kedge.tools.base import Prepared, Tool, ToolContext, ToolFailed
from kedge.tools.disk import READ_FILE_BYTES_MAX
from kedge.tools.file_change import Rewritten, prepare_change
from kedge.tools.textfile import TextFile, decode, in_manner_of
from kedge.tools.workspace_paths import printable

_DESCRIPTION = """\
Writes a whole file: creates it with its directories, or replaces its content.
- An existing file must have been viewed first, and must not have changed since.
- To change parts of a file use edit or multiedit: they are shorter and safer.
- An existing file keeps its mode, encoding and line endings.
- The user may have to approve the diff.
"""


class WriteInput(msgspec.Struct, frozen=True):
    path: Annotated[str, Meta(min_length=1, description="The file, relative to the workspace or absolute.")]
    content: Annotated[str, Meta(description="The complete new content.")]


class WriteTool(Tool):
    name = "write"
    description = _DESCRIPTION
    input: type[msgspec.Struct] = WriteInput

    def __init__(self, guarded: tuple[Path, ...] = ()) -> None:
        self._guarded = guarded

    def title(self, args: WriteInput) -> str:
        return f"write {printable(args.path)}"

    async def prepare(self, args: WriteInput, context: ToolContext) -> Prepared:
        too_large = ToolFailed(f"the content is larger than {READ_FILE_BYTES_MAX // 1000} kB; use bash")
        if len(args.content) > READ_FILE_BYTES_MAX:
            raise too_large

        def rewrite(before: bytes | None, shown: str) -> Rewritten:
            # A text file keeps its encoding and line endings; a binary file becomes UTF-8.
            file = (decode(before) if before is not None else None) or TextFile("")
            text = in_manner_of(args.content.removeprefix("\ufeff") if file.mark else args.content, file.text)
            data = file.encode(text)
            if len(data) > READ_FILE_BYTES_MAX:
                raise too_large
            verb = "Created" if before is None else "Wrote"
            return Rewritten(data, text, f"{verb} {shown} ({len(data)} bytes).")

        # Never rebased: a whole file would revert what another call has just changed.
        return await prepare_change(args.path, ("write", "edit"), rewrite, context, self._guarded, can_rebase=False)
