"""A Lane as this process has it, and an append in the making: what the door works on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec import Struct
from msgspec.structs import replace

from kedge.core.approvals import Ask, Grant
from kedge.core.events import (
    Asked,
    AskSettled,
    CancelMarked,
    Change,
    Event,
    FileChanged,
    LaneEvent,
    MessageChanged,
    RunCancelMarked,
    RunEnded,
    RunStarted,
)
from kedge.core.lane import Lane
from kedge.core.records import FileVersion, RunRecord, SessionRecord, Usage
from kedge.core.transcript import Message
from kedge.engine.feed import Feed

#: A session without a title gets the beginning of its first prompt. Characters.
TITLE_CHARS = 60


@dataclass(slots=True)
class Addition:
    """What goes into the same append as a decision: messages put before or behind its events, changed Run records."""

    before: list[tuple[Change, Message]] = field(default_factory=list)
    behind: list[tuple[Change, Message]] = field(default_factory=list)
    runs: dict[str, RunRecord] = field(default_factory=dict)
    asks: list[Ask] = field(default_factory=list)


#: Sees the decided events and the Run records after them.
Compose = Callable[[tuple[LaneEvent, ...], dict[str, RunRecord]], Addition]


@dataclass(slots=True, weakref_slot=True)
class OpenLane:
    """A Lane as this process has it: the value, the records behind it, and who waits for the ends of its Runs."""

    session: SessionRecord
    feed: Feed
    lane: Lane = field(default_factory=Lane)
    #: Live Runs.
    runs: dict[str, RunRecord] = field(default_factory=dict)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    ended: dict[str, asyncio.Future[RunRecord]] = field(default_factory=dict)
    #: What the last request of its Runs had, as its provider counted; 0: not known since the process started.
    context_tokens: int = 0
    #: Pending Asks of its active Run, and who waits for what comes of them.
    asks: dict[str, Ask] = field(default_factory=dict)
    settled: dict[str, asyncio.Future[Ask]] = field(default_factory=dict)
    #: To be read before the next decision: not read yet, or an append failed and may or may not have happened.
    stale: bool = True
    loaded: bool = False
    #: Deletions under way: meanwhile no more accepts. After one the session is gone, and nothing may bring it back.
    deleting: int = 0
    deleted: bool = False

    @property
    def is_busy(self) -> bool:
        return self.lane.active is not None

    @property
    def is_idle(self) -> bool:
        """Nothing is known here that the store does not know: it can be read again whenever it is asked for."""
        in_doubt = self.loaded and self.stale
        return not (self.runs or self.asks or self.ended or self.settled or in_doubt)

    def end_of(self, run_id: str) -> asyncio.Future[RunRecord]:
        """Done when this live Run has ended."""
        return self.ended.setdefault(run_id, asyncio.get_running_loop().create_future())

    def end_of_ask(self, ask_id: str) -> asyncio.Future[Ask]:
        """Done when this pending Ask was answered or withdrawn."""
        return self.settled.setdefault(ask_id, asyncio.get_running_loop().create_future())


class Decided(Struct, frozen=True):
    """What came of a command: the Lane it met, its events, and the Run records they changed."""

    before: Lane
    events: tuple[LaneEvent, ...]
    runs: dict[str, RunRecord]


@dataclass(slots=True)
class Draught:
    """One append in the making: log entries in order, with the records they speak of."""

    log: list[Event] = field(default_factory=list)
    messages: dict[str, Message] = field(default_factory=dict)
    runs: dict[str, RunRecord] = field(default_factory=dict)
    asks: dict[str, Ask] = field(default_factory=dict)
    grants: tuple[Grant, ...] = ()
    deleted_grants: tuple[str, ...] = ()
    files: tuple[FileVersion, ...] = ()
    #: Messages that are put for the first time.
    created: int = 0

    def put(self, change: Change, message: Message) -> None:
        self.messages[message.id] = message
        self.log.append(MessageChanged(message.id, change))
        self.created += change == "created"

    def put_ask(self, ask: Ask) -> None:
        self.asks[ask.id] = ask
        self.log.append((Asked if ask.state == "pending" else AskSettled)(ask.run_id, ask.id))

    def put_file(self, version: FileVersion, change: Change) -> None:
        self.files = (*self.files, version)
        self.log.append(FileChanged(version.run_id, version.id, version.path, change))


def withdrawn_asks(lane: OpenLane, events: tuple[LaneEvent, ...], now: int) -> list[Ask]:
    """The pending Asks of Runs that these events stop or end: nobody may answer them any more."""
    stopped = {event.run_id for event in events if isinstance(event, CancelMarked | RunCancelMarked | RunEnded)}
    return [replace(ask, state="withdrawn", answered_at=now) for ask in lane.asks.values() if ask.run_id in stopped]


def session_after(
    lane: OpenLane, events: tuple[LaneEvent, ...], changed: dict[str, RunRecord], draught: Draught, now: int
) -> SessionRecord:
    session = lane.session
    usage = sum((changed[event.run_id].usage for event in events if isinstance(event, RunEnded)), Usage())
    if not session.title:
        started = next((changed[event.run_id] for event in events if isinstance(event, RunStarted)), None)
        if started:
            session = replace(session, title=_title_of(started.prompt.text), title_is_makeshift=True)
    count = session.message_count + draught.created
    return replace(session, message_count=count, usage=session.usage + usage, updated_at=now)


def _title_of(prompt: str) -> str:
    line = " ".join(prompt.split())
    return line if len(line) <= TITLE_CHARS else line[: TITLE_CHARS - 1].rstrip() + "…"
