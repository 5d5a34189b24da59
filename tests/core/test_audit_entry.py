"""Entries of the audit."""

from __future__ import annotations

import msgspec

from kedge.core.audit import AuditEntry


def test_entry_is_read_as_it_was_written() -> None:
    entry = AuditEntry(7, "ann", "cancel_run", "w", "s", "r", "one line")
    assert msgspec.json.decode(msgspec.json.encode(entry), type=AuditEntry) == entry
