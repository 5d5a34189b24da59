"""A fork: a new session that begins with the messages of another one."""

from __future__ import annotations

from msgspec.structs import replace

from kedge.core.records import SessionRecord
from kedge.core.transcript import Finish, Message
from kedge.engine.ports import Ids
from kedge.errors import MessageNotFound

#: Messages a fork copies at the most: one append writes them all. Items.
FORK_MESSAGES_MAX = 100_000


def forked(
    parent: SessionRecord, messages: list[Message], message_id: str, ids: Ids, now: int
) -> tuple[SessionRecord, list[Message]]:
    """The new session, and its messages: copies up to and including that one."""
    place = next((index for index, message in enumerate(messages) if message.id == message_id), None)
    if place is None:
        raise MessageNotFound(f"Message {message_id} is not in session {parent.id}.")
    kept = messages[: place + 1]
    new = SessionRecord(ids.new("s"), parent.workspace_id, parent.title, now, now, parent.id, message_count=len(kept))
    copies = [replace(message, id=ids.new("m"), session_id=new.id) for message in kept]
    if copies[-1].role == "assistant":
        # It may be streaming: the copy has what was said so far, and nobody else will give it an end.
        copies[-1] = copies[-1].closed(Finish("unknown", now, "copied while it was being written"))
    return new, copies
