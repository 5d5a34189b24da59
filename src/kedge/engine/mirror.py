"""The feed of a workspace that another node serves, for the readers of this node.

It is fed with the frames of that node (`server/relay.py`). While that node cannot be reached, it is fed from the store:
durable events come from the log, and the text of streaming messages from their checkpoints. Both are late, never wrong:

- A reader receives no event that the feed does not have yet, although the log may already contain it: otherwise a
  message that is still streaming here would replace its final version.
- A streaming message changes in one of two ways. Either its text grows, and readers receive the Deltas, or it was
  replaced, and then all readers receive it in full, as when they join.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from msgspec.structs import replace

from kedge.core.events import MessageChanged
from kedge.core.records import SessionRecord, SessionView, WorkspaceRecord
from kedge.core.transcript import Message, Part, Reasoning, Text
from kedge.engine.draft import Draft, DraftKind
from kedge.engine.feed import Feed
from kedge.engine.log_frames import LogFrames
from kedge.engine.ports import Clock, Encoder
from kedge.store.base import LogEntry, Store

#: Entries of the log that are searched for replaced messages. If there are more, readers receive each streaming message
#: again, as it is stored. Items.
PASSED_MAX = 1_000

#: (index of the part, its kind, text)
Growth = tuple[int, DraftKind, str]


@dataclass(slots=True)
class Attendance:
    """The state of sessions that only the serving node has, as it has last reported."""

    #: session_id -> number of clients; a missing session has none.
    clients: dict[str, int] = field(default_factory=dict)
    #: session_id -> ids of the kept commands that run.
    jobs: dict[str, frozenset[str]] = field(default_factory=dict)

    def view(self, session: SessionRecord) -> SessionView:
        running = self.jobs.get(session.id, frozenset())
        commands = tuple(
            replace(entry, state="server_stopped") if entry.is_running and entry.id not in running else entry
            for entry in session.kept_commands
        )
        session = replace(session, kept_commands=commands) if commands != session.kept_commands else session
        return SessionView(session, False, self.clients.get(session.id, 0))


class Mirror(Feed):
    def __init__(self, workspace: WorkspaceRecord, head: int, store: Store, encoder: Encoder, clock: Clock) -> None:
        self.attendance = Attendance()
        super().__init__(workspace, head, store, encoder, clock, self.attendance)
        self.store = store
        #: The head of the log at the last look at the live Runs.
        self._looked_at: int | None = None
        self._has_live_runs = False
        #: session_id and run_id of the active ones.
        self._active: list[tuple[str, str]] = []
        self._advanced = asyncio.Event()
        self.log = _MirroredLog(self, store)
        self.flush_s = 0.0  # the serving node has merged the Deltas of this time already

    async def wait_for(self, position: int) -> None:
        """Wait until the feed has this Position."""
        while self.head < position and not self.closed:
            await self._advanced.wait()

    def _wake(self) -> None:
        advanced, self._advanced = self._advanced, asyncio.Event()
        advanced.set()
        super()._wake()

    # --- streaming messages --------------------------------------------------------------------------------------

    def begin_message(self, message: Message) -> None:
        """Stream a message that begins with this text. Readers receive the text from another frame."""
        self.end_message(message.id)
        draft = Draft(replace(message, parts=()))
        for index, part in enumerate(message.parts):
            kind, text = _text_of(part)
            draft.add(kind, text, part.signature if isinstance(part, Reasoning) else "", index)
        draft.take_unsent()
        draft.take_unsaved()
        self.stream(draft)

    def end_message(self, message_id: str) -> None:
        """End a streaming message: its durable frame follows."""
        if draft := self.streaming(message_id):
            draft.close()
            self.stream_ended(draft)

    def add(self, message_id: str, growth: Growth) -> None:
        if draft := self.streaming(message_id):
            index, kind, text = growth
            draft.add(kind, text, part_index=index)
            draft.take_unsaved()
            self.text_added(draft)

    def flush_due(self) -> None:
        """Send the Deltas that are due now, not in a later pass of the event loop."""
        if self._flush_timer is not None and self._flush_at <= asyncio.get_running_loop().time():
            self._flush()

    def show(self, message: Message, *, may_be_late: bool = False) -> None:
        """Take a version of a streaming message. `may_be_late`: the text that readers have may be newer."""
        draft = self.streaming(message.id)
        shown = draft.message(message.updated_at).parts if draft else ()
        growth = growth_of(shown, message.parts) if draft else None
        if growth is not None:
            for one in growth:
                self.add(message.id, one)
        elif not (draft and may_be_late and growth_of(message.parts, shown) is not None):
            self.begin_message(message)
            self.rejoin()

    # --- from the store ------------------------------------------------------------------------------------------

    async def refresh(self) -> bool:
        """Take what the store has: durable events, and the checkpoints of streaming messages. Return whether Runs are
        live."""
        _, head = await self.store.bounds(self.workspace_id)
        if head != self._looked_at:  # not each time: their prompts may have 64 MiB, and change only with the log
            live = await self.store.live_runs(self.workspace_id)
            self._active = [(run.session_id, run.run_id) for run in live if run.state == "active"]
            self._has_live_runs, self._looked_at = bool(live), head
        last = [
            message
            for session_id, run_id in self._active
            for message in await self.store.messages(session_id, None, 1, before="", run_id=run_id)
        ]
        streaming = {one.id: one for one in last if is_streaming(one)}
        passed = await self.store.read(self.workspace_id, self.head, PASSED_MAX) if head > self.head else []
        replaced = {entry.event.message_id for entry in passed if isinstance(entry.event, MessageChanged)}
        # No await from here on: readers see all of it at once.
        for message_id in list(self._drafts):
            if message_id not in streaming or message_id in replaced or len(passed) == PASSED_MAX:
                self.end_message(message_id)
        for message in streaming.values():
            self.show(message, may_be_late=True)
        self.skip(head)  # all readers join again
        return self._has_live_runs


class _MirroredLog(LogFrames):
    """The log up to the head of the feed."""

    def __init__(self, mirror: Mirror, store: Store) -> None:
        super().__init__(mirror.workspace_id, store, mirror.encoder, mirror.attendance)
        self._mirror = mirror

    async def bounds(self) -> tuple[int, int]:
        floor, head = await super().bounds()
        await self._mirror.wait_for(head)  # a client may have seen all of it at another node
        return floor, head

    async def entries(self, after: int, limit: int) -> list[LogEntry]:
        return [entry for entry in await super().entries(after, limit) if entry.position <= self._mirror.head]

    async def view(self, session: SessionRecord) -> SessionView:
        _, live = await self.store.lane(session.id)
        return replace(await super().view(session), is_busy=bool(live))


def is_streaming(message: Message) -> bool:
    """Return whether the message is an answer that may still grow."""
    is_text = all(isinstance(part, Text | Reasoning) for part in message.parts)
    return message.role == "assistant" and message.finish is None and is_text


def growth_of(before: tuple[Part, ...], after: tuple[Part, ...]) -> list[Growth] | None:
    """Return what was added at the end of a message; None if its other text is not the same."""
    growth: list[Growth] = []
    if len(after) < len(before):
        return None
    for index, part in enumerate(after):
        kind, text = _text_of(part)
        if index >= len(before):
            growth.append((index, kind, text))
            continue
        old_kind, old = _text_of(before[index])
        is_last = index == len(before) - 1
        if kind != old_kind or not text.startswith(old) or (len(text) > len(old) and not is_last):
            return None
        if len(text) > len(old):
            growth.append((index, kind, text[len(old) :]))
    return growth


def _text_of(part: Part) -> tuple[DraftKind, str]:
    if isinstance(part, Reasoning):
        return "reasoning", part.thinking
    assert isinstance(part, Text), "only text streams"
    return "text", part.text
