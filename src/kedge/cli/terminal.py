"""Standard output with flow control, and the status line on standard error. No escape codes without a terminal."""

from __future__ import annotations

import asyncio
import os
import select
import sys
import time
import unicodedata
from collections.abc import Iterator
from contextlib import suppress

import click

from kedge.client.safe_text import harmless, one_line

#: POSIX guarantees that a pipe reported as writable accepts this much without blocking. Bytes.
PIPE_BYTES = 4096
#: Interval between two frames of the status line. Seconds.
TICK_S = 0.1
#: Extra indent of the continuation of a folded line. Columns.
HANG = 4

_FRAMES = "|/-\\"


class StdoutWriter:
    """Standard output. A slow or stuck reader does not block Ctrl-C."""

    def __init__(self) -> None:
        self._handle = 1
        self.is_terminal = is_terminal(self._handle)
        self._encoding = sys.stdout.encoding if sys.stdout is not None else "utf-8"

    async def write(self, text: str) -> None:
        if self.is_terminal:
            # Text of a model must not control the terminal.
            text = harmless(text)
        rest = memoryview(text.encode(self._encoding, "replace"))
        while rest:
            if not select.select([], [self._handle], [], 0)[1]:
                await self._wait_writable()
            rest = rest[os.write(self._handle, rest[:PIPE_BYTES]) :]

    async def _wait_writable(self) -> None:
        # Only reached for pipes, sockets and terminals. Files, which the loop cannot watch, are always writable.
        loop, writable = asyncio.get_running_loop(), asyncio.Event()
        loop.add_writer(self._handle, writable.set)
        try:
            await writable.wait()
        finally:
            loop.remove_writer(self._handle)


class StatusLine:
    """One line on standard error with the current activity and its duration. Nothing is drawn without a terminal."""

    def __init__(self, output: StdoutWriter, *, quiet: bool = False, verbose: bool = False) -> None:
        self.shows = is_terminal(2) and not quiet and os.environ.get("TERM") != "dumb"
        self.verbose = verbose and not quiet
        self._shares_screen = output.is_terminal
        self._activity = ""
        self._began = time.monotonic()
        self._ticks = 0
        self._drawn = False
        #: Position on the terminal of standard error. Standard output counts only if it is the same screen.
        self.at_line_start = True
        #: The text before the input; empty unless the user is being asked.
        self._prompt = ""

    def set(self, activity: str) -> None:
        """Set the activity to show. An empty one removes the line."""
        self._activity = activity
        if not activity:
            self.hide()

    def wrote(self, last: str) -> None:
        """Record that text ending with this character was printed. The status is not drawn in the middle of a line."""
        self.at_line_start = last == "\n"

    def note(self, line: str, *, always: bool = False) -> None:
        """Print a line that stays: on a terminal, with --verbose, or always."""
        if self.shows or self.verbose or always:
            indent = line[: len(line) - len(line.lstrip(" "))]
            self._lines(indent + one_line(line, 1000))

    def show(self, *lines: str) -> None:
        """Print lines in full, even with --quiet. The caller has made them safe for a terminal."""
        self._lines(*lines)

    def ask(self, prompt: str) -> None:
        """Show a prompt for input and draw nothing else until `answered`. An empty one withdraws it."""
        if not prompt and self._prompt:
            self._write("\n")
        self._prompt = prompt
        if prompt:
            self._lines()
            self._write(prompt)

    def answered(self, *, with_enter: bool) -> None:
        if not with_enter:
            self._write("\n")
        self._prompt = ""

    def _lines(self, *lines: str) -> None:
        self.hide()
        # Do not append to an unfinished line of the answer, or to a prompt.
        is_inside = (self._shares_screen and not self.at_line_start) or (self._prompt and lines)
        begin = "\n" if is_inside and is_terminal(2) else ""
        self.at_line_start = self.at_line_start or bool(begin)
        self._write(begin + "".join(f"{line}\n" for line in lines) + (self._prompt if lines else ""))

    def hide(self) -> None:
        if self._drawn:
            self._drawn = False
            self._write("\r\x1b[K")

    async def tick(self) -> None:
        """Draw the line until cancelled."""
        while self.shows:
            if self._activity and not self._prompt and (self.at_line_start or not self._shares_screen):
                self._draw()
            await asyncio.sleep(TICK_S)

    def _draw(self) -> None:
        self._ticks += 1
        elapsed = int(time.monotonic() - self._began)
        line = f"{_FRAMES[self._ticks % len(_FRAMES)]} {self._activity} {elapsed}s (Ctrl-C to cancel)"
        self._drawn = True
        self._write(f"\r{next(folded(line, (size(2).columns or 80) - 1))}\x1b[K")

    def _write(self, text: str) -> None:
        with suppress(OSError):  # the terminal was closed; the Run's outcome matters more
            click.echo(text, nl=False, err=True, color=True)  # color: keep our escape codes


def size(handle: int) -> os.terminal_size:
    """Return the size of a terminal; 0 and 0 if it is unknown, or without a terminal."""
    try:
        return os.get_terminal_size(handle)
    except OSError:
        return os.terminal_size((0, 0))


def folded(line: str, columns: int) -> Iterator[str]:
    """Yield the line in pieces that fit into `columns`; unchanged if that is 0.

    Continuations are indented further: a line that the terminal wraps continues at the left edge, where it could pass
    for a line of kedge."""
    if columns <= 0:
        yield line
        return
    line = line.expandtabs()
    hang = " " * min(len(line) - len(line.lstrip(" ")) + HANG, columns // 2)
    begin, left = 0, columns
    for index, character in enumerate(line):
        width = 2 if unicodedata.east_asian_width(character) in "WF" else 1
        left -= width
        if left < 0:
            yield (hang if begin else "") + line[begin:index]
            left = columns - len(hang) - width
            begin = index
    yield (hang if begin else "") + line[begin:]


def is_terminal(handle: int) -> bool:
    try:
        return os.isatty(handle)
    except OSError:
        return False
