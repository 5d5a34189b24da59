"""SSE frames: the table from events to frames, and the transient frames. The module is the engine's `Encoder`.

A transient frame has no Position: it is not stored, and a reader may miss it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec import UNSET

from kedge.core.approvals import Ask
from kedge.core.events import (
    Asked,
    AskSettled,
    CancelMarked,
    ErrorReported,
    Event,
    FileChanged,
    FoldMarked,
    MessageChanged,
    RetryReported,
    RunAccepted,
    RunCancelMarked,
    RunEdited,
    RunEnded,
    RunFolded,
    RunMoved,
    RunReported,
    RunResumed,
    RunStarted,
    SessionChanged,
    SessionRewound,
    StepStarted,
)
from kedge.core.extensions import ExtensionState
from kedge.core.records import RecordKind, Records, RunRecord, SessionView, Usage
from kedge.core.transcript import Message, Reasoning, Text
from kedge.wire import models as m
from kedge.wire.codec import ask_body, message_body, part_body, run_body, session_body, usage_body
from kedge.wire.event_models import ConfigProblem, FileEvent, GapBody
from kedge.wire.extension_models import extension_body
from kedge.wire.job_models import JobOutputEvent
from kedge.wire.reversal_models import RewindEvent

_encode = msgspec.json.Encoder().encode

HEARTBEAT = b": heartbeat\n\n"

#: `type` of an envelope on the stream.
EventType = Literal[
    "message",
    "session",
    "rewind",
    "run",
    "run_complete",
    "agent_event",
    "delta",
    "gap",
    "file",
    "progress",
    "presence",
    "job_output",
    "config_problem",
    "extension",
    "permission_request",
    "permission_notification",
    "question_batch_request",
    "question_batch_notification",
]


def frame(kind: EventType, change: str, payload: object, position: int | None = None) -> bytes:
    """Return one SSE frame. JSON has no raw line break, so no text in the payload can forge another frame."""
    body = b'data: {"type":"%b","payload":{"type":"%b","payload":%b}}\n\n' % (
        kind.encode(),
        change.encode(),
        _encode(payload),
    )
    return body if position is None else b"id: %d\n%b" % (position, body)


# --- events ----------------------------------------------------------------------------------------------------------

#: `type` of the envelope, `type` of the change, payload.
Shown = tuple[EventType, str, object]


def _run_changed(event: Any, run: RunRecord | None, session_id: str) -> Shown:
    if run is None:
        return "run", "deleted", {"run_id": event.run_id, "session_id": session_id}
    return "run", "created" if isinstance(event, RunAccepted) else "updated", run_body(run)


def _run_complete(event: RunReported, run: RunRecord | None, session_id: str) -> Shown:
    body = m.RunComplete(
        session_id=session_id,
        run_id=event.run_id,
        message_id=run.message_id if run else "",
        text=run.text if run else "",
        outcome=event.outcome,
        reason=event.reason,
        usage=usage_body(run.usage if run else Usage()),
        cleanup=run.cleanup if run else "clean",
        error=(run.error if run else "") or UNSET,
        folded_into=(run.folded_into if run else None) or UNSET,
        cancelled_by=(run.cancelled_by if run else "") or UNSET,
    )
    return "run_complete", "created", body


def _error(event: ErrorReported, run: RunRecord | None, session_id: str) -> Shown:
    error = run.error if run else "the session was deleted"
    return (
        "agent_event",
        "created",
        m.AgentEvent(type="error", error=error, run_id=event.run_id, session_id=session_id),
    )


def _retry(event: RetryReported, _: None, session_id: str) -> Shown:
    body = m.AgentEvent(
        type="retry",
        error=event.error,
        run_id=event.run_id,
        session_id=session_id,
        message=f"Trying again in {event.wait_s:g} s (attempt {event.attempt} of {event.attempts_max}).",
        attempt=event.attempt,
        attempts_max=event.attempts_max,
        wait_s=event.wait_s,
    )
    return "agent_event", "created", body


def _session_changed(event: SessionChanged, view: SessionView | None, _: str) -> Shown:
    if view is None:
        return "session", "deleted", {"id": event.session_id}
    return "session", event.change, session_body(view)


def _rewound(event: SessionRewound, _: None, session_id: str) -> Shown:
    body = RewindEvent(session_id=session_id, message_id=event.message_id, fork_session_id=event.fork_session_id)
    return "rewind", "created", body


def _message_changed(event: MessageChanged, message: Message | None, session_id: str) -> Shown:
    if message is None:
        return "message", "deleted", {"id": event.message_id, "session_id": session_id}
    return "message", event.change, message_body(message)


def _asked(event: Asked | AskSettled, ask: Ask | None, _: str) -> Shown:
    if ask is None:
        return "permission_request", "deleted", {"id": event.ask_id, "run_id": event.run_id}
    return "permission_request" if ask.kind == "approval" else "question_batch_request", "created", ask_body(ask)


def _ask_settled(event: AskSettled, ask: Ask | None, session_id: str) -> Shown:
    if ask is None:
        return _asked(event, ask, session_id)
    common: dict[str, Any] = {
        "id": ask.id,
        "session_id": ask.session_id,
        "run_id": ask.run_id,
        "tool_call_id": ask.tool_call_id,
        "answered_by": ask.answered_by,
        "withdrawn": ask.state == "withdrawn",
        "author": ask.author or UNSET,
    }
    if ask.kind == "question":
        answered = m.QuestionNotification(**common, answered=ask.answer == "answered")
        return "question_batch_notification", "created", answered
    closed = m.PermissionNotification(**common, granted=ask.is_allowed, answer=ask.answer)
    return "permission_notification", "created", closed


def _file_changed(event: FileChanged, _: None, session_id: str) -> Shown:
    body = FileEvent(
        path=event.path,
        run_id=event.run_id,
        session_id=session_id,
        version_id=event.version_id,
        undone=event.undone,
    )
    return "file", event.change, body


class Row(NamedTuple):
    #: The record that the frame shows. The event names it in its field `run_id`, `session_id`, and so on.
    record: RecordKind | None
    #: Called with the event, its record (None: deleted since) and the id of the session.
    show: Callable[[Any, Any, str], Shown]


EVENTS: dict[type[Event], Row] = {
    RunAccepted: Row("run", _run_changed),
    RunStarted: Row("run", _run_changed),
    RunResumed: Row("run", _run_changed),
    StepStarted: Row("run", _run_changed),
    RunFolded: Row("run", _run_changed),
    RunEdited: Row("run", _run_changed),
    RunMoved: Row("run", _run_changed),
    FoldMarked: Row("run", _run_changed),
    CancelMarked: Row("run", _run_changed),
    RunCancelMarked: Row("run", _run_changed),
    RunEnded: Row("run", _run_changed),
    RunReported: Row("run", _run_complete),
    ErrorReported: Row("run", _error),
    RetryReported: Row(None, _retry),
    SessionChanged: Row("session", _session_changed),
    SessionRewound: Row(None, _rewound),
    MessageChanged: Row("message", _message_changed),
    Asked: Row("ask", _asked),
    AskSettled: Row("ask", _ask_settled),
    FileChanged: Row(None, _file_changed),
}


def record_of(event: Event) -> tuple[RecordKind, str] | None:
    """Return the kind and the id of the record that the frame of this event shows."""
    kind = EVENTS[type(event)].record
    return None if kind is None else (kind, getattr(event, f"{kind}_id"))


def encode(position: int | None, session_id: str, event: Event, records: Records) -> bytes:
    """Return the frame of an event. Its record is missing in `records` if it was deleted since."""
    kind, show = EVENTS[type(event)]
    record = records.get(kind, {}).get(getattr(event, f"{kind}_id")) if kind else None
    return frame(*show(event, record, session_id), position)


# --- transient frames ------------------------------------------------------------------------------------------------


def delta(message_id: str, part: int, text: str, kind: Literal["text", "reasoning"]) -> bytes:
    return frame("delta", "updated", m.DeltaBody(message_id=message_id, part=part, text=text, kind=kind))


def snapshot(message: Message) -> tuple[bytes, bytes]:
    """Return the frame of a message without parts, split where its parts belong."""
    before, field, after = frame("message", "updated", message_body(message)).partition(b'"parts":[')
    return before + field, after


def snapshot_part(part: Text | Reasoning) -> tuple[bytes, bytes]:
    """Return a part without text, split where its text belongs: in the first empty string."""
    before, _, after = _encode(part_body(part)).partition(b':""')
    return before + b':"', b'"' + after


def json_text(text: str) -> bytes:
    """Return a text as JSON without the quotes. Texts that are joined afterwards give the JSON of the joined text."""
    return _encode(text)[1:-1]


def gap(reason: Literal["evicted", "epoch"], position: int) -> bytes:
    return frame("gap", "created", GapBody(reason=reason, position=position))


def progress(session_id: str, run_id: str, tool_call_id: str, text: str) -> bytes:
    body = m.ProgressBody(session_id=session_id, run_id=run_id, tool_call_id=tool_call_id, text=text)
    return frame("progress", "updated", body)


def presence(session_id: str, clients: int) -> bytes:
    return frame("presence", "updated", m.PresenceBody(session_id=session_id, attached_clients=clients))


def config_problem(problem: str) -> bytes:
    return frame("config_problem", "updated", ConfigProblem(problem=problem))


def extension(state: ExtensionState) -> bytes:
    return frame("extension", "updated", extension_body(state))


def kept_output(session_id: str, id_: str, text: str) -> bytes:
    return frame("job_output", "updated", JobOutputEvent(session_id=session_id, id=id_, text=text))
