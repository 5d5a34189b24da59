"""What the screen shows, kept from the events of the wire: no terminal, no network, no clock.

Everything durable on the wire has a Position, and what is known of a thing is what the highest Position said of it. So
events may come twice, late, and in any order, as they do after a resume: the end is the same. What was read by request
counts as of the Position at which the request was made; what happened since comes as an event.

Deltas have no Position. They count only for a message whose text is known up to them: one that was created on this
stream, or that the server has sent whole since (it does so for each message that streams when a stream connects).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

import msgspec

from kedge.client.stream import StreamEvent
from kedge.wire import models as m

#: Asks that are over, remembered so that one that is told of late does not come back. Items, the oldest go first.
CLOSED_ASKS_MAX = 1_000
#: Runs that have ended, kept for the lines below their answers. Items, the oldest go first.
ENDED_RUNS_MAX = 20_000

T = TypeVar("T")

Ask = m.PermissionRequest | m.QuestionBatch


@dataclass(slots=True)
class Known(Generic[T]):
    """The newest that is known of something, and the Position that told it. None: it is gone."""

    body: T | None
    at: int


@dataclass(slots=True)
class Entry:
    """A message of an open conversation."""

    body: m.MessageBody
    #: Where it stands: those that were read come first, in their order; then each where it was first told of.
    place: tuple[int, int]
    #: The Position its body is of.
    at: int
    #: Whether its text is known so exactly that Deltas can be added.
    follows: bool
    #: Grows with each change: whoever has drawn an older one draws it anew.
    version: int = 0

    @property
    def is_finished(self) -> bool:
        return any(part.type == "finish" for part in self.body.parts)


@dataclass(frozen=True, slots=True)
class Closed:
    """An Ask that is over."""

    #: allow, allow_session, allow_always, deny, answered, cancelled; empty: it was withdrawn, since its Run stopped.
    answer: str
    #: The client that answered.
    by: str


@dataclass(slots=True)
class Changed:
    """What has to be drawn anew."""

    messages: set[str] = field(default_factory=set)
    #: Messages were added, removed or have another order.
    order: bool = False
    runs: bool = False
    sessions: bool = False
    asks: bool = False
    #: Events were missed: all that is shown has to be read again.
    gap: bool = False
    #: Runs that have just ended, with their ends.
    ended: list[m.RunComplete] = field(default_factory=list)
    #: An Ask that has just been put.
    asked: list[Ask] = field(default_factory=list)
    #: Runs changed places: the order of the queue has to be read again.
    moved: bool = False

    def add(self, other: Changed) -> None:
        self.messages |= other.messages
        self.ended += other.ended
        self.asked += other.asked
        for flag in ("order", "runs", "sessions", "asks", "gap", "moved"):
            setattr(self, flag, getattr(self, flag) or getattr(other, flag))


class Conversation:
    """The messages of a session that was opened."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        #: By call: what came of it, and which message says so.
        self.results: dict[str, m.PartBody] = {}
        #: By call: the message that makes it.
        self.calls: dict[str, str] = {}
        #: By call that has no result yet: what it is doing.
        self.progress: dict[str, str] = {}
        #: By Run: a request to its model that failed and is made again.
        self.retries: dict[str, m.AgentEvent] = {}
        self._gone: dict[str, int] = {}
        self._ordered: list[Entry] | None = None

    def ordered(self) -> list[Entry]:
        if self._ordered is None:
            self._ordered = sorted(self.entries.values(), key=lambda entry: entry.place)
        return self._ordered

    def load(self, bodies: Iterable[m.MessageBody], at: int) -> None:
        """All messages, read by a request made at this Position."""
        for number, body in enumerate(bodies):
            entry = self.entries.get(body.id)
            if entry is not None and entry.at > at:
                entry.place = (0, number)
            elif self._gone.get(body.id, -1) <= at:
                self._put(Entry(body, (0, number), at, follows=False))
        self._ordered = None

    def put(self, body: m.MessageBody, position: int | None, changed: Changed) -> None:
        entry = self.entries.get(body.id)
        if position is None:
            # The server tells how a streaming message stands: from here on Deltas can be added.
            if entry is not None and not entry.is_finished:
                entry.body, entry.follows = body, True
                self._touch(entry, changed)
            return
        if position <= self._gone.get(body.id, -1):
            return
        if entry is None:
            entry = Entry(body, (1, position), position, follows=True)
            self._put(entry)
            self._ordered, changed.order = None, True
        elif position <= entry.at:
            if entry.place > (1, position):
                entry.place, self._ordered, changed.order = (1, position), None, True
            return
        else:
            entry.body, entry.at, entry.follows = body, position, True
            self._put(entry)
        self._touch(entry, changed)

    def _put(self, entry: Entry) -> None:
        self.entries[entry.body.id] = entry
        for part in entry.body.parts:
            if part.type == "tool_call":
                self.calls[part.data["id"]] = entry.body.id
            elif part.type == "tool_result":
                self.results[part.data["tool_call_id"]] = part
                self.progress.pop(part.data["tool_call_id"], None)

    def _touch(self, entry: Entry, changed: Changed) -> None:
        entry.version += 1
        changed.messages.add(entry.body.id)
        for part in entry.body.parts:
            # The result of a call is drawn where the call is.
            if part.type == "tool_result":
                self._touch_call(part.data["tool_call_id"], changed)

    def _touch_call(self, call_id: str, changed: Changed) -> None:
        maker = self.entries.get(self.calls.get(call_id, ""))
        if maker is not None:
            maker.version += 1
            changed.messages.add(maker.body.id)

    def remove(self, message_id: str, position: int, changed: Changed) -> None:
        self._gone[message_id] = max(position, self._gone.get(message_id, -1))
        entry = self.entries.get(message_id)
        if entry is not None and entry.at < position:
            del self.entries[message_id]
            self._ordered, changed.order = None, True

    def add_delta(self, delta: m.DeltaBody, changed: Changed) -> None:
        entry = self.entries.get(delta.message_id)
        if entry is None or not entry.follows or entry.is_finished:
            return
        parts = entry.body.parts
        while len(parts) <= delta.part:
            kind, text = ("text", "text") if delta.kind == "text" else ("reasoning", "thinking")
            parts.append(m.PartBody(type=kind, data={text: ""}))
        part = parts[delta.part]
        name = "text" if part.type == "text" else "thinking"
        part.data[name] = part.data.get(name, "") + delta.text
        self.retries.pop(entry.body.run_id, None)
        self._touch(entry, changed)

    def tell_progress(self, told: m.ProgressBody, changed: Changed) -> None:
        if told.tool_call_id not in self.results:
            self.progress[told.tool_call_id] = told.text
            self._touch_call(told.tool_call_id, changed)


