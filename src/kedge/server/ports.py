"""The machine behind the engine's ports: wall clock, random ids, and the wire's encoding."""

from __future__ import annotations

import secrets
import time
from typing import Literal

from kedge.core.approvals import Ask
from kedge.core.events import Asked, AskSettled, Event, FileChanged, MessageChanged, SessionChanged
from kedge.core.records import RunRecord, SessionRecord
from kedge.core.transcript import Message
from kedge.wire import codec

# Lower case without look-alikes: ids are read aloud, typed and double-clicked.
_LETTERS = "0123456789abcdefghjkmnpqrstvwxyz"
#: 32**14: 70 random bits. Short, since ids are in every frame; enough that two never meet. Characters.
_ID_CHARS = 14


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def today(self) -> str:
        return time.strftime("%Y-%m-%d")


class RandomIds:
    def new(self, prefix: str) -> str:
        bits = secrets.randbits(5 * _ID_CHARS)
        return prefix + "".join(_LETTERS[bits >> shift & 31] for shift in range(0, 5 * _ID_CHARS, 5))


class WireEncoder:
    def run(self, position: int, session_id: str, event: Event, run: RunRecord | None) -> bytes:
        return codec.run_frame(position, session_id, event, run)

    def session(
        self, position: int, event: SessionChanged, session: SessionRecord | None, is_busy: bool, clients: int
    ) -> bytes:
        body = codec.session_body(session, is_busy=is_busy, attached_clients=clients) if session else None
        return codec.session_frame(position, event, body)

    def message(self, position: int, event: MessageChanged, message: Message | None, session_id: str) -> bytes:
        return codec.message_frame(position, event, message, session_id)

    def ask(self, position: int | None, event: Asked | AskSettled, ask: Ask | None) -> bytes:
        return codec.ask_frame(position, event, ask)

    def file(self, position: int, session_id: str, event: FileChanged) -> bytes:
        return codec.file_frame(position, session_id, event)

    def progress(self, session_id: str, run_id: str, tool_call_id: str, text: str) -> bytes:
        return codec.progress_frame(session_id, run_id, tool_call_id, text)

    def presence(self, session_id: str, clients: int) -> bytes:
        return codec.presence_frame(session_id, clients)

    def skip(self, given_by: str) -> bytes:
        return codec.skip_frame(given_by)

    def delta(self, message_id: str, part: int, text: str, kind: Literal["text", "reasoning"]) -> bytes:
        return codec.delta_frame(message_id, part, text, kind)

    def snapshot(self, message: Message) -> bytes:
        return codec.snapshot_frame(message)

    def gap(self, reason: str, position: int) -> bytes:
        return codec.gap_frame(reason, position)
