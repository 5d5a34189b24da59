"""The state of a workspace as a client sees it, reduced from wire events: no terminal, no network, no clock.

Every durable event has a Position. For each object the event with the highest Position counts. Events may therefore be
repeated, delayed and reordered, as they are after a resume, with the same result. A response counts as of the Position
at which its request was made; later changes arrive as events.

Deltas have no Position. They are applied only to a message whose text is complete up to them: one that was created on
this stream, or that the server has since sent in full (it does so for each streaming message when a stream connects).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

import msgspec
from msgspec import Struct

from kedge.client.event_stream import StreamEvent
from kedge.client.view.conversation import Ask, Conversation, ViewChanges
from kedge.wire import models as m
from kedge.wire.extension_models import ExtensionBody
from kedge.wire.job_models import JobOutputEvent

#: Closed Asks, kept so that a late request event does not reopen one. Items, the oldest are dropped first.
CLOSED_ASKS_MAX = 1_000
#: Ended Runs, kept for the lines below their answers. Items, the oldest are dropped first.
ENDED_RUNS_MAX = 20_000
#: Jobs whose last lines are kept: those that a server runs at most. Items, the oldest are dropped first.
JOB_OUTPUTS_MAX = 64

T = TypeVar("T")


@dataclass(slots=True)
class Latest(Generic[T]):
    """The newest state of an object and its Position. None: it was deleted."""

    body: T | None
    at: int


class ClosedAsk(Struct, frozen=True):
    """The answer of an Ask that is no longer pending."""

    #: allow, allow_session, allow_always, deny, answered, cancelled; empty: withdrawn, because its Run stopped.
    answer: str
    #: The client that answered.
    by: str
    #: The user who answered. Empty: the owner, or no user.
    author: str = ""


class WorkspaceView:
    """The sessions of a workspace, their Runs, the pending Asks and the open conversations."""

    def __init__(self) -> None:
        #: Why the configuration files are not in effect; empty: they are. Each new stream sends it again.
        self.config_problem = ""
        #: The states of extensions that have changed since the stream began, by kind and name. At most as many as the
        #: workspace has: the server bounds them.
        self.extensions: dict[tuple[str, str], ExtensionBody] = {}
        self.reset()

    def reset(self) -> None:
        """Drop everything, because events were missed: known Positions cannot be compared with new ones."""
        self.conversations: dict[str, Conversation] = {}
        self._sessions: dict[str, Latest[m.SessionBody]] = {}
        self._runs: dict[str, Latest[m.RunBody]] = {}
        #: Runs that have not ended, by session; child Runs by parent Run; sessions of child Runs.
        self._live: dict[str, dict[str, m.RunBody]] = {}
        self._children: dict[str, dict[str, None]] = {}
        self._child_sessions: set[str] = set()
        #: The current progress of active child Runs.
        self._progress: dict[str, str] = {}
        #: Runs whose end was reported.
        self._reported: dict[str, None] = {}
        self._asks: dict[str, Ask] = {}
        self.closed_asks: dict[str, ClosedAsk] = {}
        #: By session: the files that its Runs changed.
        self._files: dict[str, Latest[m.ChangedFiles]] = {}
        #: By id: the end of the output of running jobs.
        self._job_output: dict[str, str] = {}

    # --- responses to requests ---------------------------------------------------------------------------------

    def load_sessions(self, bodies: Iterable[m.SessionBody], at: int) -> None:
        for body in bodies:
            self._store(self._sessions, body.id, body, at, same=True)

    def load_runs(self, bodies: Iterable[m.RunBody], at: int) -> None:
        for body in bodies:
            self._store_run(body.run_id, body, at, same=True)

    def load_asks(self, asks: Iterable[Ask]) -> None:
        """Replace the pending Asks. Those that are missing are closed."""
        pending = {ask.id: ask for ask in asks if ask.id not in self.closed_asks}
        for ask_id in self._asks.keys() - pending.keys():
            self._close(ask_id, ClosedAsk("", ""), ViewChanges())
        self._asks = pending

    def load_files(self, session_id: str, files: m.ChangedFiles, at: int) -> None:
        self._store(self._files, session_id, files, at, same=True)

    def load_conversation(self, session_id: str, bodies: Iterable[m.MessageBody], at: int) -> Conversation:
        conversation = self.conversations.setdefault(session_id, Conversation())
        conversation.load(bodies, at)
        return conversation

    # --- events ---------------------------------------------------------------------------------------------------

    def apply(self, event: StreamEvent) -> ViewChanges:
        changes = ViewChanges()
        payload, position = event.payload, event.position
        match event.type:
            case "gap":
                changes.gap = True
            case "message":
                self._apply_message(event, changes)
            case "delta":
                delta = msgspec.convert(payload, m.DeltaBody)
                for conversation in self.conversations.values():
                    conversation.add_delta(delta, changes)
            case "session" if position is not None:
                gone = event.change == "deleted"
                body = None if gone else msgspec.convert(payload, m.SessionBody)
                changes.sessions = self._store(self._sessions, payload["id"], body, position)
            case "rewind" if position is not None:
                if rewound := self.conversations.get(payload["session_id"]):
                    rewound.cut(payload["message_id"], position, changes)
            case "run" if position is not None:
                gone = event.change == "deleted"
                run = None if gone else msgspec.convert(payload, m.RunBody)
                self._apply_run(payload["run_id"], run, position, changes)
            case "run_complete":
                self._apply_end(msgspec.convert(payload, m.RunComplete), changes)
            case "agent_event" if payload.get("type") == "retry":
                self._apply_retry(msgspec.convert(payload, m.AgentEvent), position, changes)
            case "progress":
                self._apply_progress(msgspec.convert(payload, m.ProgressBody), changes)
            case "config_problem":
                self.config_problem = str(payload.get("problem", ""))
                changes.sessions = True
            case "extension":
                extension = msgspec.convert(payload, ExtensionBody)
                self.extensions[extension.kind, extension.name] = extension
                changes.sessions = True
            case "job_output":
                self._apply_job_output(msgspec.convert(payload, JobOutputEvent), changes)
            case "presence":
                self._apply_presence(msgspec.convert(payload, m.PresenceBody), changes)
            case "file":
                changes.files.add(payload.get("session_id", ""))
            case "permission_request" | "question_batch_request":
                self._apply_ask(event.type, event.change, payload, changes)
            case "permission_notification" | "question_batch_notification":
                self._close(payload["id"], _closed(payload), changes)
            case _:
                pass
        return changes

    def _apply_message(self, event: StreamEvent, changes: ViewChanges) -> None:
        conversation = self.conversations.get(event.payload.get("session_id", ""))
        if conversation is None:
            return
        if event.change != "deleted":
            conversation.put(msgspec.convert(event.payload, m.MessageBody), event.position, changes)
        elif event.position is not None:
            conversation.remove(event.payload["id"], event.position, changes)

    def _apply_run(self, run_id: str, run: m.RunBody | None, position: int, changes: ViewChanges) -> None:
        before = self.run(run_id)
        if not self._store_run(run_id, run, position):
            return
        changes.runs = True
        if before is not None and run is not None:
            changes.moved = before.state == run.state == "queued" and before.queue_order != run.queue_order
            # Runs that waited to be folded into it now wait to start. No event reports that.
            changes.moved |= run.state == "ended" and any(other.folds for other in self.queue(run.session_id))
        elif run is not None and run.state == "queued":
            # Queued Runs that it has overtaken now have other numbers. No event reports that, either.
            queue = self.queue(run.session_id)
            changes.moved = any(other.queue_order >= run.queue_order for other in queue if other.run_id != run_id)
        for conversation in self.conversations.values():
            conversation.advance_run(run_id, position, changes)
            if run is None or run.state == "ended":
                conversation.touch_open_calls(run_id, changes)
            if run is not None and _users(run) != _users(before):
                conversation.touch_run(run_id, changes)
            if run is not None and run.parent_run_id:
                conversation.touch_open_calls(run.parent_run_id, changes)

    def _apply_end(self, complete: m.RunComplete, changes: ViewChanges) -> None:
        if complete.run_id not in self._reported:
            changes.ended.append(complete)
            self._reported[complete.run_id] = None
            _keep_newest(self._reported, ENDED_RUNS_MAX)

    def _apply_retry(self, retry: m.AgentEvent, position: int | None, changes: ViewChanges) -> None:
        run = self.run(retry.run_id)
        if (conversation := self.conversations.get(retry.session_id)) and (run is None or run.state != "ended"):
            conversation.set_retry(retry, position, changes)

    def _apply_progress(self, progress: m.ProgressBody, changes: ViewChanges) -> None:
        if conversation := self.conversations.get(progress.session_id):
            conversation.set_progress(progress, changes)
        child = self._live.get(progress.session_id, {}).get(progress.run_id)
        if child is not None and child.parent_run_id:
            self._progress[progress.run_id] = progress.text
            for conversation in self.conversations.values():
                conversation.touch_open_calls(child.parent_run_id, changes)

    def _apply_job_output(self, output: JobOutputEvent, changes: ViewChanges) -> None:
        self._job_output.pop(output.id, None)
        self._job_output[output.id] = output.text
        _keep_newest(self._job_output, JOB_OUTPUTS_MAX)
        changes.sessions = True

    def _apply_presence(self, presence: m.PresenceBody, changes: ViewChanges) -> None:
        known = self._sessions.get(presence.session_id)
        if known is not None and known.body is not None:
            known.body = msgspec.structs.replace(known.body, attached_clients=presence.attached_clients)
            changes.sessions = True

    def _apply_ask(self, kind: str, change: str, payload: dict[str, Any], changes: ViewChanges) -> None:
        if change == "deleted":
            self._close(payload["id"], ClosedAsk("", ""), changes)
            return
        is_approval = kind == "permission_request"
        ask: Ask = msgspec.convert(payload, m.PermissionRequest if is_approval else m.QuestionBatch)  # type: ignore[assignment]
        if ask.id not in self.closed_asks and ask.id not in self._asks:
            self._asks[ask.id] = ask
            self._touch_ask(ask, changes)
            changes.asked.append(ask)

    def _close(self, ask_id: str, closed: ClosedAsk, changes: ViewChanges) -> None:
        before = self.closed_asks.get(ask_id)
        # An answer is kept when a withdrawal follows.
        if before is None or not before.answer:
            self.closed_asks[ask_id] = closed
            _keep_newest(self.closed_asks, CLOSED_ASKS_MAX)
        changes.asks = changes.asks or before is None
        if ask := self._asks.pop(ask_id, None):
            self._touch_ask(ask, changes)

    def _touch_ask(self, ask: Ask, changes: ViewChanges) -> None:
        changes.asks = True
        if conversation := self.conversations.get(ask.session_id):
            conversation.touch_call(ask.tool_call_id, ask.run_id, changes)

    def _store_run(self, run_id: str, run: m.RunBody | None, at: int, *, same: bool = False) -> bool:
        before = self.run(run_id)
        if not self._store(self._runs, run_id, run, at, same=same):
            return False
        if before is not None:
            self._live.get(before.session_id, {}).pop(run_id, None)
        if run is not None and run.state != "ended":
            self._live.setdefault(run.session_id, {})[run_id] = run
        else:
            self._progress.pop(run_id, None)
            self._forget_old_runs()
        if run is not None and run.parent_run_id:
            self._child_sessions.add(run.session_id)
            self._children.setdefault(run.parent_run_id, {})[run_id] = None
        return True

    @staticmethod
    def _store(known: dict[str, Latest[T]], key: str, body: T | None, at: int, *, same: bool = False) -> bool:
        """Store a newer state; return whether it is newer. `same`: accept the same Position."""
        before = known.get(key)
        if before is not None and (before.at > at or (before.at == at and not same)):
            return False
        known[key] = Latest(body, at)
        return True

    def _forget_old_runs(self) -> None:
        if len(self._runs) > 2 * ENDED_RUNS_MAX:
            ended = [
                run_id for run_id, known in self._runs.items() if known.body is None or known.body.state == "ended"
            ]
            for run_id in ended[:-ENDED_RUNS_MAX]:
                del self._runs[run_id]
                self._children.pop(run_id, None)

    # --- queries ---------------------------------------------------------------------------------------------

    def session(self, session_id: str) -> m.SessionBody | None:
        known = self._sessions.get(session_id)
        return known.body if known else None

    def sessions(self) -> list[m.SessionBody]:
        """Return the sessions of the user, the newest first, without sessions of child Runs."""
        sessions = [known.body for known in self._sessions.values() if known.body is not None]
        own = [session for session in sessions if not self.is_child(session.id)]
        return sorted(own, key=lambda session: (session.updated_at, session.id), reverse=True)

    def is_child(self, session_id: str) -> bool:
        known = self._sessions.get(session_id)
        marked = known is not None and known.body is not None and bool(known.body.parent_run_id)
        return marked or session_id in self._child_sessions

    def run(self, run_id: str) -> m.RunBody | None:
        known = self._runs.get(run_id)
        return known.body if known else None

    def active(self, session_id: str) -> m.RunBody | None:
        """Return the active Run. Of two, the later one: the end of the first has not been received yet."""
        runs = [run for run in self._of(session_id, "active") if not run.folded_into]
        return max(runs, key=lambda run: run.seq, default=None)

    def queue(self, session_id: str) -> list[m.RunBody]:
        return sorted(self._of(session_id, "queued"), key=lambda run: (run.queue_order, run.seq))

    def _of(self, session_id: str, state: Literal["queued", "active"]) -> list[m.RunBody]:
        return [run for run in self._live.get(session_id, {}).values() if run.state == state]

    def children(self, run_id: str) -> list[m.RunBody]:
        """Return the known child Runs, in the order of acceptance."""
        runs = [self.run(child) for child in self._children.get(run_id, ())]
        return sorted((run for run in runs if run is not None), key=lambda run: (run.accepted_at, run.run_id))

    def progress_of(self, run_id: str) -> str:
        """Return the current progress of a child Run; empty if unknown."""
        return self._progress.get(run_id, "")

    def files(self, session_id: str) -> m.ChangedFiles:
        """Return the files that the Runs of a session changed."""
        known = self._files.get(session_id)
        return known.body if known and known.body else m.ChangedFiles(count=0, files=[])

    def job_output(self, job_id: str) -> str:
        """Return the end of the output of a job, as it arrived on the stream; empty: none did."""
        return self._job_output.get(job_id, "")

    def asks(self) -> list[Ask]:
        """Return the pending Asks of this workspace, the oldest first."""
        return sorted(self._asks.values(), key=lambda ask: (ask.asked_at, ask.id))

    def is_waiting(self, run_id: str, call_id: str) -> bool:
        """Return whether this call has a pending Ask."""
        return any(ask.run_id == run_id and ask.tool_call_id == call_id for ask in self._asks.values())


def _users(run: m.RunBody | None) -> tuple[str, str]:
    """Return the author and the user who cancelled, whose names are shown with the messages of the Run."""
    return (run.author or "", run.cancelled_by or "") if run is not None else ("", "")


def _keep_newest(known: dict[str, Any], items_max: int) -> None:
    while len(known) > items_max:
        del known[next(iter(known))]


def _closed(payload: dict[str, Any]) -> ClosedAsk:
    if payload.get("withdrawn"):
        return ClosedAsk("", "")
    answer = payload.get("answer") or ("answered" if payload.get("answered") else "cancelled")
    return ClosedAsk(str(answer), str(payload.get("answered_by") or ""), str(payload.get("author") or ""))
