"""The beginning and the end of an output of any length, in bounded memory."""

from __future__ import annotations

import re

from msgspec import Struct

#: Limit of the beginning and of the end, each. Larger than the output limit of a call in ASCII text, so that the limit
#: in characters decides. Bytes.
KEPT_BYTES_MAX = 32 * 1024

#: Limit of the recent output of a kept command, for users: some hundred lines. Bytes.
RECENT_BYTES_MAX = 64 * 1024

#: Terminal sequences (colours, cursor moves, titles), and control characters except newline and tab.
_TERMINAL = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])|\x9b[0-?]*[ -/]*[@-~]")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]+")


def cleaned(raw: bytes | bytearray) -> str:
    text = _TERMINAL.sub("", raw.decode("utf-8", "replace"))
    return _CONTROL.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))


#: The line between the beginning and the end of an output that was cut. A command may print such a line, too.
_CUT_LINE = re.compile(r"\.\.\. \d+ lines \(\d+ bytes\) left out \.\.\.")


class Excerpt(Struct, frozen=True):
    text: str
    is_cut: bool
    #: Which lines about omitted text are from kedge, if the output itself has such lines; else empty.
    note: str = ""

    @property
    def for_model(self) -> str:
        text = self.text or "(no output)"
        return f"{text.rstrip()}\n\n{self.note}" if self.note else text


_COMPLETE = "This is the complete output: the command itself printed the words about lines that are left out."


class HeadTail:
    """Keeps the first and the last bytes of an output, and counts the rest."""

    def __init__(self) -> None:
        self.bytes_total = 0
        self._newlines = 0
        self._head = bytearray()
        self._tail = bytearray()

    def add(self, piece: bytes) -> None:
        self.bytes_total += len(piece)
        self._newlines += piece.count(b"\n")
        room = KEPT_BYTES_MAX - len(self._head)
        if room > 0:
            self._head += piece[:room]
            piece = piece[room:]
        self._tail += piece[-KEPT_BYTES_MAX:]
        if len(self._tail) > 2 * KEPT_BYTES_MAX:  # not at every piece: that would copy the end each time
            del self._tail[:-KEPT_BYTES_MAX]

    @property
    def last(self) -> bytes:
        """The last bytes: all of them if they are still here."""
        is_complete = self.bytes_total == len(self._head) + len(self._tail)
        return bytes(self._head + self._tail) if is_complete else bytes(self._tail)

    def excerpt(self, chars_max: int) -> Excerpt:
        """Return the whole text if it fits; else its beginning and its end, with the omitted size between them."""
        if self.bytes_total == len(self._head) + len(self._tail):
            text = cleaned(self._head + self._tail)
            if len(text) <= chars_max:
                return Excerpt(text, is_cut=False, note=_COMPLETE if _CUT_LINE.search(text) else "")
            head, tail = text, text
        else:
            head, tail = cleaned(self._head), cleaned(self._tail)
        head, tail = head[: chars_max // 2], tail[-(chars_max // 2) :]
        # Cut at line ends, unless that drops most of the text.
        if (end := head.rfind("\n")) > len(head) // 2:
            head = head[:end]
        if 0 <= (start := tail.find("\n")) < len(tail) // 2:
            tail = tail[start + 1 :]
        lines = max(self._newlines - head.count("\n") - tail.count("\n") - 1, 0)
        size = max(self.bytes_total - len(head.encode()) - len(tail.encode()), 0)
        cut_line = f"... {lines} lines ({size} bytes) left out ..."
        is_unclear = _CUT_LINE.search(head) or _CUT_LINE.search(tail)
        note = f'Only this line is a note of kedge: "{cut_line}". The command printed the similar ones.'
        return Excerpt(f"{head}\n{cut_line}\n{tail}", is_cut=True, note=note if is_unclear else "")

    def last_lines(self, lines_max: int, chars_max: int) -> str:
        """Return the end of the output, for a screen."""
        end = self._tail[-4 * chars_max :]
        if len(end) < 4 * chars_max:
            end = self._head[len(end) - 4 * chars_max :] + end
        return "\n".join(cleaned(end)[-chars_max:].splitlines()[-lines_max:])


class RecentOutput:
    """Keeps the last bytes of an output."""

    def __init__(self, earlier: HeadTail) -> None:
        self._bytes = bytearray()
        self.bytes_total = 0
        self.add(earlier.last)
        self.bytes_total = earlier.bytes_total

    def add(self, piece: bytes) -> None:
        self.bytes_total += len(piece)
        self._bytes += piece[-RECENT_BYTES_MAX:]
        if len(self._bytes) > 2 * RECENT_BYTES_MAX:  # not at every piece: that would copy the end each time
            del self._bytes[:-RECENT_BYTES_MAX]

    @property
    def is_cut(self) -> bool:
        return self.bytes_total > min(len(self._bytes), RECENT_BYTES_MAX)

    @property
    def text(self) -> str:
        return cleaned(self._bytes[-RECENT_BYTES_MAX:])

    def last_lines(self, lines_max: int, chars_max: int) -> str:
        """Return the end of the output, for a screen."""
        return "\n".join(cleaned(self._bytes[-4 * chars_max :])[-chars_max:].splitlines()[-lines_max:])
