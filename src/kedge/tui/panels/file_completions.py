"""Names of files, offered while `@` and the beginning of one are being written."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sysconfig
import threading
import time
from heapq import nsmallest
from pathlib import Path

from textual.message import Message
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from kedge.programs import program_outside
from kedge.tui.state.mentions import can_be_mentioned

#: Names that are looked through at each key. A repository with more is found by what comes first in it. Items.
NAMES_MAX = 20_000
#: Of what is read while names are listed: some 20,000 long ones. Bytes.
NAMES_BYTES_MAX = 4_000_000
#: How long names are listed; what was found by then is offered. Seconds.
LIST_S = 2.0
#: Names offered at once: more letters are quicker than scrolling. Items.
OFFERED_MAX = 30


class FileCompletions(OptionList, can_focus=False):
    DEFAULT_CSS = """
    FileCompletions { height: auto; max-height: 8; display: none; border: none; background: $panel; color: $muted; }
    FileCompletions.some { display: block; }
    FileCompletions.-textual-compact { padding: 0 1; }
    FileCompletions > .option-list--option-highlighted { color: $accent; background: $panel; text-style: reverse; }
    """

    class Chosen(Message):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

    def __init__(self, root: Path) -> None:
        super().__init__(markup=False, compact=True)
        self._root = root
        self._names: list[str] = []
        self._word: str | None = None
        self._offered: list[str] = []
        #: Somebody has closed the list: it stays closed until another word is begun.
        self._is_closed = False

    @property
    def is_open(self) -> bool:
        return bool(self._offered)

    def offer(self, word: str | None) -> None:
        """The names that fit; None: none is wanted any more."""
        if word is None:
            self._is_closed = False
        elif self._word is None:
            # Read anew for each mention: files come and go while an agent is at work.
            self.run_worker(self._read_names(), exclusive=True)
        self._word = word
        self._draw()

    def close(self) -> bool:
        """Whether there was a list to close."""
        if not self.is_open:
            return False
        self._is_closed = True
        self._draw()
        return True

    def takes(self, key: str) -> bool:
        """While names are offered these keys are for choosing one."""
        if not self.is_open:
            return False
        match key:
            case "up":
                self.action_cursor_up()
            case "down":
                self.action_cursor_down()
            case "tab" | "enter":
                self.action_select()
            case _:
                return False
        return True

    async def _read_names(self) -> None:
        self._names = await asyncio.to_thread(names_in, self._root)
        self._draw()

    def _draw(self) -> None:
        offered = [] if self._word is None or self._is_closed else best(self._word, self._names)
        if offered == [self._word]:
            offered = []  # it is written already: Enter sends
        if offered == self._offered:
            return
        self._offered = offered
        self.set_class(bool(offered), "some")
        self.clear_options()
        self.add_options([Option(name) for name in offered])
        self.highlighted = 0 if offered else None

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.post_message(self.Chosen(self._offered[event.option_index]))


def best(word: str, names: list[str]) -> list[str]:
    """The names that have all letters of the word in this order, the nearest first."""
    wanted = word.lower()
    ranked = ((_rank(wanted, name.lower()), name) for name in names)
    return [name for rank, name in nsmallest(OFFERED_MAX, ((rank, name) for rank, name in ranked if rank is not None))]


def _rank(wanted: str, name: str) -> tuple[int, int, int] | None:
    """Lower is nearer; None: it does not fit."""
    place = -1
    for letter in wanted:
        place = name.find(letter, place + 1)
        if place < 0:
            return None
    last = name.rpartition("/")[2]
    if last.startswith(wanted):
        how = 0
    elif wanted in last:
        how = 1
    else:
        how = 2 if wanted in name else 3
    return how, name.count("/"), len(name)


def names_in(root: Path) -> list[str]:
    """The files of a directory and below, without hidden ones and what git ignores."""
    rg = _find_rg(root)
    try:
        found = _listed(rg, root) if rg else _walked(root)
    except OSError:
        found = []
    return [name for name in found[:NAMES_MAX] if can_be_mentioned(name)]


def _find_rg(workspace: Path) -> str | None:
    """The one that was installed with kedge, else the machine's and never the workspace's: as the tools do."""
    beside = os.path.join(sysconfig.get_path("scripts"), "rg")
    path = os.environ.get("PATH", os.defpath)
    return beside if os.access(beside, os.X_OK) else program_outside("rg", path, workspace)


def _listed(rg: str, root: Path) -> list[str]:
    command = (rg, "--no-config", "--no-require-git", "--no-messages", "--files", "--null", "--", "./")
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, cwd=root, **streams) as listing:  # type: ignore[call-overload]
        ending = threading.Timer(LIST_S, listing.kill)
        ending.start()
        try:
            data: bytes = listing.stdout.read(NAMES_BYTES_MAX)
        finally:
            ending.cancel()
            listing.kill()
    *names, _ = data.split(b"\0")  # the last is empty, or was cut
    return [os.fsdecode(name).removeprefix("./") for name in names]


def _walked(root: Path) -> list[str]:
    """Without rg, what git ignores is offered too."""
    found: list[str] = []
    until = time.monotonic() + LIST_S
    for directory, below, files in os.walk(root):
        below[:] = sorted(name for name in below if not name.startswith("."))
        found += [os.path.relpath(os.path.join(directory, name), root) for name in files if not name.startswith(".")]
        if len(found) >= NAMES_MAX or time.monotonic() > until:
            break
    return found
