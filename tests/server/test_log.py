"""The server's log."""

from __future__ import annotations

import logging

import pytest

from kedge.server.startup import LogFormatter


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
