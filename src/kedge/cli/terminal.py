"""Standard output as text comes, and the status line on standard error. No escape code without a terminal."""

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

#: A pipe that is ready takes this much without blocking. Bytes.
PIPE_BYTES = 4096
#: Pace of the status line. Seconds.
TICK_S = 0.1
#: How much further in the rest of a line stands that is too long for the terminal. Columns.
HANG = 4

_FRAMES = "|/-\\"


class StdoutWriter:
    """Standard output. A reader that is slow or stuck does not keep Ctrl-C from being heard."""

    def __init__(self) -> None:
        self._handle = 1
        self.is_terminal = is_terminal(self._handle)
        self._encoding = sys.stdout.encoding if sys.stdout is not None else "utf-8"

    async def write(self, text: str) -> None:
        if self.is_terminal:
            # A model's words must not drive the terminal.
            text = harmless(text)
        rest = memoryview(text.encode(self._encoding, "replace"))
        while rest:
            if not select.select([], [self._handle], [], 0)[1]:
                await self._wait_room()
            rest = rest[os.write(self._handle, rest[:PIPE_BYTES]) :]

    async def _wait_room(self) -> None:
        # Only what can be full comes here: a pipe, a socket, a terminal. A file, which the loop cannot watch, never is.
        loop, room = asyncio.get_running_loop(), asyncio.Event()
        loop.add_writer(self._handle, room.set)
        try:
            await room.wait()
        finally:
            loop.remove_writer(self._handle)


class StatusLine:
    """One line on standard error that says what is going on and for how long; nothing at all without a terminal."""

    def __init__(self, output: StdoutWriter, *, quiet: bool = False, verbose: bool = False) -> None:
        self.shows = is_terminal(2) and not quiet and os.environ.get("TERM") != "dumb"
        self.verbose = verbose and not quiet
        self._shares_screen = output.is_terminal
        self._doing = ""
        self._began = time.monotonic()
        self._ticks = 0
        self._drawn = False
        #: As far as this screen goes: on another one the text of an answer is not our concern.
        self.at_line_start = True
        #: What stands before the place where somebody types; empty: nobody is asked.
        self._asking = ""

    def set(self, what: str) -> None:
        """What the line says from now on; empty: no line."""
        self._doing = what
        if not what:
            self.hide()

    def wrote(self, last: str) -> None:
        """Text that ends with this character was printed: in the middle of a line there is no room for the status."""
        self.at_line_start = last == "\n"

    def note(self, line: str, *, always: bool = False) -> None:
        """A line that stays: on a terminal, with --verbose, or always."""
        if self.shows or self.verbose or always:
            indent = line[: len(line) - len(line.lstrip(" "))]
            self._lines(indent + one_line(line, 1000))

    def say(self, *lines: str) -> None:
        """Lines for somebody who is being asked: on any terminal, whole. Whoever gives them has made them harmless."""
        self._lines(*lines)

    def ask(self, prompt: str) -> None:
        """Put the prompt before the place where somebody types, and draw nothing until `answered`; empty: give up."""
        if not prompt and self._asking:
            self._write("\n")
        self._asking = prompt
        if prompt:
            self._lines()
            self._write(prompt)

    def answered(self, *, with_enter: bool) -> None:
        if not with_enter:
            self._write("\n")
        self._asking = ""

    def _lines(self, *lines: str) -> None:
        self.hide()
        # On one screen with unfinished text the line would stick to it. So it would to a question.
        is_inside = (self._shares_screen and not self.at_line_start) or (self._asking and lines)
        begin = "\n" if is_inside and is_terminal(2) else ""
        self.at_line_start = self.at_line_start or bool(begin)
        self._write(begin + "".join(f"{line}\n" for line in lines) + (self._asking if lines else ""))

    def hide(self) -> None:
        if self._drawn:
            self._drawn = False
            self._write("\r\x1b[K")

    async def tick(self) -> None:
        """Draws until it is cancelled."""
        while self.shows:
            if self._doing and not self._asking and (self.at_line_start or not self._shares_screen):
                self._draw()
            await asyncio.sleep(TICK_S)

    def _draw(self) -> None:
        self._ticks += 1
        elapsed = int(time.monotonic() - self._began)
        line = f"{_FRAMES[self._ticks % len(_FRAMES)]} {self._doing} {elapsed}s (Ctrl-C cancels)"
        self._drawn = True
        self._write(f"\r{next(folded(line, (size(2).columns or 80) - 1))}\x1b[K")

    def _write(self, text: str) -> None:
        with suppress(OSError):  # a terminal that was closed; the Run's outcome matters more
            click.echo(text, nl=False, err=True, color=True)  # color: our codes are written as they are


def size(handle: int) -> os.terminal_size:
    """Of a terminal; 0 and 0 where it is not known, or where there is none."""
    try:
        return os.get_terminal_size(handle)
    except OSError:
        return os.terminal_size((0, 0))


def folded(line: str, columns: int) -> Iterator[str]:
    """The line in pieces that fit into the columns of a terminal. Those after the first are indented further: where a
    terminal breaks a line, the rest of it begins at the left edge and can pass for a line of ours. Without
    columns it is left as it is."""
    if columns <= 0:
        yield line
        return
    line = line.expandtabs()
    hang = " " * min(len(line) - len(line.lstrip(" ")) + HANG, columns // 2)
    begin, room = 0, columns
    for at, character in enumerate(line):
        room -= 2 if unicodedata.east_asian_width(character) in "WF" else 1
        if room < 0:
            yield (hang if begin else "") + line[begin:at]
            room = columns - len(hang) - (2 if unicodedata.east_asian_width(character) in "WF" else 1)
            begin = at
    yield (hang if begin else "") + line[begin:]


def is_terminal(handle: int) -> bool:
    try:
        return os.isatty(handle)
    except OSError:
        return False
