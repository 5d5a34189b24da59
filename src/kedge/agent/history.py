"""The transcript as an active Run sees it: read once, then updated with what the Run itself writes.

Reading it again for each Step would make the store the most expensive part of a long session. Any other writer (a
prompt that folds in, a command of the user) raises the session's message count, which triggers a new read.
"""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Sequence

from msgspec.structs import replace

from kedge.core.transcript import (
    HISTORY_MESSAGES_MAX,
    AttachedFile,
    Binary,
    Message,
    Part,
    for_model_reversed,
)
from kedge.engine.lane_state import LaneState
from kedge.slices import in_slices
from kedge.store.base import Store

#: Content that is encoded at once. A multiple of 3, so that the pieces can be joined. Bytes.
ENCODED_BYTES = 3 * 64 * 1024


class History:
    def __init__(self, store: Store, state: LaneState) -> None:
        self._store = store
        self._state = state
        self._messages: dict[str, Message] = {}
        #: The session's message count at the last read, plus messages put since; None: read again.
        self._count: int | None = None
        #: The attachments of the last request as base64, by digest.
        self._contents: dict[str, str] = {}

    async def read(self, *, before_summary: bool = False) -> list[Message]:
        """Return the messages from the session's summary on. A resumed Run also reads its messages before it."""
        session = self._state.session
        if session.message_count != self._count:
            # The count from before the read: a message that arrives meanwhile triggers another read.
            count = session.message_count
            first = "" if before_summary else session.summary_message_id
            messages = await self._store.last_messages(session.id, HISTORY_MESSAGES_MAX, first)
            self._messages = {message.id: message for message in messages}
            self._count = count
        return list(self._messages.values())

    async def for_model(self) -> list[Message]:
        """Return the messages for a model; see `core.transcript.for_model`."""
        return await for_model_in_slices(await self.read(), self._state.session.summary_message_id)

    def put(self, message: Message) -> None:
        """Add or replace a message that the Run has written."""
        if self._count is not None and message.id not in self._messages:
            self._count += 1
        self._messages[message.id] = message
        if len(self._messages) > HISTORY_MESSAGES_MAX:
            del self._messages[next(iter(self._messages))]

    def invalidate(self) -> None:
        """Read again: an append may or may not have happened."""
        self._count = None

    async def with_contents(self, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        """Return the messages with the contents of their attachments, which each Step sends again."""
        digests = [file.digest for message in messages for file in message.all(AttachedFile)]
        if not digests:
            self._contents = {}
            return messages
        workspace_id = self._state.session.workspace_id
        contents: dict[str, str] = {}
        for digest in digests:
            if digest not in contents:
                known = self._contents.get(digest)
                contents[digest] = known or await _base64(await self._store.attachment(workspace_id, digest))
        self._contents = contents
        return tuple(replace(one, parts=tuple(_filled(part, contents) for part in one.parts)) for one in messages)


def _filled(part: Part, contents: dict[str, str]) -> Part:
    return Binary(part.path, part.mime_type, contents[part.digest]) if isinstance(part, AttachedFile) else part


async def _base64(data: bytes) -> str:
    pieces = (data[start : start + ENCODED_BYTES] for start in range(0, len(data), ENCODED_BYTES))
    encoded = in_slices((b2a_base64(piece, newline=False) for piece in pieces), len)
    return b"".join([piece async for piece in encoded]).decode()


async def for_model_in_slices(messages: Sequence[Message], summary_message_id: str = "") -> list[Message]:
    """`core.transcript.for_model` with turns for other tasks: a long history takes tens of milliseconds."""
    sent = [message async for message in in_slices(for_model_reversed(messages, summary_message_id))]
    sent.reverse()
    return sent
