"""A file's bytes as text and back: its encoding and byte order mark are kept, what is no text is told apart."""

from __future__ import annotations

import codecs
from typing import Literal

from msgspec import Struct

from kedge.tools.tool_failed import ToolFailed

#: Looked at to tell text from other data, in bytes: as git does it.
BINARY_LOOK_BYTES = 8000
#: Compared at once to find where two texts begin to differ. Characters.
BLOCK_CHARS = 65_536

_MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))

_KINDS = (
    (b"\x7fELF", "a program (ELF)"),
    (b"%PDF-", "a PDF document"),
    (b"PK\x03\x04", "a zip archive or a document in that format"),
    (b"\x1f\x8b", "gzip-compressed data"),
    (b"BZh", "bzip2-compressed data"),
    (b"\xfd7zXZ\x00", "xz-compressed data"),
    (b"\x28\xb5\x2f\xfd", "zstd-compressed data"),
    (b"SQLite format 3\x00", "an SQLite database"),
    (b"\x00asm", "a WebAssembly module"),
    (b"\x89PNG\r\n\x1a\n", "a PNG picture"),
    (b"\xff\xd8\xff", "a JPEG picture"),
    (b"GIF8", "a GIF picture"),
)


class TextFile(Struct, frozen=True):
    #: With its line endings as they are, without the mark.
    text: str
    encoding: str = "utf-8"
    mark: bytes = b""

    def encode(self, text: str) -> bytes:
        """Another text in the manner of this file."""
        try:
            return self.mark + text.encode(self.encoding)
        except UnicodeEncodeError as error:
            shown = ascii(text[error.start])
            raise ToolFailed(f"the file is {self.encoding}, which has no character {shown}; use others") from None


def decode(data: bytes) -> TextFile | None:
    """None: it is no text."""
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            try:
                return TextFile(data[len(mark) :].decode(encoding), encoding, mark)
            except UnicodeDecodeError:
                break
    if is_binary(data):
        return None
    try:
        return TextFile(data.decode("utf-8"))
    except UnicodeDecodeError:
        # Each byte is a character there, so it can always be written back as it was.
        return TextFile(data.decode("latin-1"), "latin-1")


def is_binary(data: bytes) -> bool:
    return b"\0" in data[:BINARY_LOOK_BYTES]


def kind_of(data: bytes) -> str:
    """For people: what data that is no text is, by how it begins."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "a WebP picture"
    return next((kind for start, kind in _KINDS if data.startswith(start)), "binary data")


def picture_type(data: bytes) -> str | None:
    """The media type of a picture that models take."""
    types = {"a PNG picture": "image/png", "a JPEG picture": "image/jpeg", "a GIF picture": "image/gif"}
    return (types | {"a WebP picture": "image/webp"}).get(kind_of(data))


def plain_endings(text: str) -> str:
    """The text with every line ending as a single newline."""
    return text.replace("\r\n", "\n")


def line_endings(text: str) -> Literal["none", "LF", "CRLF", "mixed"]:
    """How all lines end. mixed: not alike, or a carriage return stands elsewhere."""
    newlines, pairs, returns = text.count("\n"), text.count("\r\n"), text.count("\r")
    if not newlines and not returns:
        return "none"
    if not returns:
        return "LF"
    return "CRLF" if newlines == pairs == returns else "mixed"


def line_start(text: str, number: int) -> int:
    """Where a line (counted from 1) begins; -1 if the text has fewer newlines before it.

    By halves: lines are counted by `str.count`, and no list of them is made."""
    missing, low, high = number - 1, 0, len(text)
    if missing > text.count("\n"):
        return -1
    while missing > 0 and high - low > 1:
        middle = (low + high) // 2
        passed = text.count("\n", low, middle)
        if passed >= missing:
            high = middle
        else:
            missing, low = missing - passed, middle
    return high if missing > 0 else low


def same_start(one: str, other: str) -> int:
    """How many characters both begin with."""
    at, end, step = 0, min(len(one), len(other)), BLOCK_CHARS
    while at < end:
        until = min(end, at + step)
        if one[at:until] == other[at:until]:
            at = until
        elif step == 1:
            return at
        else:
            step //= 16
    return end


def in_manner_of(text: str, old: str) -> str:
    """`text` with the line endings of `old`, if those are all CRLF and the text was written without any."""
    is_crlf = "\r\n" in old and old.count("\r\n") == old.count("\n")
    return text.replace("\n", "\r\n") if is_crlf and "\r\n" not in text else text
