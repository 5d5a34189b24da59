"""The one table between the core's words and the wire's: which Event is which frame, which record is which body."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET

from kedge.core.approvals import Ask
from kedge.core.events import (
    Asked,
    AskSettled,
    ErrorReported,
    Event,
    FileChanged,
    MessageChanged,
    RetryReported,
    RunAccepted,
    RunReported,
    SessionChanged,
)
from kedge.core.records import RunRecord, SessionRecord, Usage
from kedge.core.transcript import PART_TYPES, Message, Part
from kedge.wire import models as m

_encode = msgspec.json.Encoder().encode

#: Wire names of part fields that differ from ours: the reference system spells these three its own way.
_PART_FIELDS = {"binary": {"path": "Path", "mime_type": "MIMEType", "data": "Data"}}

HEARTBEAT = b": heartbeat\n\n"


# --- records ---------------------------------------------------------------------------------------------------------


def usage_body(usage: Usage) -> m.UsageBody:
    return m.UsageBody(
        input_tokens=usage.input_tokens, output_tokens=usage.output_tokens, cost_usd=round(usage.cost_usd, 9)
    )


def run_body(run: RunRecord) -> m.RunBody:
    ended = run.state == "ended"
    return m.RunBody(
        run_id=run.run_id,
        session_id=run.session_id,
        workspace_id=run.workspace_id,
        seq=run.seq,
        state=run.state,
        prompt=run.prompt.text,
        accepted_at=run.accepted_at,
        usage=usage_body(run.usage),
        cleanup=run.cleanup,
        stopping=run.stopping and not ended,
        steps=run.steps,
        place=run.place,
        folds=run.folds and run.state == "queued",
        parent_run_id=run.options.parent_run_id or UNSET,
        outcome=run.outcome or UNSET,
        reason=run.reason or UNSET,
        error=run.error or UNSET,
        folded_into=run.folded_into or UNSET,
        started_at=run.started_at or UNSET,
        ended_at=run.ended_at or UNSET,
        message_id=run.message_id or UNSET,
        text=run.text if ended else UNSET,
        context_tokens=run.context_tokens,
    )


def receipt(run: RunRecord) -> m.Receipt:
    return m.Receipt(
        run_id=run.run_id, session_id=run.session_id, seq=run.seq, state=run.accepted_state, position=run.position
    )


def session_body(session: SessionRecord, *, is_busy: bool, attached_clients: int) -> m.SessionBody:
    return m.SessionBody(
        id=session.id,
        parent_session_id=session.parent_session_id,
        title=session.title,
        message_count=session.message_count,
        prompt_tokens=session.usage.input_tokens,
        completion_tokens=session.usage.output_tokens,
        cost=round(session.usage.cost_usd, 9),
        created_at=session.created_at,
        updated_at=session.updated_at,
        is_busy=is_busy,
        attached_clients=attached_clients,
        todos=[
            m.TodoBody(content=todo.content, status=todo.status, active_form=todo.active_form) for todo in session.todos
        ],
        summary_message_id=session.summary_message_id,
        model=session.model,
        parent_run_id=session.parent_run_id,
    )


def part_body(part: Part) -> m.PartBody:
    names = _PART_FIELDS.get(part.kind, {})
    data = {names.get(name, name): getattr(part, name) for name in part.__struct_fields__}
    return m.PartBody(type=part.kind, data=data)


def message_body(message: Message) -> m.MessageBody:
    return m.MessageBody(
        id=message.id,
        role=message.role,
        session_id=message.session_id,
        run_id=message.run_id,
        parts=[part_body(part) for part in message.parts],
        model=message.model,
        provider=message.provider,
        is_summary=message.is_summary,
        created_at=message.created_at,
        updated_at=message.updated_at,
    )


def part_from_body(body: m.PartBody) -> Part | None:
    """The part again, for clients; None for a type this version does not know."""
    kind = PART_TYPES.get(body.type)
    if kind is None:
        return None
    ours = {wire: own for own, wire in _PART_FIELDS.get(body.type, {}).items()}
    known = kind.__struct_fields__
    data: dict[str, Any] = {ours.get(name, name): value for name, value in body.data.items()}
    return msgspec.convert({name: value for name, value in data.items() if name in known}, kind)


# --- frames ----------------------------------------------------------------------------------------------------------


def frame(kind: m.EventType, change: str, payload: object, position: int | None = None) -> bytes:
    """One SSE frame. JSON has no raw line break, so no text in the payload can forge another frame."""
    body = b'data: {"type":"%b","payload":{"type":"%b","payload":%b}}\n\n' % (
        kind.encode(),
        change.encode(),
        _encode(payload),
    )
    return body if position is None else b"id: %d\n%b" % (position, body)


def delta_frame(message_id: str, part: int, text: str, kind: Literal["text", "reasoning"] = "text") -> bytes:
    return frame("delta", "updated", m.DeltaBody(message_id=message_id, part=part, text=text, kind=kind))


def gap_frame(reason: str, position: int) -> bytes:
    return frame("gap", "created", {"reason": reason, "position": position})


def snapshot_frame(message: Message) -> bytes:
    """A streaming message as it stands: without a Position, since nothing durable happened."""
    return frame("message", "updated", message_body(message))


def session_frame(position: int, event: SessionChanged, body: m.SessionBody | None) -> bytes:
    return frame("session", event.change if body else "deleted", body or {"id": event.session_id}, position)


def message_frame(position: int, event: MessageChanged, message: Message | None, session_id: str) -> bytes:
    if message is None:
        return frame("message", "deleted", {"id": event.message_id, "session_id": session_id}, position)
    return frame("message", event.change, message_body(message), position)


def run_frame(position: int, session_id: str, event: Event, run: RunRecord | None) -> bytes:
    """The frame of any event that is about a Run. The record is gone when its session was deleted since."""
    match event:
        case RunReported():
            return frame("run_complete", "created", _run_complete(session_id, event, run), position)
        case ErrorReported(run_id=run_id):
            error = run.error if run else "the session was deleted"
            body = m.AgentEvent(type="error", error=error, run_id=run_id, session_id=session_id)
            return frame("agent_event", "created", body, position)
        case RetryReported(run_id=run_id, attempt=attempt, attempts_max=most, wait_s=wait_s, error=why):
            said = f"Trying again in {wait_s:g} s (attempt {attempt} of {most})."
            retry = m.AgentEvent(type="retry", error=why, run_id=run_id, session_id=session_id, message=said)
            retry.attempt, retry.attempts_max, retry.wait_s = attempt, most, wait_s
            return frame("agent_event", "created", retry, position)
        case SessionChanged() | MessageChanged() | Asked() | AskSettled() | FileChanged():
            raise AssertionError("not an event about a Run")
        case _ if run is None:
            return frame("run", "deleted", {"run_id": event.run_id, "session_id": session_id}, position)
        case _:
            return frame("run", "created" if isinstance(event, RunAccepted) else "updated", run_body(run), position)


def ask_body(ask: Ask) -> m.PermissionRequest | m.QuestionBatch:
    if ask.kind == "question":
        questions = [
            m.QuestionBody(
                request_id=f"q{number}",
                question=asked["question"],
                options=[
                    m.QuestionOptionBody(id=f"o{place}", label=option["label"], description=option["description"])
                    for place, option in enumerate(asked["options"], 1)
                ],
                multiple=asked["multiple"],
            )
            for number, asked in enumerate(msgspec.json.decode(ask.params), 1)
        ]
        return m.QuestionBatch(
            id=ask.id,
            session_id=ask.session_id,
            run_id=ask.run_id,
            tool_call_id=ask.tool_call_id,
            questions=questions,
            asked_at=ask.asked_at,
        )
    return m.PermissionRequest(
        id=ask.id,
        session_id=ask.session_id,
        run_id=ask.run_id,
        tool_call_id=ask.tool_call_id,
        tool_name=ask.tool,
        action=ask.action,
        description=ask.description,
        path=ask.path,
        params=_params(ask),
        grant=ask.grant,
        asked_at=ask.asked_at,
        binding=ask.binding,
    )


def _params(ask: Ask) -> Any:
    """Empty where they cannot be read: one question must not break the streams that all others are told by."""
    try:
        return msgspec.json.decode(ask.params or "{}")
    except (msgspec.DecodeError, UnicodeError):
        return {}


def ask_frame(position: int | None, event: Asked | AskSettled, ask: Ask | None) -> bytes:
    """The record is gone when its session was deleted since: then there is nothing left to show or to close."""
    if ask is None:
        body = {"id": event.ask_id, "run_id": event.run_id}
        return frame("permission_request", "deleted", body, position)
    if isinstance(event, Asked):
        kind: m.EventType = "permission_request" if ask.kind == "approval" else "question_batch_request"
        return frame(kind, "created", ask_body(ask), position)
    where = {"id": ask.id, "session_id": ask.session_id, "run_id": ask.run_id, "tool_call_id": ask.tool_call_id}
    withdrawn = ask.state == "withdrawn"
    if ask.kind == "question":
        answered = ask.answer == "answered"
        told = m.QuestionNotification(**where, answered=answered, answered_by=ask.answered_by, withdrawn=withdrawn)
        return frame("question_batch_notification", "created", told, position)
    closed = m.PermissionNotification(
        **where,
        granted=ask.is_allowed,
        denied=not ask.is_allowed,
        answer=ask.answer,
        answered_by=ask.answered_by,
        withdrawn=withdrawn,
    )
    return frame("permission_notification", "created", closed, position)


def file_frame(position: int, session_id: str, event: FileChanged) -> bytes:
    body = m.FileEvent(path=event.path, run_id=event.run_id, session_id=session_id, version_id=event.version_id)
    return frame("file", event.change, body, position)


def progress_frame(session_id: str, run_id: str, tool_call_id: str, text: str) -> bytes:
    body = m.ProgressBody(session_id=session_id, run_id=run_id, tool_call_id=tool_call_id, text=text)
    return frame("progress", "updated", body)


def presence_frame(session_id: str, clients: int) -> bytes:
    return frame("presence", "updated", m.PresenceBody(session_id=session_id, attached_clients=clients))


def skip_frame(given_by: str) -> bytes:
    return frame("permission_skip", "updated", m.SkipState(skip=bool(given_by), given_by=given_by))


def _run_complete(session_id: str, event: RunReported, run: RunRecord | None) -> m.RunComplete:
    return m.RunComplete(
        session_id=session_id,
        run_id=event.run_id,
        message_id=run.message_id if run else "",
        text=run.text if run else "",
        outcome=event.outcome,
        reason=event.reason,
        usage=usage_body(run.usage if run else Usage()),
        cleanup=run.cleanup if run else "clean",
        error=(run.error if run else "") or UNSET,
        cancelled=event.outcome == "cancelled" or UNSET,
        folded_into=(run.folded_into if run else None) or UNSET,
    )
