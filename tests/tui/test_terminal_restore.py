"""The terminal is restored after every kind of exit."""

from __future__ import annotations

import signal

import pytest

from tests.client.process import Server, Terminal

#: Modes set at the start, each with the sequence that resets it.
RESET_BY = {"\x1b[?1049h": "\x1b[?1049l", "\x1b[?25l": "\x1b[?25h", "\x1b[?1000h": "\x1b[?1000l"}
#: A program whose F1 key has a bug.
BROKEN = """
import kedge.tui.app
def broken(self):
    raise ValueError("a bug")
kedge.tui.app.KedgeApp.action_help = broken
from kedge.cli.main import main
main()
"""


def begin(server: Server, program: str = "") -> tuple[Terminal, str]:
    server.home.env = server.home.env | {"COLUMNS": "100", "LINES": "30"}
    terminal = Terminal(server.home, "tui", "--host", server.host, program=program)
    return terminal, terminal.until("enter: send")


def check_as_before(terminal: Terminal, before: list[object], shown: str, code: int) -> str:
    assert terminal.process.wait(30) == code
    assert terminal.settings == before
    _, rest = terminal.end()
    for mode, reset in RESET_BY.items():
        assert mode in shown
        assert rest.rfind(reset) > rest.rfind(mode), f"{mode!r} was not reset"
    return rest.rpartition("\x1b[?1049l")[2]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_signal_restores_the_terminal(server: Server, number: signal.Signals) -> None:
    terminal, shown = begin(server)
    before = Terminal(server.home, "--version").settings
    terminal.process.send_signal(number)
    check_as_before(terminal, before, shown, 128 + number)


def test_ctrl_q_restores_the_terminal(server: Server) -> None:
    terminal, shown = begin(server)
    before = Terminal(server.home, "--version").settings
    terminal.type("\x11")
    check_as_before(terminal, before, shown, 0)


def test_bug_restores_the_terminal_and_is_reported(server: Server) -> None:
    terminal, shown = begin(server, BROKEN)
    before = Terminal(server.home, "--version").settings
    terminal.type("\x1bOP")  # F1
    left = check_as_before(terminal, before, shown, 1)
    assert "kedge: Internal error, please report it: ValueError('a bug')" in left
    assert "Traceback" not in left
