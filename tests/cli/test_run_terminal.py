from __future__ import annotations

import os
import pty
import subprocess
import sys
from contextlib import suppress

import pytest

from kedge.cli.terminal import folded
from kedge.testing import HostedEndpoint
from tests.client.process import Home, Server

SPIN = "working"
ERASE = "\r\x1b[K"


def in_terminal(
    home: Home, *arguments: str, stdout: bool = True, stderr: bool = True, term: str = "xterm"
) -> tuple[int, str, str]:
    """(exit code, terminal output, pipe output) of a command whose named streams are a terminal."""
    master, slave = pty.openpty()
    command = subprocess.Popen(
        [sys.executable, "-m", "kedge", *arguments],
        env=home.env | {"TERM": term},
        cwd=home.workspace,
        stdin=slave,
        stdout=slave if stdout else subprocess.PIPE,
        stderr=slave if stderr else subprocess.PIPE,
    )
    os.close(slave)
    shown = rest_of(master)
    piped = b"".join(stream.read() for stream in (command.stdout, command.stderr) if stream)
    for stream in (command.stdout, command.stderr):
        if stream:
            stream.close()
    return command.wait(20), shown.decode(), piped.decode()


def rest_of(master: int) -> bytes:
    """The output until no process has the terminal open, which Linux reports as an error."""
    shown = b""
    with suppress(OSError):
        while data := os.read(master, 4096):
            shown += data
    os.close(master)
    return shown


def visible(shown: str) -> str:
    """The lines that stay on the screen, with kedge's own escape codes applied."""
    lines = []
    for line in shown.replace("\r\n", "\n").split("\n"):
        lines.append(line.rpartition(ERASE)[2] if ERASE in line else line)
    return "\n".join(lines)


def test_status_line_is_shown_while_thinking_then_removed(server: Server) -> None:
    code, shown, _ = in_terminal(server.home, "run", "--host", server.host, "script: pause 300 | say hello there")
    assert code == 0
    assert SPIN in shown
    assert "0s (Ctrl-C to cancel)" in shown
    assert SPIN not in visible(shown)
    assert visible(shown).startswith("hello there\n")
    assert "kedge run -C" in visible(shown)


def test_status_line_is_on_stderr_with_piped_stdout(server: Server) -> None:
    code, shown, piped = in_terminal(
        server.home, "run", "--host", server.host, "script: pause 300 | say hello", stdout=False
    )
    assert (code, piped) == (0, "hello\n")
    assert SPIN in shown
    assert "hello" not in shown


@pytest.mark.parametrize("way", ["quiet", "dumb", "no terminal on stderr"])
def test_output_has_no_status_line_and_no_escape_codes(server: Server, way: str) -> None:
    """F7."""
    script = "script: pause 300 | say hello | tool no_such {} | say there"
    quiet = ["-q"] if way == "quiet" else []
    term = "dumb" if way == "dumb" else "xterm"
    code, shown, piped = in_terminal(
        server.home, "run", "--host", server.host, *quiet, script, stderr=not way.startswith("no"), term=term
    )
    assert code == 0
    assert "\x1b" not in shown + piped
    assert SPIN not in shown + piped
    assert shown.startswith("hello\r\nthere\r\n")


def test_tools_are_named_on_the_terminal(server: Server) -> None:
    _, shown, _ = in_terminal(server.home, "run", "--host", server.host, 'script: tool no_such {"a": 1} | say done')
    assert '* no_such {"a": 1}' in visible(shown)
    assert "done" in visible(shown)


def test_model_cannot_control_the_terminal(server: Server) -> None:
    evil = "red \x1b[31mtext\x07 and \x9b2J"
    code, shown, _ = in_terminal(server.home, "run", "-q", "--host", server.host, evil)
    assert code == 0
    assert "\x1b" not in shown
    assert "\x07" not in shown
    assert "\x9b" not in shown
    assert "red \u241b[31mtext\u2407" in shown
    assert server.home.kedge("run", "--host", server.host, evil).out == f"You said: {evil}\n", "a pipe gets it as it is"


def test_error_is_printed_on_a_separate_line(server: Server) -> None:
    code, shown, _ = in_terminal(server.home, "run", "--host", server.host, "script: say half | fail 400 broke")
    assert code == 1
    lines = visible(shown).split("\n")
    assert lines[0].strip() == "half"
    assert lines[1].startswith("kedge: ")


def test_terminal_is_not_read_for_a_prompt(home: Home) -> None:
    code, shown, _ = in_terminal(home, "run")
    assert code == 2
    assert "No prompt" in shown


def test_ctrl_c_on_the_keyboard_cancels(server: Server, endpoint: HostedEndpoint) -> None:
    master, slave = pty.openpty()

    def own_terminal() -> None:
        os.setsid()
        os.close(os.open(os.ttyname(0), os.O_RDWR))  # the first terminal a session leader opens controls it

    run = subprocess.Popen(
        [sys.executable, "-m", "kedge", "run", "--host", server.host, "script: say begun | hang"],
        env=server.home.env | {"TERM": "xterm"},
        cwd=server.home.workspace,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        preexec_fn=own_terminal,
    )
    os.close(slave)
    shown = b""
    while b"begun" not in shown:
        shown += os.read(master, 4096)
    os.write(master, b"\x03")
    shown += rest_of(master)
    assert run.wait(20) == 130
    assert b"cancelling the run" in shown
    assert b"kedge: the run was cancelled" in shown


@pytest.mark.found(
    "attack round 2: display",
    "the rest of a long command line appeared at the left edge of the terminal, where kedge's own lines start, and a "
    "status line of wide characters took two lines and scrolled the screen; lines are now folded by display width and "
    "indented",
)
def test_long_line_is_folded_at_the_terminal_width() -> None:
    command = "  $ rm -rf x #" + " " * 66 + "in /tmp/harmless"
    assert list(folded(command, 80)) == [command[:80], "      in /tmp/harmless"]
    assert list(folded("漢" * 60, 79)) == ["漢" * 39, "    " + "漢" * 21]
    assert list(folded("a\tb", 80)) == ["a       b"]
    assert list(folded(command, 0)) == [command], "the width is not known"
    assert list(folded("", 80)) == [""]
