"""The transcript as a Run at work knows it: read once, then kept up with what the Run itself writes.

Reading it anew for each Step would make the store the most expensive part of a long session. Whoever else adds a
message (a prompt that folds in, a command of the user) raises the session's count of them, and then it is read again.
"""

from __future__ import annotations

from kedge.core.transcript import Message
from kedge.engine.lane_state import OpenLane
from kedge.store.base import Store

#: Messages of history a Run reads. Items.
HISTORY_MESSAGES_MAX = 10_000


class History:
    def __init__(self, store: Store, lane: OpenLane) -> None:
        self._store = store
        self._lane = lane
        self._messages: dict[str, Message] = {}
        #: How many messages the session had when it was read, and with what was put since; None: not read yet.
        self._count: int | None = None

    async def read(self) -> list[Message]:
        count = self._lane.session.message_count
        if count != self._count:
            # The count from before: what comes in meanwhile makes it be read once more.
            found = await self._store.last_messages(self._lane.session.id, HISTORY_MESSAGES_MAX)
            self._messages = {message.id: message for message in found}
            self._count = count
        return list(self._messages.values())

    def put(self, message: Message) -> None:
        """The Run has put this message, new or changed."""
        if self._count is not None and message.id not in self._messages:
            self._count += 1
        self._messages[message.id] = message
        if len(self._messages) > HISTORY_MESSAGES_MAX:
            del self._messages[next(iter(self._messages))]

    def forget(self) -> None:
        """What was put may or may not have arrived."""
        self._count = None
