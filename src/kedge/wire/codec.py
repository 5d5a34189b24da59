"""Conversion between records and the bodies that cross the wire."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET

from kedge.core.approvals import Ask
from kedge.core.kept_commands import KeptCommand
from kedge.core.records import RunRecord, SessionView, Usage
from kedge.core.transcript import Message, Part, Text
from kedge.wire import models as m
from kedge.wire.job_models import JobBody
from kedge.wire.trace_models import TraceBody


def usage_body(usage: Usage) -> m.UsageBody:
    return m.UsageBody(
        input_tokens=usage.input_tokens, output_tokens=usage.output_tokens, cost_usd=round(usage.cost_usd, 9)
    )


def run_body(run: RunRecord) -> m.RunBody:
    ended = run.state == "ended"
    is_waiting = run.waits_for_node and not ended
    return m.RunBody(
        run_id=run.run_id,
        session_id=run.session_id,
        workspace_id=run.workspace_id,
        seq=run.seq,
        state="queued" if is_waiting and not run.steps else run.state,
        prompt=run.prompt.typed,
        accepted_at=run.accepted_at,
        usage=usage_body(run.usage),
        cleanup=run.cleanup,
        stopping=run.stopping and not ended,
        steps=run.steps,
        queue_order=run.queue_order,
        folds=run.folds and run.state == "queued",
        parent_run_id=run.options.parent_run_id or UNSET,
        outcome=run.outcome or UNSET,
        reason=run.reason or UNSET,
        error=run.error or UNSET,
        folded_into=run.folded_into or UNSET,
        started_at=(None if is_waiting and not run.steps else run.started_at) or UNSET,
        waits_for_node=is_waiting or UNSET,
        ended_at=run.ended_at or UNSET,
        message_id=run.message_id or UNSET,
        text=run.text if ended else UNSET,
        context_tokens=run.context_tokens,
        trace=trace_body(run) or UNSET,
        author=run.author or UNSET,
        cancelled_by=run.cancelled_by or UNSET,
    )


def trace_body(run: RunRecord) -> list[TraceBody]:
    return [
        TraceBody(
            kind=entry.kind,
            at=entry.at,
            mark=entry.mark or UNSET,
            before=entry.before or UNSET,
            author=entry.author or UNSET,
        )
        for entry in run.trace
    ]


def receipt(run: RunRecord) -> m.Receipt:
    return m.Receipt(
        run_id=run.run_id,
        session_id=run.session_id,
        seq=run.seq,
        state=run.accepted_state,
        position=run.position,
        waits_for_node=(run.waits_for_node and run.state != "ended") or UNSET,
    )


def session_body(view: SessionView) -> m.SessionBody:
    session = view.session
    return m.SessionBody(
        id=session.id,
        parent_session_id=session.parent_session_id,
        title=session.title,
        message_count=session.message_count,
        usage=usage_body(session.usage),
        created_at=session.created_at,
        updated_at=session.updated_at,
        is_busy=view.is_busy,
        attached_clients=view.attached_clients,
        todos=[
            m.TodoBody(content=todo.content, status=todo.status, active_form=todo.active_form) for todo in session.todos
        ],
        summary_message_id=session.summary_message_id,
        model=session.model,
        effort=session.effort,
        parent_run_id=session.parent_run_id,
        mode=session.mode,
        jobs=[job_body(entry) for entry in session.kept_commands],
    )


def job_body(entry: KeptCommand) -> JobBody:
    return JobBody(
        id=entry.id,
        command=entry.command,
        run_id=entry.run_id,
        state=entry.state,
        started_at=entry.started_at,
        ended_at=entry.ended_at,
        exit_code=entry.exit_code,
    )


def part_body(part: Part) -> m.PartBody:
    if isinstance(part, Text):  # front ends show what the user typed
        data = {"text": part.command, "expanded": part.text} if part.command else {"text": part.text}
        return m.PartBody(type=part.kind, data=data)
    return m.PartBody(type=part.kind, data={name: getattr(part, name) for name in part.__struct_fields__})


def message_body(message: Message) -> m.MessageBody:
    return m.MessageBody(
        id=message.id,
        role=message.role,
        session_id=message.session_id,
        run_id=message.run_id,
        parts=[part_body(part) for part in message.parts],
        model=message.model,
        provider=message.provider,
        is_summary=_is_summary(message),
        created_at=message.created_at,
        updated_at=message.updated_at,
    )


def _is_summary(message: Message) -> bool:
    """Return whether the message replaces those before it, or is being written to do so."""
    finish = message.finish
    return message.is_summary and message.role == "assistant" and (finish is None or finish.reason == "end_turn")


def ask_body(ask: Ask) -> m.PermissionRequest | m.QuestionBatch:
    if ask.kind == "question":
        questions = [
            m.QuestionBody(
                request_id=f"q{number}",
                question=asked["question"],
                options=[
                    m.QuestionOptionBody(id=f"o{index}", label=option["label"], description=option["description"])
                    for index, option in enumerate(asked["options"], 1)
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
        offers=[list(offer) for offer in ask.offers if offer],
        asked_at=ask.asked_at,
        binding=ask.binding,
    )


def _params(ask: Ask) -> Any:
    """Return the parameters, or {} if they are not valid JSON: one Ask must not break every event stream."""
    try:
        return msgspec.json.decode(ask.params or "{}")
    except (msgspec.DecodeError, UnicodeError):
        return {}
