"""What the engine needs from the machine, so that a test can put a simulated machine in its place.

Timers are the event loop's own; the engine reads no wall clock, no global random number and starts no thread.
"""

from __future__ import annotations

from typing import Literal, Protocol

from kedge.config.schema import Config
from kedge.core.events import Event
from kedge.core.records import Record, RecordKind, RunRecord
from kedge.core.transcript import Message
from kedge.tools.process_port import Processes


class Clock(Protocol):
    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        ...


class Ids(Protocol):
    def new(self, prefix: str) -> str:
        """A new id that no other call returns, beginning with the prefix."""
        ...


class Encoder(Protocol):
    """Encodes events, with the records they show, as the bytes that readers receive."""

    def record_of(self, event: Event) -> tuple[RecordKind, str] | None:
        """Return the kind and the id of the record that the frame of this event shows."""
        ...

    def encode(self, position: int | None, session_id: str, event: Event, record: Record | None) -> bytes:
        """Return the frame of an event. `record` is None if it was deleted since.

        A pending Ask is sent without a position to a client that connects later."""
        ...

    def delta(self, message_id: str, part: int, text: str, kind: Literal["text", "reasoning"]) -> bytes: ...

    def snapshot(self, message: Message) -> bytes: ...

    def gap(self, reason: Literal["evicted", "epoch"], position: int) -> bytes: ...

    def progress(self, session_id: str, run_id: str, tool_call_id: str, text: str) -> bytes: ...

    def presence(self, session_id: str, clients: int) -> bytes: ...

    def skip(self, client_id: str) -> bytes:
        """Approvals are skipped because of this client; empty: they are not skipped."""
        ...


class Machine(Protocol):
    """Where tool processes come from."""

    async def processes(self, config: Config, workspace: str) -> Processes:
        """For the tools of one workspace: with its environment and its sandbox. ToolFailed when there are none."""
        ...

    async def close(self) -> None:
        """Everything that was started is dead when this returns."""
        ...


class Agents(Protocol):
    """Runs that serve a tool call of another Run."""

    async def run_child(self, parent: RunRecord, prompt: str, title: str) -> RunRecord:
        """The Run of a read-only agent in a session of its own, ended. Cancelled: it was, too, and has ended."""
        ...
