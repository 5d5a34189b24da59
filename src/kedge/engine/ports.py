"""What the engine needs from the machine, so that a test can put a simulated machine in its place.

Timers are the event loop's own; the engine reads no wall clock, no global random number and starts no thread.
"""

from __future__ import annotations

from typing import Literal, Protocol

from kedge.core.events import Event, MessageChanged, SessionChanged
from kedge.core.records import RunRecord, SessionRecord
from kedge.core.transcript import Message


class Clock(Protocol):
    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        ...


class Ids(Protocol):
    def new(self, prefix: str) -> str:
        """A new id that no other call returns, beginning with the prefix."""
        ...


class Encoder(Protocol):
    """Turns what happened into the bytes that readers get. The engine does not know the format."""

    def run(self, position: int, session_id: str, event: Event, run: RunRecord | None) -> bytes: ...

    def session(
        self, position: int, event: SessionChanged, session: SessionRecord | None, is_busy: bool, clients: int
    ) -> bytes: ...

    def message(self, position: int, event: MessageChanged, message: Message | None, session_id: str) -> bytes: ...

    def delta(self, message_id: str, part: int, text: str, kind: Literal["text", "reasoning"]) -> bytes: ...

    def snapshot(self, message: Message) -> bytes: ...

    def gap(self, reason: str, position: int) -> bytes: ...
