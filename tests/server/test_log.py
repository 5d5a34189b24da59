"""What the server logs: an entry begins where the server begins one."""

from __future__ import annotations

import logging

import pytest

from kedge.server.listen import LogFormatter


@pytest.mark.found(
    "attack round 2: display",
    "a path or an error of a provider with a newline in it began another entry of the log, and escape codes reached "
    "the terminal; further lines are indented, and codes are spelled out",
)
def test_text_of_others_begins_no_log_entry() -> None:
    path = "/w\n2026-01-01 00:00:00,000 INFO kedge.server: all is well\x1b[2J\r"
    record = logging.LogRecord("kedge", logging.WARNING, "", 0, "approvals are skipped in %s", (path,), None)
    lines = LogFormatter("%(levelname)s %(message)s").format(record).split("\n")
    assert lines == [
        "WARNING approvals are skipped in /w",
        "    2026-01-01 00:00:00,000 INFO kedge.server: all is well\\u{1b}[2J\\u{d}",
    ]