class View:
    """All that is known: the sessions of the workspace, their Runs, what waits for people, the open conversations."""

    def __init__(self) -> None:
        self.conversations: dict[str, Conversation] = {}
        self._sessions: dict[str, Known[m.SessionBody]] = {}
        self._runs: dict[str, Known[m.RunBody]] = {}
        self._asks: dict[str, Ask] = {}
        self.closed_asks: dict[str, Closed] = {}

    # --- what was read by request ---------------------------------------------------------------------------------

    def load_sessions(self, bodies: Iterable[m.SessionBody], at: int) -> None:
        for body in bodies:
            self._know(self._sessions, body.id, body, at, same=True)

    def load_runs(self, bodies: Iterable[m.RunBody], at: int) -> None:
        for body in bodies:
            self._know(self._runs, body.run_id, body, at, same=True)

    def load_asks(self, asks: Iterable[Ask]) -> None:
        """All that wait now. One that is not among them any more is over."""
        pending = {ask.id: ask for ask in asks if ask.id not in self.closed_asks}
        for ask_id in self._asks.keys() - pending.keys():
            self._close(ask_id, Closed("", ""))
        self._asks = pending

    def load_conversation(self, session_id: str, bodies: Iterable[m.MessageBody], at: int) -> Conversation:
        conversation = self.conversations.setdefault(session_id, Conversation())
        conversation.load(bodies, at)
        return conversation

    def forget_all(self) -> None:
        """Positions known so far mean nothing any more: events were missed, or the log is another one."""
        self.__init__()  # type: ignore[misc]

    # --- events ---------------------------------------------------------------------------------------------------

    def apply(self, event: StreamEvent) -> Changed:
        changed = Changed()
        payload, position = event.payload, event.position
        match event.type:
            case "gap":
                changed.gap = True
            case "message":
                self._apply_message(event, changed)
            case "delta":
                delta = msgspec.convert(payload, m.DeltaBody)
                for conversation in self.conversations.values():
                    conversation.add_delta(delta, changed)
            case "session" if position is not None:
                gone = event.change == "deleted"
                body = None if gone else msgspec.convert(payload, m.SessionBody)
                changed.sessions = self._know(self._sessions, payload["id"], body, position)
            case "run" if position is not None:
                gone = event.change == "deleted"
                run = None if gone else msgspec.convert(payload, m.RunBody)
                self._apply_run(payload["run_id"], run, position, changed)
            case "run_complete":
                changed.ended.append(msgspec.convert(payload, m.RunComplete))
            case "agent_event" if payload.get("type") == "retry":
                self._apply_retry(msgspec.convert(payload, m.AgentEvent), changed)
            case "progress":
                told = msgspec.convert(payload, m.ProgressBody)
                if open_one := self.conversations.get(told.session_id):
                    open_one.tell_progress(told, changed)
            case "permission_request" | "question_batch_request":
                self._apply_ask(event.type, event.change, payload, changed)
            case "permission_notification" | "question_batch_notification":
                changed.asks = self._close(payload["id"], _how(payload))
            case _:
                pass
        return changed

    def _apply_message(self, event: StreamEvent, changed: Changed) -> None:
        conversation = self.conversations.get(event.payload.get("session_id", ""))
        if conversation is None:
            return
        if event.change != "deleted":
            conversation.put(msgspec.convert(event.payload, m.MessageBody), event.position, changed)
        elif event.position is not None:
            conversation.remove(event.payload["id"], event.position, changed)

    def _apply_run(self, run_id: str, run: m.RunBody | None, position: int, changed: Changed) -> None:
        before = self._runs.get(run_id)
        if not self._know(self._runs, run_id, run, position):
            return
        changed.runs = True
        if before is not None and before.body is not None and run is not None:
            changed.moved = before.body.state == run.state == "queued" and before.body.place != run.place
        if run is not None and run.state == "ended":
            if conversation := self.conversations.get(run.session_id):
                conversation.retries.pop(run_id, None)
            self._forget_old_runs()

    def _apply_retry(self, told: m.AgentEvent, changed: Changed) -> None:
        known = self._runs.get(told.run_id)
        is_over = known is not None and known.body is not None and known.body.state == "ended"
        if (conversation := self.conversations.get(told.session_id)) and not is_over:
            conversation.retries[told.run_id] = told
            changed.runs = True

    def _apply_ask(self, kind: str, change: str, payload: dict[str, Any], changed: Changed) -> None:
        if change == "deleted":
            changed.asks = self._close(payload["id"], Closed("", ""))
            return
        is_approval = kind == "permission_request"
        ask: Ask = msgspec.convert(payload, m.PermissionRequest if is_approval else m.QuestionBatch)  # type: ignore[assignment]
        if ask.id not in self.closed_asks and ask.id not in self._asks:
            self._asks[ask.id] = ask
            changed.asks = True
            changed.asked.append(ask)

    def _close(self, ask_id: str, how: Closed) -> bool:
        """Whether it is news that this Ask is over."""
        news = ask_id not in self.closed_asks
        self.closed_asks.setdefault(ask_id, how)
        while len(self.closed_asks) > CLOSED_ASKS_MAX:
            del self.closed_asks[next(iter(self.closed_asks))]
        self._asks.pop(ask_id, None)
        return news

    @staticmethod
    def _know(known: dict[str, Known[T]], key: str, body: T | None, at: int, *, same: bool = False) -> bool:
        """Whether it is news. `same`: also of the very Position that told the last."""
        before = known.get(key)
        if before is not None and (before.at > at or (before.at == at and not same)):
            return False
        known[key] = Known(body, at)
        return True

    def _forget_old_runs(self) -> None:
        if len(self._runs) > 2 * ENDED_RUNS_MAX:
            ended = [run_id for run_id, known in self._runs.items() if known.body and known.body.state == "ended"]
            for run_id in ended[:-ENDED_RUNS_MAX]:
                del self._runs[run_id]

    # --- what is shown ---------------------------------------------------------------------------------------------

    def session(self, session_id: str) -> m.SessionBody | None:
        known = self._sessions.get(session_id)
        return known.body if known else None

    def sessions(self) -> list[m.SessionBody]:
        """The newest first; those of agents, which serve another one, are not among them."""
        there = [known.body for known in self._sessions.values() if known.body is not None]
        own = [session for session in there if not self.is_of_agent(session.id)]
        return sorted(own, key=lambda session: (session.updated_at, session.id), reverse=True)

    def is_of_agent(self, session_id: str) -> bool:
        return any(
            known.body is not None and known.body.session_id == session_id and known.body.parent_run_id
            for known in self._runs.values()
        )

    def run(self, run_id: str) -> m.RunBody | None:
        known = self._runs.get(run_id)
        return known.body if known else None

    def active(self, session_id: str) -> m.RunBody | None:
        """The Run that is at work, and no Run folded into it."""
        runs = self._of(session_id, "active")
        return next((run for run in runs if not run.folded_into), None)

    def queue(self, session_id: str) -> list[m.RunBody]:
        return sorted(self._of(session_id, "queued"), key=lambda run: (run.place, run.seq))

    def _of(self, session_id: str, state: Literal["queued", "active"]) -> list[m.RunBody]:
        bodies = [known.body for known in self._runs.values() if known.body is not None]
        return [run for run in bodies if run.session_id == session_id and run.state == state]

    def asks(self) -> list[Ask]:
        """All that wait for people in this workspace, the longest waiting first."""
        return sorted(self._asks.values(), key=lambda ask: (ask.asked_at, ask.id))


def _how(payload: dict[str, Any]) -> Closed:
    if payload.get("withdrawn"):
        return Closed("", "")
    answer = payload.get("answer") or ("answered" if payload.get("answered") else "cancelled")
    return Closed(str(answer), str(payload.get("answered_by") or ""))
