"""What the screen shows, kept from the events of the wire: no terminal, no network, no clock.

Everything durable on the wire has a Position, and what is known of a thing is what the highest Position said of it. So
events may come twice, late, and in any order, as they do after a resume: the end is the same. What was read by request
counts as of the Position at which the request was made; what happened since comes as an event.

Deltas have no Position. They count only for a message whose text is known up to them: one that was created on this
stream, or that the server has sent whole since (it does so for each message that streams when a stream connects).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

import msgspec
from msgspec import Struct

from kedge.client.event_stream import StreamEvent
from kedge.client.view.changed_files import ChangedFiles
from kedge.client.view.conversation import Ask, Conversation, ViewChanges
from kedge.wire import models as m

#: Asks that are over, remembered so that one that is told of late does not come back. Items, the oldest go first.
CLOSED_ASKS_MAX = 1_000
#: Runs that have ended, kept for the lines below their answers. Items, the oldest go first.
ENDED_RUNS_MAX = 20_000

T = TypeVar("T")


@dataclass(slots=True)
class Latest(Generic[T]):
    """The newest that is known of something, and the Position that told it. None: it is gone."""

    body: T | None
    at: int


class ClosedAsk(Struct, frozen=True):
    """An Ask that is over."""

    #: allow, allow_session, allow_always, deny, answered, cancelled; empty: it was withdrawn, since its Run stopped.
    answer: str
    #: The client that answered.
    by: str


class WorkspaceView:
    """All that is known: the sessions of the workspace, their Runs, what waits for people, the open conversations."""

    def __init__(self) -> None:
        self.conversations: dict[str, Conversation] = {}
        self._sessions: dict[str, Latest[m.SessionBody]] = {}
        self._runs: dict[str, Latest[m.RunBody]] = {}
        #: Of the Runs: those that have not ended, by session; agents' by the Run they serve; and the agents' sessions.
        self._live: dict[str, dict[str, m.RunBody]] = {}
        self._children: dict[str, dict[str, None]] = {}
        self._agents: set[str] = set()
        #: By Run of an agent that is at work: what it is doing.
        self._doing: dict[str, str] = {}
        #: Runs whose ends were told.
        self._reported: dict[str, None] = {}
        self._asks: dict[str, Ask] = {}
        self.closed_asks: dict[str, ClosedAsk] = {}
        self.files = ChangedFiles()
        #: Approvals are skipped in this workspace.
        self.skip = False

    # --- what was read by request ---------------------------------------------------------------------------------

    def load_sessions(self, bodies: Iterable[m.SessionBody], at: int) -> None:
        for body in bodies:
            self._know(self._sessions, body.id, body, at, same=True)

    def load_runs(self, bodies: Iterable[m.RunBody], at: int) -> None:
        for body in bodies:
            self._know_run(body.run_id, body, at, same=True)

    def load_asks(self, asks: Iterable[Ask]) -> None:
        """All that wait now. One that is not among them any more is over."""
        pending = {ask.id: ask for ask in asks if ask.id not in self.closed_asks}
        for ask_id in self._asks.keys() - pending.keys():
            self._close(ask_id, ClosedAsk("", ""), ViewChanges())
        self._asks = pending

    def load_conversation(self, session_id: str, bodies: Iterable[m.MessageBody], at: int) -> Conversation:
        conversation = self.conversations.setdefault(session_id, Conversation())
        conversation.load(bodies, at)
        return conversation

    def forget_all(self) -> None:
        """Positions known so far mean nothing any more: events were missed, or the log is another one."""
        self.__init__()  # type: ignore[misc]

    # --- events ---------------------------------------------------------------------------------------------------

    def apply(self, event: StreamEvent) -> ViewChanges:
        changed = ViewChanges()
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
                self._apply_end(msgspec.convert(payload, m.RunComplete), changed)
            case "agent_event" if payload.get("type") == "retry" and position is not None:
                self._apply_retry(msgspec.convert(payload, m.AgentEvent), position, changed)
            case "progress":
                self._apply_progress(msgspec.convert(payload, m.ProgressBody), changed)
            case "presence":
                self._apply_presence(msgspec.convert(payload, m.PresenceBody), changed)
            case "permission_skip":
                self.skip = bool(payload.get("skip"))
                changed.sessions = True
            case "file" if position is not None:
                self.files.tell(msgspec.convert(payload, m.FileEvent), event.change, position)
            case "permission_request" | "question_batch_request":
                self._apply_ask(event.type, event.change, payload, changed)
            case "permission_notification" | "question_batch_notification":
                self._close(payload["id"], _how(payload), changed)
            case _:
                pass
        return changed

    def _apply_message(self, event: StreamEvent, changed: ViewChanges) -> None:
        conversation = self.conversations.get(event.payload.get("session_id", ""))
        if conversation is None:
            return
        if event.change != "deleted":
            conversation.put(msgspec.convert(event.payload, m.MessageBody), event.position, changed)
        elif event.position is not None:
            conversation.remove(event.payload["id"], event.position, changed)

    def _apply_run(self, run_id: str, run: m.RunBody | None, position: int, changed: ViewChanges) -> None:
        before = self.run(run_id)
        if not self._know_run(run_id, run, position):
            return
        changed.runs = True
        if before is not None and run is not None:
            changed.moved = before.state == run.state == "queued" and before.queue_order != run.queue_order
            # Whoever waited to join it now waits for a start, and no event says so.
            changed.moved |= run.state == "ended" and any(other.folds for other in self.queue(run.session_id))
        for conversation in self.conversations.values():
            conversation.tell_of(run_id, position, changed)
            if run is None or run.state == "ended":
                conversation.touch_open_calls(run_id, changed)
            if run is not None and run.parent_run_id:
                conversation.touch_open_calls(run.parent_run_id, changed)

    def _apply_end(self, told: m.RunComplete, changed: ViewChanges) -> None:
        if told.run_id not in self._reported:
            changed.ended.append(told)
            self._reported[told.run_id] = None
            _keep_newest(self._reported, ENDED_RUNS_MAX)

    def _apply_retry(self, told: m.AgentEvent, position: int, changed: ViewChanges) -> None:
        run = self.run(told.run_id)
        if (conversation := self.conversations.get(told.session_id)) and (run is None or run.state != "ended"):
            conversation.tell_retry(told, position, changed)

    def _apply_progress(self, told: m.ProgressBody, changed: ViewChanges) -> None:
        if conversation := self.conversations.get(told.session_id):
            conversation.tell_progress(told, changed)
        child = self._live.get(told.session_id, {}).get(told.run_id)
        if child is not None and child.parent_run_id:
            self._doing[told.run_id] = told.text
            for conversation in self.conversations.values():
                conversation.touch_open_calls(child.parent_run_id, changed)

    def _apply_presence(self, told: m.PresenceBody, changed: ViewChanges) -> None:
        known = self._sessions.get(told.session_id)
        if known is not None and known.body is not None:
            known.body = msgspec.structs.replace(known.body, attached_clients=told.attached_clients)
            changed.sessions = True

    def _apply_ask(self, kind: str, change: str, payload: dict[str, Any], changed: ViewChanges) -> None:
        if change == "deleted":
            self._close(payload["id"], ClosedAsk("", ""), changed)
            return
        is_approval = kind == "permission_request"
        ask: Ask = msgspec.convert(payload, m.PermissionRequest if is_approval else m.QuestionBatch)  # type: ignore[assignment]
        if ask.id not in self.closed_asks and ask.id not in self._asks:
            self._asks[ask.id] = ask
            self._touch_ask(ask, changed)
            changed.asked.append(ask)

    def _close(self, ask_id: str, how: ClosedAsk, changed: ViewChanges) -> None:
        before = self.closed_asks.get(ask_id)
        # That it was answered, and by whom, says more than that it is over.
        if before is None or not before.answer:
            self.closed_asks[ask_id] = how
            _keep_newest(self.closed_asks, CLOSED_ASKS_MAX)
        changed.asks = changed.asks or before is None
        if ask := self._asks.pop(ask_id, None):
            self._touch_ask(ask, changed)

    def _touch_ask(self, ask: Ask, changed: ViewChanges) -> None:
        changed.asks = True
        if conversation := self.conversations.get(ask.session_id):
            conversation.touch_call(ask.tool_call_id, ask.run_id, changed)

    def _know_run(self, run_id: str, run: m.RunBody | None, at: int, *, same: bool = False) -> bool:
        before = self.run(run_id)
        if not self._know(self._runs, run_id, run, at, same=same):
            return False
        if before is not None:
            self._live.get(before.session_id, {}).pop(run_id, None)
        if run is not None and run.state != "ended":
            self._live.setdefault(run.session_id, {})[run_id] = run
        else:
            self._doing.pop(run_id, None)
            self._forget_old_runs()
        if run is not None and run.parent_run_id:
            self._agents.add(run.session_id)
            self._children.setdefault(run.parent_run_id, {})[run_id] = None
        return True

    @staticmethod
    def _know(known: dict[str, Latest[T]], key: str, body: T | None, at: int, *, same: bool = False) -> bool:
        """Whether it is news. `same`: also of the very Position that told the last."""
        before = known.get(key)
        if before is not None and (before.at > at or (before.at == at and not same)):
            return False
        known[key] = Latest(body, at)
        return True

    def _forget_old_runs(self) -> None:
        if len(self._runs) > 2 * ENDED_RUNS_MAX:
            over = [run_id for run_id, known in self._runs.items() if known.body is None or known.body.state == "ended"]
            for run_id in over[:-ENDED_RUNS_MAX]:
                del self._runs[run_id]
                self._children.pop(run_id, None)

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
        known = self._sessions.get(session_id)
        marked = known is not None and known.body is not None and bool(known.body.parent_run_id)
        return marked or session_id in self._agents

    def run(self, run_id: str) -> m.RunBody | None:
        known = self._runs.get(run_id)
        return known.body if known else None

    def active(self, session_id: str) -> m.RunBody | None:
        """The Run that is at work, and no Run folded into it. Until the end of one is told there may seem to be two."""
        runs = [run for run in self._of(session_id, "active") if not run.folded_into]
        return max(runs, key=lambda run: run.seq, default=None)

    def queue(self, session_id: str) -> list[m.RunBody]:
        return sorted(self._of(session_id, "queued"), key=lambda run: (run.queue_order, run.seq))

    def _of(self, session_id: str, state: Literal["queued", "active"]) -> list[m.RunBody]:
        return [run for run in self._live.get(session_id, {}).values() if run.state == state]

    def children(self, run_id: str) -> list[m.RunBody]:
        """The Runs of its agents that are known, in the order of their acceptance."""
        runs = [self.run(child) for child in self._children.get(run_id, ())]
        return sorted((run for run in runs if run is not None), key=lambda run: (run.accepted_at, run.run_id))

    def doing(self, run_id: str) -> str:
        """What the Run of an agent is doing right now; empty: that is not known."""
        return self._doing.get(run_id, "")

    def asks(self) -> list[Ask]:
        """All that wait for people in this workspace, the longest waiting first."""
        return sorted(self._asks.values(), key=lambda ask: (ask.asked_at, ask.id))

    def waits(self, run_id: str, call_id: str) -> bool:
        """Whether this call waits for people."""
        return any(ask.run_id == run_id and ask.tool_call_id == call_id for ask in self._asks.values())


def _keep_newest(known: dict[str, Any], items_max: int) -> None:
    while len(known) > items_max:
        del known[next(iter(known))]


def _how(payload: dict[str, Any]) -> ClosedAsk:
    if payload.get("withdrawn"):
        return ClosedAsk("", "")
    answer = payload.get("answer") or ("answered" if payload.get("answered") else "cancelled")
    return ClosedAsk(str(answer), str(payload.get("answered_by") or ""))
