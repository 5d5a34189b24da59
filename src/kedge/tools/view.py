"""view: show the lines of a file, or a picture."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, BinaryIO

import msgspec
from msgspec import Meta, Struct

from kedge.tools import disk
from kedge.tools.base import OUTPUT_CHARS_MAX, Prepared, Tool, ToolContext, ToolFailed, ToolOutput
from kedge.tools.file_threads import checkpoint
from kedge.tools.known_files import digest
from kedge.tools.textfile import decode, is_binary, kind_of, line_start, picture_type, plain_endings
from kedge.tools.workspace_paths import Target, missing, printable, read_intent, resolve

#: Default and limit of the lines that one call shows.
LINES_DEFAULT = 2000
LINES_MAX = 10_000
#: Limit of one line: longer ones are generated, and would crowd out the rest. Characters.
VIEW_LINE_CHARS_MAX = 2000
#: Limit of all lines, with room for the note on how to continue. Characters.
VIEW_CHARS_MAX = OUTPUT_CHARS_MAX - 500
#: Limit of a picture: what models accept, with room for base64. Bytes.
PICTURE_BYTES_MAX = 4_000_000
#: Limit of the part of a large file that is skipped to reach a line: some seconds of reading. Bytes.
SCAN_BYTES_MAX = 500_000_000
#: Size of one read while skipping. Bytes.
BLOCK_BYTES = 1_000_000

_DESCRIPTION = """\
Reads a file and shows its lines with their numbers.
- `path` is relative to the workspace or absolute. A file outside the workspace may need the user's approval.
- Up to 2000 lines are shown. For more, or another part, use `offset` and `limit`; the last line says how to continue.
- The number and the tab before each line are not part of the file.
- Very long lines are cut. PNG, JPEG, GIF and WebP pictures are attached. Of other binary files only the type is shown.
- A file must be viewed before edit, multiedit or write may change it.
- For directories use ls; to find files use glob or grep.
"""


class ViewInput(msgspec.Struct, frozen=True):
    path: Annotated[str, Meta(min_length=1, description="The file, relative to the workspace or absolute.")]
    offset: Annotated[int, Meta(ge=1, description="The first line to show, starting at 1.")] = 1
    limit: Annotated[int, Meta(ge=1, le=LINES_MAX, description="The number of lines to show.")] = LINES_DEFAULT


class ViewTool(Tool):
    name = "view"
    description = _DESCRIPTION
    input: type[msgspec.Struct] = ViewInput
    read_only = True
    for_children = True

    def __init__(self, guarded: tuple[Path, ...] = ()) -> None:
        self._guarded = guarded

    def title(self, args: ViewInput) -> str:
        return f"view {printable(args.path)}"

    async def prepare(self, args: ViewInput, context: ToolContext) -> Prepared:
        target = await context.threads.look(resolve, args.path, context.root, self._guarded)

        async def run() -> ToolOutput:
            viewed = await context.threads.run(_view, target, args)
            if viewed.digest:
                context.known_files.note(target.path, viewed.digest)
            return viewed.output

        params = {"offset": args.offset, "limit": args.limit}
        return Prepared(read_intent(("view",), target, f"View {target.shown}", params), run)


class _Viewed(Struct, frozen=True):
    output: ToolOutput
    #: Digest of the whole file; empty for a file too large to be edited.
    digest: str = ""


def _view(target: Target, args: ViewInput) -> _Viewed:
    with disk.opened(target.path) as file:
        if file is None:
            raise missing(target)
        try:
            size = os.fstat(file.fileno()).st_size
            data = file.read(disk.READ_FILE_BYTES_MAX + 1)
            if len(data) > disk.READ_FILE_BYTES_MAX:
                return _Viewed(_large(target, args, file, data, size))
        except OSError as error:
            raise ToolFailed(f"{target.shown} cannot be read: {error.strerror}") from None
    return _Viewed(_whole(target, args, data), digest(data))


def _whole(target: Target, args: ViewInput, data: bytes) -> ToolOutput:
    if media_type := picture_type(data):
        return _picture(target, data, media_type)
    text = decode(data)
    if text is None:
        return _binary(target, data, len(data))
    if not text.text:
        return ToolOutput(f"{target.shown} is empty.", {"path": target.subject, "lines": 0}, summary="0 lines")
    plain = plain_endings(text.text)
    total = plain.count("\n") + (plain[-1] != "\n")
    shown = _Lines(args.offset, args.limit)
    # Line by line: a list of all lines takes many times the memory of the text.
    at = line_start(plain, args.offset) if args.offset <= total else len(plain)
    while at < len(plain):
        end = plain.find("\n", at)
        end = len(plain) if end < 0 else end
        if not shown.take(plain[at : min(end, at + VIEW_LINE_CHARS_MAX + 1)]):
            break
        at = end + 1
    note = "" if text.encoding == "utf-8" else f"(Not UTF-8; decoded as {text.encoding}.)\n"
    return shown.output(target, note, total, total)


def _picture(target: Target, data: bytes, media_type: str) -> ToolOutput:
    content = f"{target.shown} is {kind_of(data)} of {len(data)} bytes"
    metadata = {"path": target.subject, "media_type": media_type}
    if len(data) > PICTURE_BYTES_MAX:
        return ToolOutput(f"{content}, too large to be shown (at most {PICTURE_BYTES_MAX // 1_000_000} MB).", metadata)
    url = f"data:{media_type};base64,{base64.b64encode(data).decode('ascii')}"
    return ToolOutput(f"{content}; it is attached.", metadata, (url,))


def _binary(target: Target, data: bytes, size: int) -> ToolOutput:
    content = f"{target.shown} is not text: {kind_of(data)}, {size} bytes. Use bash to inspect it."
    return ToolOutput(content, {"path": target.subject})


def _large(target: Target, args: ViewInput, file: BinaryIO, start: bytes, size: int) -> ToolOutput:
    """Show a part of a large file line by line, so that only this part is held in memory."""
    if is_binary(start):
        return _binary(target, start, size)
    count, is_cut = _seek(target, file, args.offset), False
    shown = _Lines(args.offset, args.limit)
    for line in _lines(file):
        checkpoint()
        count += 1
        if not shown.take(line) or file.tell() > SCAN_BYTES_MAX:
            is_cut = True
            break
    note = f"({size // 1_000_000} MB: too large to be edited with edit or write.)\n"
    return shown.output(target, note, count, None if is_cut else count)


def _seek(target: Target, file: BinaryIO, offset: int) -> int:
    """Seek to line `offset`, or to the end. Return the number of lines before that position."""
    file.seek(0)
    passed = at = 0
    last = b""
    while passed < offset - 1 and (block := file.read(BLOCK_BYTES)):
        checkpoint()
        newlines = block.count(b"\n")
        if passed + newlines >= offset - 1:
            # In latin-1 each byte is a character, so that offsets agree.
            at += line_start(block.decode("latin-1"), offset - passed)
            file.seek(at)
            return offset - 1
        passed, at, last = passed + newlines, at + len(block), block[-1:]
        if at > SCAN_BYTES_MAX:
            raise ToolFailed(f"line {offset} of {target.shown} is too far into the file; use bash, e.g. sed -n")
    return passed + (last not in (b"", b"\n"))


def _lines(file: BinaryIO) -> Iterator[str]:
    """Yield lines without their ends, and only the beginning of a very long line. An endless line (a file may be one
    sparse hole of many terabytes) is skipped up to SCAN_BYTES_MAX."""
    bytes_max = 4 * VIEW_LINE_CHARS_MAX + 4
    while piece := file.readline(bytes_max):
        line, passed = piece, len(piece)
        while passed <= SCAN_BYTES_MAX and not piece.endswith(b"\n") and (piece := file.readline(bytes_max)):
            checkpoint()
            passed += len(piece)
        yield line.decode("utf-8", "replace").rstrip("\r\n")


class _Lines:
    """The lines shown so far, up to the limits."""

    def __init__(self, offset: int, limit: int) -> None:
        self._offset = offset
        self._limit = limit
        self._shown: list[str] = []
        self._chars = 0

    def take(self, line: str) -> bool:
        if len(line) > VIEW_LINE_CHARS_MAX:
            line = f"{line[:VIEW_LINE_CHARS_MAX]}… (line cut)"
        row = f"{self._offset + len(self._shown):>6}\t{line}"
        if len(self._shown) >= self._limit or self._chars + len(row) + 1 > VIEW_CHARS_MAX:
            return False
        self._shown.append(row)
        self._chars += len(row) + 1
        return True

    def output(self, target: Target, note: str, known: int, total: int | None) -> ToolOutput:
        """`known`: lines that certainly exist. `total`: all lines, None if they were not counted."""
        if not self._shown:
            raise ToolFailed(f"{target.shown} has {known} lines; line {self._offset} is beyond its end")
        last = self._offset + len(self._shown) - 1
        of = f" of {total}" if total is not None else ""
        rest = ""
        if total is None or last < total:
            rest = f"\n(Lines {self._offset} to {last}{of}. Continue with offset={last + 1}.)"
        metadata = {"path": target.subject, "first_line": self._offset, "last_line": last, "lines": total}
        summary = f"lines {self._offset}-{last}{of}"
        return ToolOutput(note + "\n".join(self._shown) + rest, metadata, summary=summary)
