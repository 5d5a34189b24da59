"""The engine's ports to the machine. A simulator implements them, too.

Timers and threads are those of the event loop. The engine reads no wall clock and draws no random number.
"""

from __future__ import annotations

from typing import Literal, Protocol

from kedge.config.schema import Config
from kedge.core.events import Event
from kedge.core.extensions import AgentDefinition, ExtensionState
from kedge.core.records import RecordKind, Records, RunRecord
from kedge.core.transcript import Message, Reasoning, Text
from kedge.tools.background import KeptCommands
from kedge.tools.file_threads import FileThreads
from kedge.tools.process_port import Processes


class Clock(Protocol):
    def now_ms(self) -> int:
        """Return the milliseconds since the epoch."""
        ...


class Ids(Protocol):
    def new(self, prefix: str) -> str:
        """Return a new unique id with this prefix."""
        ...


class Encoder(Protocol):
    """Encodes events, with the records they show, as the bytes that readers receive."""

    def record_of(self, event: Event) -> tuple[RecordKind, str] | None:
        """Return the kind and the id of the record that the frame of this event shows."""
        ...

    def encode(self, position: int | None, session_id: str, event: Event, records: Records) -> bytes:
        """Return the frame of an event. Its record is missing in `records` if it was deleted since.

        A pending Ask is sent without a position to a client that connects later."""
        ...

    def delta(self, message_id: str, part: int, text: str, kind: Literal["text", "reasoning"]) -> bytes: ...

    def snapshot(self, message: Message) -> tuple[bytes, bytes]:
        """Return the frame of a streaming message without parts, split where its parts belong."""
        ...

    def snapshot_part(self, part: Text | Reasoning) -> tuple[bytes, bytes]:
        """Return a part without text, split where its text belongs."""
        ...

    def json_text(self, text: str) -> bytes:
        """Return a piece of the text of a part."""
        ...

    def gap(self, reason: Literal["evicted", "epoch"], position: int) -> bytes: ...

    def progress(self, session_id: str, run_id: str, tool_call_id: str, text: str) -> bytes: ...

    def presence(self, session_id: str, clients: int) -> bytes: ...

    def kept_output(self, session_id: str, id_: str, text: str) -> bytes: ...

    def config_problem(self, problem: str) -> bytes:
        """The configuration files are not in effect for this reason; empty: they are."""
        ...

    def extension(self, state: ExtensionState) -> bytes: ...


class Machine(Protocol):
    """The source of tool processes."""

    async def processes(self, config: Config, workspace: str, files: FileThreads) -> Processes:
        """Return the processes for one workspace, with its environment and sandbox; ToolFailed if there are none.
        `files`: the threads of the workspace."""
        ...

    def stay_alive(self, until: float) -> None:
        """End every process at this time of CLOCK_BOOTTIME, and start none, unless this is called again before."""

    async def close(self) -> None:
        """End every process that was started."""
        ...


class Agents(Protocol):
    """Starts what outlives a tool call: Runs that serve one of another Run, and kept commands."""

    async def run_child(self, parent: RunRecord, prompt: str, title: str, agent: AgentDefinition | None) -> RunRecord:
        """Run an agent in its own session; return its ended Run. If cancelled, the agent has ended, too.

        `agent`: its definition; None: a read-only one."""
        ...

    def kept_commands(self, run: RunRecord) -> KeptCommands:
        """Return the kept commands of the session, for the calls of this active Run."""
        ...
