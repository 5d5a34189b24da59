"""The server's log, and a log that cannot be written."""

from __future__ import annotations

import logging
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from kedge.client.client import Client
from kedge.server import log
from kedge.server.log import BackgroundStream, LogFormatter
from tests.client.process import WAIT_S, Home, until


@pytest.mark.found(
    "attack round 2: display",
    "a path or a provider's error that contained a newline began another log entry, and escape codes reached the "
    "terminal; further lines are indented, and codes are spelled out",
)
def test_foreign_text_cannot_forge_a_log_entry() -> None:
    path = "/w\n2026-01-01 00:00:00,000 INFO kedge.server: all is well\x1b[2J\r"
    record = logging.LogRecord("kedge", logging.WARNING, "", 0, "approvals are skipped in %s", (path,), None)
    lines = LogFormatter("%(levelname)s %(message)s").format(record).split("\n")
    assert lines == [
        "WARNING approvals are skipped in /w",
        "    2026-01-01 00:00:00,000 INFO kedge.server: all is well\\u{1b}[2J\\u{d}",
    ]


@pytest.fixture
def full_pipe() -> Iterator[tuple[int, int]]:
    """The read and the write end of a pipe without room."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    try:
        while True:
            os.write(write, b"." * 4096)
    except BlockingIOError:
        os.set_blocking(write, True)
    yield read, write
    os.close(read)
    os.close(write)


@pytest.mark.found(
    "fault 8",
    "one warning of a server whose standard error was a full pipe stopped the event loop, until the pipe was read; a "
    "thread writes the log, and drops what does not fit",
)
async def test_full_pipe_stops_neither_server_nor_exit(home: Home, full_pipe: tuple[int, int]) -> None:
    host = f"unix://{home.root}/k.sock"
    server = home.start_kedge("serve", "--host", host, stderr=full_pipe[1])
    until(server, "listening on unix://")
    async with Client(host) as client:
        home.config.write_text("this is not TOML")
        await client.create_workspace(str(home.workspace))  # logs that the configuration is not valid
        await client.health()
        server.send_signal(signal.SIGTERM)
        assert server.wait(WAIT_S) == 0


def test_log_of_full_pipe_reports_dropped_lines(full_pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "QUEUE_BYTES_MAX", 100)
    read, write = full_pipe
    stream = BackgroundStream(write)
    for number in range(100):
        stream.write(f"line {number:04}\n")
    text = b""
    while b"dropped" not in text:
        text += os.read(read, 65536)
    stream.wait_written(WAIT_S)
    stream.write("the end\n")
    while b"the end" not in text:
        text += os.read(read, 65536)
    lines = text.decode().lstrip(".").splitlines()
    assert lines[:10] == [f"line {number:04}" for number in range(10)]
    assert lines[-1] == "the end"
    # One report, or two if the thread took the first lines while others were still being added.
    pattern = r"kedge: (\d+) log lines were dropped, since they could not be written"
    reports = [re.fullmatch(pattern, line) for line in lines[10:-1]]
    assert sum(int(report[1]) for report in reports if report) == 90
    assert all(reports)


def test_full_disk_drops_log_lines_and_reports_them(tmp_path: Path) -> None:
    path = tmp_path / "log"
    full, good = os.open("/dev/full", os.O_WRONLY), os.open(path, os.O_WRONLY | os.O_CREAT)
    target = os.dup(full)
    stream = BackgroundStream(target)
    for _ in range(3):
        stream.write("lost\n")
        stream.wait_written(WAIT_S)
    os.dup2(good, target)
    stream.write("kept\n")
    stream.wait_written(WAIT_S)
    assert path.read_text() == "kept\nkedge: 3 log lines were dropped, since they could not be written\n"
    for descriptor in (full, good, target):
        os.close(descriptor)


def test_log_file_keeps_its_newest_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "LOG_BYTES_MAX", 1000)
    monkeypatch.setattr(log, "LOG_BYTES_KEPT", 500)
    path = tmp_path / "log"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    stream = BackgroundStream(descriptor, trims=True)
    for number in range(1000):
        stream.write(f"line {number:04}\n")
        stream.wait_written(WAIT_S)
        assert path.stat().st_size <= 1000
    numbers = [int(line.removeprefix("line ")) for line in path.read_text().splitlines()]
    assert numbers == list(range(numbers[0], 1000))
    assert len(numbers) >= 40
    os.close(descriptor)


def test_crash_of_a_library_leaves_a_stack_in_the_log(home: Home) -> None:
    server = home.start_kedge("serve", "--host", f"unix://{home.root}/k.sock")
    until(server, "listening on unix://")
    server.send_signal(signal.SIGSEGV)
    _, errors = server.communicate(timeout=WAIT_S)
    assert server.returncode == -signal.SIGSEGV
    assert "Fatal Python error: Segmentation fault" in errors
    assert "in serve" in errors
