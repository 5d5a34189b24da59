"""write: a whole file at once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from kedge.tools.base import Prepared, ToolContext, ToolFailed
from kedge.tools.disk import FILE_BYTES_MAX
from kedge.tools.file_change import Rewritten, prepare_change
from kedge.tools.textfile import TextFile, decode, in_manner_of


class WriteInput(msgspec.Struct, frozen=True):
    path: Annotated[str, Meta(min_length=1, description="The file, relative to the workspace or absolute.")]
    content: Annotated[str, Meta(description="The whole new content.")]


class WriteTool:
    name = "write"
    input: type[msgspec.Struct] = WriteInput
    kind: Literal["look", "change"] = "change"

    def __init__(self, guarded: tuple[Path, ...] = ()) -> None:
        self._guarded = guarded

    async def prepare(self, args: WriteInput, context: ToolContext) -> Prepared:
        too_large = ToolFailed(f"the content is larger than {FILE_BYTES_MAX // 1000} kB; use bash")
        if len(args.content) > FILE_BYTES_MAX:
            raise too_large

        def rewrite(before: bytes | None, shown: str) -> Rewritten:
            # What was no text becomes plain text; a text keeps its encoding and line endings.
            file = (decode(before) if before is not None else None) or TextFile("")
            text = in_manner_of(args.content.removeprefix("\ufeff") if file.mark else args.content, file.text)
            data = file.encode(text)
            if len(data) > FILE_BYTES_MAX:
                raise too_large
            verb = "Created" if before is None else "Wrote"
            return Rewritten(data, text, f"{verb} {shown} ({len(data)} bytes).")

        # Never worked out anew: a whole file would take back what another call has just changed.
        return await prepare_change(args.path, ("write", "edit"), rewrite, context, self._guarded, again=False)
