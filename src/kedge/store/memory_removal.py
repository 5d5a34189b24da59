"""Pages and copies of messages, and the removal of sessions and workspaces, in the memory store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

from msgspec.structs import replace

from kedge.core.approvals import Ask, Grant
from kedge.core.records import FileVersion
from kedge.core.transcript import Message
from kedge.store import codec
from kedge.store.base import CopiedMessages, KnownWorkspace, Write

if TYPE_CHECKING:
    from kedge.store.memory import MemoryData, StoredMessage

#: Messages of one slice of a copy or a removal: few, so that simulations have several slices. Items.
SLICE_MESSAGES_MAX = 2

OwnedT = TypeVar("OwnedT", Ask, Grant, FileVersion)


def known(data: MemoryData, workspace_id: str) -> KnownWorkspace:
    sessions = [session.updated_at for session in data.sessions.values() if session.workspace_id == workspace_id]
    live = sum(run.workspace_id == workspace_id for run in data.live.values())
    grants = sum(grant.workspace_id == workspace_id for grant in data.grants.values())
    return KnownWorkspace(data.logs[workspace_id].record, len(sessions), live, grants, max(sessions, default=0))


def delete_session(data: MemoryData, workspace_id: str, session_id: str) -> None:
    """Delete the session in this workspace; a session of the same id in another workspace is not touched."""
    if session_id in data.sessions and data.sessions[session_id].workspace_id == workspace_id:
        del data.sessions[session_id]
    if (workspace_id, session_id) in data.copies:
        data.abandoned.add((workspace_id, session_id))
    if session_id in data.lanes and data.lanes[session_id][0] == workspace_id:
        del data.lanes[session_id]
    for key in [key for key, run in data.runs.items() if key[0] == workspace_id and run.session_id == session_id]:
        del data.runs[key]
        data.live.pop(key, None)
    transcript = data.transcripts.get(session_id, {})
    for key in [key for key in transcript if key[0] == workspace_id]:
        del data.messages[key], transcript[key]
    if not transcript:
        data.transcripts.pop(session_id, None)
    release_attachments(data, workspace_id, session_id)
    forget(data.asks, workspace_id, session_id)
    forget(data.grants, workspace_id, session_id)
    forget(data.files, workspace_id, session_id)
    data.originals = {version_id: content for version_id, content in data.originals.items() if version_id in data.files}


def check_cuts(data: MemoryData, write: Write) -> None:
    for session_id, message_id in write.cuts:
        if (write.workspace_id, message_id) not in data.transcripts.get(session_id, {}):
            raise codec.unknown_message(message_id, session_id)


def cut_messages(data: MemoryData, write: Write) -> None:
    for session_id, message_id in write.cuts:
        transcript = data.transcripts[session_id]
        keys = list(transcript)
        for key in keys[keys.index((write.workspace_id, message_id)) :]:
            if key[0] == write.workspace_id:
                del data.messages[key], transcript[key]


def message_runs(data: MemoryData, session_id: str, message_id: str) -> tuple[set[str], set[str]]:
    messages = [stored.message for stored in data.transcripts.get(session_id, {}).values()]
    index = next((index for index, message in enumerate(messages) if message.id == message_id), None)
    if index is None:
        raise codec.unknown_message(message_id, session_id)
    return {message.run_id for message in messages[:index]}, {message.run_id for message in messages[index:]}


def add_copies(
    data: MemoryData, workspace_id: str, session_id: str, originals: list[Message], new_ids: Sequence[str]
) -> CopiedMessages:
    """Add a slice to a session that is not visible yet."""
    pairs = [
        (message.id, replace(message, id=new_id, session_id=session_id))
        for message, new_id in zip(originals[:SLICE_MESSAGES_MAX], new_ids, strict=False)
    ]
    copies = [copy for _, copy in pairs]
    data.copies.setdefault((workspace_id, session_id), []).extend(copies)
    data.attachment_uses |= {(workspace_id, session_id, digest) for copy in copies for digest in codec.digests_of(copy)}
    return codec.copied_messages(pairs)


def remove_slice(data: MemoryData) -> bool:
    """Remove some messages of copies that were given up; return False if there are none."""
    for key in data.abandoned:
        del data.copies[key][:SLICE_MESSAGES_MAX]
        if not data.copies[key]:
            del data.copies[key]
            data.abandoned.remove(key)
            release_attachments(data, *key)
        return True
    return False


def release_attachments(data: MemoryData, workspace_id: str, session_id: str) -> None:
    released = {use for use in data.attachment_uses if use[:2] == (workspace_id, session_id)}
    data.attachment_uses -= released
    used = {(owner, digest) for owner, _, digest in data.attachment_uses}
    for _, _, digest in released:
        if (workspace_id, digest) not in used:
            del data.attachments[workspace_id, digest]


def forget(owned: dict[str, OwnedT], workspace_id: str, session_id: str) -> None:
    for key, record in list(owned.items()):
        if (record.workspace_id, record.session_id) == (workspace_id, session_id):
            del owned[key]


def page_of_messages(
    data: MemoryData,
    session_id: str,
    after: str | None,
    before: str | None,
    run_id: str | None,
    limit: int,
    bytes_max: int | None,
) -> list[StoredMessage]:
    """Return a page after a message, or before one. `run_id`: only messages of that Run."""
    result = list(data.transcripts.get(session_id, {}).values())
    bound = after if before is None else before or None
    if bound is not None:
        ids = [stored.message.id for stored in result]
        if bound not in ids:
            raise codec.unknown_message(bound, session_id)
        result = result[ids.index(bound) + 1 :] if before is None else result[: ids.index(bound)]
    result = [stored for stored in result if run_id in (None, stored.message.run_id)]
    step = 1 if before is None else -1
    page = result[::step][: max(limit, 0)]
    return codec.page(page, lambda one: len(codec.encode_parts(one.message.parts)), bytes_max)[::step]
