"""What the engine needs from the machine, so that a test can put a simulated machine in its place.

Timers are the event loop's own; the engine reads no wall clock, no global random number and starts no thread.
"""

from __future__ import annotations

from typing import Literal, Protocol

from kedge.config.load import Config
from kedge.core.approvals import Ask
from kedge.core.events import Asked, AskSettled, Event, FileChanged, MessageChanged, SessionChanged
from kedge.core.records import RunRecord, SessionRecord
from kedge.core.transcript import Message
from kedge.tools.processes import Processes


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

    def ask(self, position: int | None, event: Asked | AskSettled, ask: Ask | None) -> bytes:
        """Without a position: it is pending, and shown to a client that has come since."""
        ...

    def file(self, position: int, session_id: str, event: FileChanged) -> bytes: ...

    def progress(self, session_id: str, run_id: str, tool_call_id: str, text: str) -> bytes: ...

    def presence(self, session_id: str, clients: int) -> bytes: ...

    def skip(self, given_by: str) -> bytes:
        """Approvals are skipped because of this client; empty: they are not."""
        ...

    def delta(self, message_id: str, part: int, text: str, kind: Literal["text", "reasoning"]) -> bytes: ...

    def snapshot(self, message: Message) -> bytes: ...

    def gap(self, reason: str, position: int) -> bytes: ...


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
