from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kedge.cli.prompt_input import SILENT_S_MAX, is_typed
from tests.client.process import Server


def test_piped_input_precedes_the_arguments(server: Server) -> None:
    done = server.home.kedge("run", "--host", server.host, "explain", stdin="some text\n")
    assert done.out == "You said: some text\n\nexplain\n"


@pytest.mark.parametrize(
    ("words", "piped", "expands"),
    [(("/a", "b"), "", True), (("-", "see", "@s:u"), "", True), ((), "/a", False), (("see", "@s:u"), "@x:y", False)],
)
def test_only_typed_text_expands(words: tuple[str, ...], piped: str, expands: bool) -> None:
    typed = " ".join(word for word in words if word != "-")
    assert is_typed("\n\n".join(part for part in (piped, typed) if part), words) == expands


def test_standard_input_alone_is_the_prompt(server: Server) -> None:
    assert server.home.kedge("run", "--host", server.host, stdin="alone\n").out == "You said: alone\n"
    assert server.home.kedge("run", "--host", server.host, "-", stdin="dash\n").out == "You said: dash\n"


def test_file_and_null_device_are_read(server: Server, tmp_path: Path) -> None:
    (tmp_path / "in").write_text("from a file")
    with (tmp_path / "in").open() as file:
        done = server.home.kedge("run", "--host", server.host, "x", stdin=file.fileno())
    assert done.out == "You said: from a file\n\nx\n"
    assert server.home.kedge("run", "--host", server.host, "x", stdin=subprocess.DEVNULL).out == "You said: x\n"


def test_closed_standard_input_is_no_input(server: Server) -> None:
    """F9."""
    command = f'exec {sys.executable} -m kedge run --host {server.host} "$@" <&-'
    for arguments, code in ((["closed"], 0), ([], 2)):
        done = subprocess.run(
            ["sh", "-c", command, "sh", *arguments],
            env=server.home.env,
            cwd=server.home.workspace,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
    assert "No prompt" in done.stderr


def test_open_silent_pipe_does_not_block_a_prompt(server: Server) -> None:
    """F9: an inherited pipe, as left by cron jobs and editors."""
    read, write = os.pipe()
    done = server.home.kedge("run", "--host", server.host, "hello", stdin=read)
    os.close(read)
    os.close(write)
    assert (done.code, done.out) == (0, "You said: hello\n")
    assert done.err == f"kedge: no data on standard input for {SILENT_S_MAX:g} s; continuing without it\n"


def test_dash_waits_for_a_slow_pipe(server: Server) -> None:
    run = server.home.start_kedge("run", "--host", server.host, "-", "explain", stdin=subprocess.PIPE)
    out, _ = run.communicate("late\n", timeout=20)
    assert out == "You said: late\n\nexplain\n"


def test_huge_input_is_refused_clearly(server: Server) -> None:
    done = server.home.kedge("run", "--host", server.host, "x", stdin="y" * (3 * 1024 * 1024))
    assert (done.code, done.out) == (2, "")
    assert "larger than 1024 KiB" in done.err
    endless = server.home.start_kedge("run", "--host", server.host, stdin=os.open("/dev/zero", os.O_RDONLY))
    _, err = endless.communicate(timeout=20)
    assert (endless.returncode, "larger than" in err) == (2, True)


def test_large_prompt_below_the_limit_is_accepted(server: Server) -> None:
    done = server.home.kedge("run", "--host", server.host, "--output", "json", stdin="word " * 100_000)
    assert done.code == 0


def test_input_that_is_not_text_is_refused_clearly(server: Server, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"\xff\xfe\x00binary")
    with (tmp_path / "in").open() as file:
        done = server.home.kedge("run", "--host", server.host, "x", stdin=file.fileno())
    assert (done.code, "not UTF-8" in done.err) == (2, True)
    run = subprocess.run(
        [sys.executable, "-m", "kedge", "run", "--host", server.host, b"\xff"],
        env=server.home.env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=30,
        check=False,
    )
    assert (run.returncode, b"not valid UTF-8" in run.stderr) == (2, True)
