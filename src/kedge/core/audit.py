"""Audit entries: the records of the actions of users."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

#: Entries that a store keeps, of all workspaces together: the latest. An entry has about 200 bytes. Items.
AUDIT_MAX = 100_000

Action = Literal[
    "submit",
    "cancel",
    "cancel_run",
    "clear_queue",
    "edit_run",
    "move_run",
    "fold_run",
    "answer",
    "mode",
    "undo",
    "redo",
    "rewind",
    "delete_session",
    "remove_workspace",
    "shell",
    "add_user",
    "revoke_user",
]


class AuditEntry(Struct, frozen=True):
    """An action of a user or the owner, for the audit listing."""

    #: Milliseconds since the epoch.
    at: int
    #: The name of the user; empty: the owner.
    author: str
    action: Action
    workspace_id: str = ""
    session_id: str = ""
    run_id: str = ""
    #: One bounded line.
    detail: str = ""
