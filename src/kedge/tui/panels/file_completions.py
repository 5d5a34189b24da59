"""The list of file names and resources of MCP servers offered after `@`."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sysconfig
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from textual.message import Message
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from kedge.core.name_matching import best_matches, can_be_mentioned
from kedge.programs import program_outside

#: Names searched at each key; of larger workspaces the first ones. Items.
NAMES_MAX = 20_000
#: Output read while listing names: about 20,000 long ones. Bytes.
NAMES_BYTES_MAX = 4_000_000
#: How long listing may take; the names found by then are offered. Seconds.
LIST_S = 2.0
#: Names offered at once: typing is faster than scrolling a longer list. Items.
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

    def __init__(self, root: Path, resources: Callable[[], Awaitable[list[str]]]) -> None:
        """`resources`: returns those that the server knows, as `server:uri`."""
        super().__init__(markup=False, compact=True)
        self._root, self._resources = root, resources
        self._names: list[str] = []
        self._references: list[str] = []
        self._word: str | None = None
        self._offered: list[str] = []
        #: The user closed the list: it stays closed until the next mention.
        self._is_closed = False

    @property
    def is_open(self) -> bool:
        return bool(self._offered)

    def offer(self, word: str | None) -> None:
        """Offer the names that match; None closes the list."""
        if word is None:
            self._is_closed = False
        elif self._word is None:
            # Listed for each mention: files change while an agent works.
            self.run_worker(self._read_names(), exclusive=True, group="names")
            self.run_worker(self._read_references(), exclusive=True, group="references")
        self._word = word
        self._draw()

    def close(self) -> bool:
        """Close the list; return whether it was open."""
        if not self.is_open:
            return False
        self._is_closed = True
        self._draw()
        return True

    def choose_by_key(self, key: str) -> bool:
        """Handle the keys that choose a name while the list is open; return whether the key was handled."""
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

    async def _read_references(self) -> None:
        self._references = [name for name in await self._resources() if can_be_mentioned(name)]
        self._draw()

    def _draw(self) -> None:
        names = [*self._references, *self._names]
        offered = [] if self._word is None or self._is_closed else best_matches(self._word, names, OFFERED_MAX)
        if offered == [self._word]:
            offered = []  # the name is complete: Enter sends
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


def names_in(root: Path) -> list[str]:
    """Return the files below a directory, without hidden and git-ignored ones."""
    rg = _find_rg(root)
    try:
        names = _listed(rg, root) if rg else _walked(root)
    except OSError:
        names = []
    return [name for name in names[:NAMES_MAX] if can_be_mentioned(name)]


def _find_rg(workspace: Path) -> str | None:
    """Return the rg installed with kedge, else one on PATH but outside the workspace: like the tools do."""
    bundled = os.path.join(sysconfig.get_path("scripts"), "rg")
    path = os.environ.get("PATH", os.defpath)
    return bundled if os.access(bundled, os.X_OK) else program_outside("rg", path, workspace)


def _listed(rg: str, root: Path) -> list[str]:
    command = (rg, "--no-config", "--no-require-git", "--no-messages", "--files", "--null", "--", "./")
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, cwd=root, **streams) as listing:  # type: ignore[call-overload]
        timeout = threading.Timer(LIST_S, listing.kill)
        timeout.start()
        try:
            data: bytes = listing.stdout.read(NAMES_BYTES_MAX)
        finally:
            timeout.cancel()
            listing.kill()
    *names, _ = data.split(b"\0")  # the last is empty or incomplete
    return [os.fsdecode(name).removeprefix("./") for name in names]


def _walked(root: Path) -> list[str]:
    """List files without rg; git-ignored ones are included."""
    names: list[str] = []
    deadline = time.monotonic() + LIST_S
    for directory, below, files in os.walk(root):
        below[:] = sorted(name for name in below if not name.startswith("."))
        names += [os.path.relpath(os.path.join(directory, name), root) for name in files if not name.startswith(".")]
        if len(names) >= NAMES_MAX or time.monotonic() > deadline:
            break
    return names
