"""Small records for the tests of stores."""

from __future__ import annotations

from typing import Any

from kedge.core.approvals import Ask, Grant
from kedge.core.events import RunAccepted, RunEnded, RunStarted
from kedge.core.records import (
    Attachment,
    AttachmentContent,
    FileVersion,
    LaneRecord,
    Prompt,
    RunOptions,
    RunRecord,
    SessionRecord,
    WorkspaceRecord,
    attachment_digest,
)
from kedge.core.transcript import Message, Tail, Text
from kedge.store.base import LaneWrite, Store, Write

W = "w1"
S = "s1"
BASE = 1_000


def workspace(workspace_id: str = W, base: int = BASE) -> WorkspaceRecord:
    return WorkspaceRecord(workspace_id, f"/home/{workspace_id}", 1, base)


async def with_workspace(store: Store, *ids: str) -> None:
    for workspace_id in ids or (W,):
        record = workspace(workspace_id)
        await store.workspace(record.path, record)


def session(session_id: str = S, workspace_id: str = W, **fields: Any) -> SessionRecord:
    return SessionRecord(session_id, workspace_id, **{"title": "A title", "created_at": 1, "updated_at": 1, **fields})


def run(run_id: str = "r1", session_id: str = S, workspace_id: str = W, **fields: Any) -> RunRecord:
    values = {"seq": 1, "prompt": Prompt("Hello"), "options": RunOptions(), "content": "c", "accepted_at": 1, **fields}
    return RunRecord(run_id, session_id, workspace_id, **values)


def message(message_id: str = "m1", text: str = "Hello", session_id: str = S, **fields: Any) -> Message:
    values = {"role": "assistant", "parts": (Text(text),), "created_at": 1, "updated_at": 1, **fields}
    return Message(message_id, session_id, **values)


def tail(text: str, message_id: str = "m1", part: int = 0, **fields: Any) -> Tail:
    return Tail(message_id, fields.pop("session_id", S), part, fields.pop("kind", "text"), text)


def ask(ask_id: str = "a1", session_id: str = S, workspace_id: str = W, **fields: Any) -> Ask:
    values = {"run_id": "r1", "tool_call_id": "c1", "tool": "bash", "kind": "approval", "asked_at": 1, **fields}
    return Ask(ask_id, workspace_id, session_id, **{"description": "run ls", "params": "{}", **values})


def grant(grant_id: str = "g1", session_id: str = S, workspace_id: str = W, **fields: Any) -> Grant:
    return Grant(grant_id, workspace_id, session_id, **{"rule": "bash(ls)", "created_at": 1, **fields})


def file_version(version_id: str = "f1", session_id: str = S, workspace_id: str = W, **fields: Any) -> FileVersion:
    values = {"run_id": "r1", "path": "/home/w1/a", "before": "old", "after": ("new",), "created_at": 1, **fields}
    return FileVersion(version_id, workspace_id, session_id, **values)


def content(data: bytes) -> AttachmentContent:
    return AttachmentContent(attachment_digest(data), data)


def attachment(data: bytes, path: str = "a.txt") -> Attachment:
    return Attachment(path, "a.txt", "text/plain", len(data), attachment_digest(data))


def lane(version: int, expected: int, session_id: str = S) -> LaneWrite:
    return LaneWrite(LaneRecord(session_id, version, version + 1, 0), expected)


def accepted(run_id: str = "r1", seq: int = 1) -> RunAccepted:
    return RunAccepted(run_id, seq, False, 1)


def started(run_id: str = "r1") -> RunStarted:
    return RunStarted(run_id, 2)


def ended(run_id: str = "r1") -> RunEnded:
    return RunEnded(run_id, "completed", "", 3)


async def copy_all(store: Store, source: str, target: str, until: str, workspace_id: str = W) -> list[str]:
    """Copy all slices; return the ids of the copies, which are those of the slices in order."""
    copies: list[str] = []
    after = ""
    while True:
        new_ids = [f"{target}-{number}" for number in range(len(copies), len(copies) + 5)]
        copied = await store.copy_messages(workspace_id, source, target, after, until, new_ids)
        if not copied.count:
            return copies
        copies += new_ids[: copied.count]
        after = copied.last


async def reclaim_all(store: Store) -> int:
    """Return the number of slices."""
    slices = 0
    while await store.reclaim():
        slices += 1
    return slices


def events(*items: Any, session_id: str = S, **fields: Any) -> Write:
    return Write(fields.pop("workspace_id", W), tuple((session_id, event) for event in items), **fields)
