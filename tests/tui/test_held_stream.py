"""The terminal interface while a long reply streams at full speed: it shows the end, within bounded memory."""

from __future__ import annotations

import time

import pytest

from proof.figures import proof, size
from tests.client.process import Server, Terminal
from tests.conformance.watching import memory_peak_kb

pytestmark = [pytest.mark.long, pytest.mark.proof, pytest.mark.timeout(300)]

#: Messages of the reply; the server limits one to a million characters. Items.
STEPS = 3
#: Memory of the interface with its libraries, the text, and its layout. kB.
MEMORY_KB_MAX = 400 * 1024


def test_interface_follows_a_long_stream(own_server: Server) -> None:
    words = size(5_000, 100_000)
    with proof("G4", "words that the terminal interface follows", "not shown") as figure:
        terminal = Terminal(own_server.home, "tui", "--host", own_server.host)
        terminal.until("enter: send")
        terminal.type("script: " + f"words {words} | tool nothing {{}} | " * STEPS + "echo")
        terminal.until("echo")
        terminal.type("\r")
        began = time.monotonic()
        terminal.until("You said: ")
        figure.notes["time to the end"] = f"{time.monotonic() - began:.0f} s"
        peak_kb = memory_peak_kb(terminal.process.pid)
        figure.notes["memory"] = f"{peak_kb // 1024} MB"
        assert peak_kb < MEMORY_KB_MAX, f"{peak_kb} kB"
        figure.count = STEPS * words
