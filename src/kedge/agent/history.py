"""The transcript as an active Run sees it: read once, then updated with what the Run itself writes.

Reading it again for each Step would make the store the most expensive part of a long session. Any other writer (a
prompt that folds in, a command of the user) raises the session's message count, which triggers a new read.
"""

from __future__ import annotations

from kedge.core.transcript import HISTORY_MESSAGES_MAX, Message
from kedge.engine.lane_state import LaneState
from kedge.store.base import Store


class History:
    def __init__(self, store: Store, state: LaneState) -> None:
        self._store = store
        self._state = state
        self._messages: dict[str, Message] = {}
        #: The session's message count at the last read, plus messages put since; None: read again.
        self._count: int | None = None

    async def read(self) -> list[Message]:
        count = self._state.session.message_count
        if count != self._count:
            # The count from before the read: a message that arrives meanwhile triggers another read.
            messages = await self._store.last_messages(self._state.session.id, HISTORY_MESSAGES_MAX)
            self._messages = {message.id: message for message in messages}
            self._count = count
        return list(self._messages.values())

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
