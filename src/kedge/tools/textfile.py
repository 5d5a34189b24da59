"""Decoding and encoding of text files, with their encoding and byte order mark. Detection of binary files."""

from __future__ import annotations

import codecs
from typing import Literal

from msgspec import Struct

from kedge.tools.tool_failed import ToolFailed

#: Checked for a NUL to detect binary data, as git does. Bytes.
BINARY_CHECK_BYTES = 8000
#: Block size for finding the first difference of two texts. Characters.
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
    #: With its original line endings, without the byte order mark.
    text: str
    encoding: str = "utf-8"
    mark: bytes = b""

    def encode(self, text: str) -> bytes:
        """Encode another text like this file."""
        try:
            return self.mark + text.encode(self.encoding)
        except UnicodeEncodeError as error:
            shown = ascii(text[error.start])
            raise ToolFailed(
                f"the file is {self.encoding}, which cannot encode {shown}; use other characters"
            ) from None


def decode(data: bytes) -> TextFile | None:
    """Decode a file; None if it is binary."""
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
        # In latin-1 each byte is a character, so that the file can always be written back unchanged.
        return TextFile(data.decode("latin-1"), "latin-1")


def is_binary(data: bytes) -> bool:
    return b"\0" in data[:BINARY_CHECK_BYTES]


def kind_of(data: bytes) -> str:
    """Return the type of binary data in words, by its first bytes."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "a WebP picture"
    return next((kind for start, kind in _KINDS if data.startswith(start)), "binary data")


def picture_type(data: bytes) -> str | None:
    """Return the media type of a picture that models accept, or None."""
    types = {"a PNG picture": "image/png", "a JPEG picture": "image/jpeg", "a GIF picture": "image/gif"}
    return (types | {"a WebP picture": "image/webp"}).get(kind_of(data))


def plain_endings(text: str) -> str:
    """Return the text with LF line endings."""
    return text.replace("\r\n", "\n")


def line_endings(text: str) -> Literal["none", "LF", "CRLF", "mixed"]:
    """Return the line endings of a text. mixed: they differ, or there are other carriage returns."""
    newlines, pairs, returns = text.count("\n"), text.count("\r\n"), text.count("\r")
    if not newlines and not returns:
        return "none"
    if not returns:
        return "LF"
    return "CRLF" if newlines == pairs == returns else "mixed"


def line_start(text: str, number: int) -> int:
    """Return the offset of a line, counted from 1; -1 if there are not enough lines.

    A binary search with `str.count`, without a list of lines."""
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
    """Return the length of the common prefix."""
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
    """Return `text` with CRLF line endings if `old` has only these and `text` has none."""
    is_crlf = "\r\n" in old and old.count("\r\n") == old.count("\n")
    return text.replace("\n", "\r\n") if is_crlf and "\r\n" not in text else text
