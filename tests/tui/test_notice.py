"""The bell and desktop notices, in a real terminal that reports focus changes."""

from __future__ import annotations

import json

import pytest

from kedge.tui.notice import notice_codes
from tests.client.process import Server, Terminal

#: Sequences that a terminal sends when it loses and gains the focus.
BLUR, FOCUS = "\x1b[O", "\x1b[I"
STEP_ASKS = f"script: hold KEY | tool write {json.dumps({'path': 'a.txt', 'content': 'x'})} | say last"


def screen(server: Server, **environment: str) -> Terminal:
    server.home.env = server.home.env | {"COLUMNS": "100", "LINES": "30"} | environment
    terminal = Terminal(server.home, "tui", "--host", server.host)
    terminal.until("enter: send")
    return terminal


def leave(terminal: Terminal) -> str:
    """Quit; return the output since the last read."""
    terminal.type("\x11")
    code, shown = terminal.end()
    assert code == 0
    return shown


def begin(server: Server, terminal: Terminal, script: str, key: str) -> None:
    terminal.type(script.replace("KEY", key) + "\r")
    terminal.until("esc: stop this run")


def test_bell_rings_when_an_unfocused_run_ends(server: Server) -> None:
    terminal = screen(server)
    begin(server, terminal, "script: hold KEY | say fine", "notice-1")
    terminal.type(BLUR)
    server.home.endpoint.release("notice-1")
    terminal.until("\a")
    leave(terminal)


def test_bell_rings_when_an_unfocused_run_asks(server: Server) -> None:
    terminal = screen(server)
    begin(server, terminal, STEP_ASKS, "notice-2")
    terminal.type(BLUR)
    server.home.endpoint.release("notice-2")
    terminal.until("\a")
    leave(terminal)


def test_bell_is_silent_while_the_terminal_has_the_focus(server: Server) -> None:
    terminal = screen(server)
    begin(server, terminal, STEP_ASKS, "notice-3")
    terminal.type(BLUR + FOCUS)
    server.home.endpoint.release("notice-3")
    shown = terminal.until("needs your approval")
    terminal.type("\x1b")
    shown += terminal.until("cancelled")
    shown += leave(terminal)
    assert "\a" not in shown


def test_desktop_notice_is_sent_if_configured(server: Server) -> None:
    terminal = screen(server, KEDGE_NOTICE="desktop")
    begin(server, terminal, STEP_ASKS, "notice-4")
    terminal.type(BLUR)
    server.home.endpoint.release("notice-4")
    shown = terminal.until("\x1b]9;kedge: write needs your approval\x1b\\")
    assert "\a" not in shown
    leave(terminal)


@pytest.mark.parametrize(
    ("environment", "codes"),
    [
        ({}, "\a"),
        ({"KEDGE_NOTICE": "bell"}, "\a"),
        ({"KEDGE_NOTICE": "something else"}, "\a"),
        ({"KEDGE_NOTICE": "off"}, ""),
        ({"KEDGE_NOTICE": "desktop"}, "\x1b]9;kedge: done\x1b\\"),
        ({"KEDGE_NOTICE": "desktop", "TERM": "rxvt-unicode"}, "\x1b]777;notify;kedge;done\x1b\\"),
        ({"KEDGE_NOTICE": "desktop", "VTE_VERSION": "7600"}, "\x1b]777;notify;kedge;done\x1b\\"),
        ({"KEDGE_NOTICE": "desktop", "TMUX": "x"}, "\x1bPtmux;\x1b\x1b]9;kedge: done\x1b\x1b\\\x1b\\"),
    ],
)
def test_notice_codes_depend_on_setting_and_terminal(environment: dict[str, str], codes: str) -> None:
    assert notice_codes("done", environment) == codes


def test_notice_text_is_harmless() -> None:
    codes = notice_codes("a\x07b\x1b\\c\x9cd;e\nf" + "g" * 1000, {"KEDGE_NOTICE": "desktop"})
    text = codes.removeprefix("\x1b]9;kedge: ").removesuffix("\x1b\\")
    assert text.isprintable()
    assert ";" not in text
    assert len(text) <= 120
