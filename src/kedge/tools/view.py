"""view: the lines of a file, or a picture."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, BinaryIO, Literal

import msgspec
from msgspec import Meta, Struct

from kedge.tools import disk
from kedge.tools.base import OUTPUT_CHARS_MAX, Prepared, ToolContext, ToolFailed, ToolOutput
from kedge.tools.known_files import digest
from kedge.tools.paths import Target, look, missing, resolve
from kedge.tools.textfile import decode, is_binary, kind_of, line_start, picture_type, plain_endings
from kedge.tools.tool_threads import checkpoint

#: Lines shown at once unless asked otherwise, and at most.
LINES_DEFAULT = 2000
LINES_MAX = 10_000
#: Of one line, in characters: longer ones are generated, and would crowd out the rest.
LINE_CHARS_MAX = 2000
#: Of all lines together, in characters: room is left for the note on how to read on.
VIEW_CHARS_MAX = OUTPUT_CHARS_MAX - 500
#: Of a picture, in bytes: what models take, with room for its encoding as text.
PICTURE_BYTES_MAX = 4_000_000
#: Passed over to reach a line of a large file, in bytes: some seconds of reading.
SCAN_BYTES_MAX = 500_000_000
#: Read at once on the way there, in bytes.
BLOCK_BYTES = 1_000_000


class ViewInput(msgspec.Struct, frozen=True):
    path: Annotated[str, Meta(min_length=1, description="The file, relative to the workspace or absolute.")]
    offset: Annotated[int, Meta(ge=1, description="The first line to show, counted from 1.")] = 1
    limit: Annotated[int, Meta(ge=1, le=LINES_MAX, description="How many lines to show.")] = LINES_DEFAULT


class ViewTool:
    name = "view"
    input: type[msgspec.Struct] = ViewInput
    kind: Literal["look", "change"] = "look"

    def __init__(self, guarded: tuple[Path, ...] = ()) -> None:
        self._guarded = guarded

    async def prepare(self, args: ViewInput, context: ToolContext) -> Prepared:
        target = await context.threads.run(resolve, args.path, context.root, self._guarded)

        async def run() -> ToolOutput:
            viewed = await context.threads.run(_view, target, args)
            if viewed.digest:
                context.known_files.note(target.path, viewed.digest)
            return viewed.output

        asked = {"offset": args.offset, "limit": args.limit}
        return Prepared(look(("view",), target, f"View {target.shown}", asked), run, f"view {target.shown}")


class _Viewed(Struct, frozen=True):
    output: ToolOutput
    #: Of the whole file; empty for one too large to be edited.
    digest: str = ""


def _view(target: Target, args: ViewInput) -> _Viewed:
    with disk.opened(target.path) as file:
        if file is None:
            raise missing(target)
        try:
            size = os.fstat(file.fileno()).st_size
            data = file.read(disk.FILE_BYTES_MAX + 1)
            if len(data) > disk.FILE_BYTES_MAX:
                return _Viewed(_large(target, args, file, data, size))
        except OSError as error:
            raise ToolFailed(f"{target.shown} cannot be read: {error.strerror}") from None
    return _Viewed(_whole(target, args, data), digest(data))


def _whole(target: Target, args: ViewInput, data: bytes) -> ToolOutput:
    if media_type := picture_type(data):
        return _picture(target, data, media_type)
    text = decode(data)
    if text is None:
        return _no_text(target, data, len(data))
    if not text.text:
        return ToolOutput(f"{target.shown} is empty.", {"path": target.subject, "lines": 0})
    plain = plain_endings(text.text)
    total = plain.count("\n") + (plain[-1] != "\n")
    shown = _Lines(args.offset, args.limit)
    # Line by line from there: a list of all lines takes many times the memory of the text.
    at = line_start(plain, args.offset) if args.offset <= total else len(plain)
    while at < len(plain):
        end = plain.find("\n", at)
        end = len(plain) if end < 0 else end
        if not shown.take(plain[at : min(end, at + LINE_CHARS_MAX + 1)]):
            break
        at = end + 1
    note = "" if text.encoding == "utf-8" else f"(Shown as {text.encoding}; it is not UTF-8.)\n"
    return shown.output(target, note, total, total)


def _picture(target: Target, data: bytes, media_type: str) -> ToolOutput:
    said = f"{target.shown} is {kind_of(data)} of {len(data)} bytes"
    metadata = {"path": target.subject, "media_type": media_type}
    if len(data) > PICTURE_BYTES_MAX:
        return ToolOutput(f"{said}, too large to be shown (at most {PICTURE_BYTES_MAX // 1_000_000} MB).", metadata)
    url = f"data:{media_type};base64,{base64.b64encode(data).decode('ascii')}"
    return ToolOutput(f"{said}; it is attached.", metadata, (url,))


def _no_text(target: Target, data: bytes, size: int) -> ToolOutput:
    said = f"{target.shown} is not text: {kind_of(data)}, {size} bytes. Use bash to look into it."
    return ToolOutput(said, {"path": target.subject})


def _large(target: Target, args: ViewInput, file: BinaryIO, start: bytes, size: int) -> ToolOutput:
    """Line by line, so that only what is shown is held."""
    if is_binary(start):
        return _no_text(target, start, size)
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
    """Go to the line before which there are `offset` - 1, or to the end; how many lines there are before."""
    file.seek(0)
    passed = at = 0
    last = b""
    while passed < offset - 1 and (block := file.read(BLOCK_BYTES)):
        checkpoint()
        newlines = block.count(b"\n")
        if passed + newlines >= offset - 1:
            # Each byte is a character there, so both are counted alike.
            at += line_start(block.decode("latin-1"), offset - passed)
            file.seek(at)
            return offset - 1
        passed, at, last = passed + newlines, at + len(block), block[-1:]
        if at > SCAN_BYTES_MAX:
            raise ToolFailed(f"line {offset} of {target.shown} is too far into it; use bash, e.g. sed -n")
    return passed + (last not in (b"", b"\n"))


def _lines(file: BinaryIO) -> Iterator[str]:
    """Each without its end; of a very long line the beginning only, and of an endless one (a file may be one hole of
    many terabytes) no more is passed over than of many."""
    bytes_max = 4 * LINE_CHARS_MAX + 4
    while piece := file.readline(bytes_max):
        line, passed = piece, len(piece)
        while passed <= SCAN_BYTES_MAX and not piece.endswith(b"\n") and (piece := file.readline(bytes_max)):
            checkpoint()
            passed += len(piece)
        yield line.decode("utf-8", "replace").rstrip("\r\n")


class _Lines:
    """The lines shown so far, and whether there is room for more."""

    def __init__(self, offset: int, limit: int) -> None:
        self._offset = offset
        self._limit = limit
        self._shown: list[str] = []
        self._chars = 0

    def take(self, line: str) -> bool:
        if len(line) > LINE_CHARS_MAX:
            line = f"{line[:LINE_CHARS_MAX]}… (line cut)"
        row = f"{self._offset + len(self._shown):>6}\t{line}"
        if len(self._shown) >= self._limit or self._chars + len(row) + 1 > VIEW_CHARS_MAX:
            return False
        self._shown.append(row)
        self._chars += len(row) + 1
        return True

    def output(self, target: Target, note: str, known: int, total: int | None) -> ToolOutput:
        """`known`: lines that are certain to exist; `total`: all, None if they were not counted."""
        if not self._shown:
            raise ToolFailed(f"{target.shown} has {known} lines; line {self._offset} is beyond its end")
        last = self._offset + len(self._shown) - 1
        rest = ""
        if total is None or last < total:
            of = f" of {total}" if total is not None else ""
            rest = f"\n(Lines {self._offset} to {last}{of}. Read on with offset={last + 1}.)"
        metadata = {"path": target.subject, "first_line": self._offset, "last_line": last, "lines": total}
        return ToolOutput(note + "\n".join(self._shown) + rest, metadata)
