"""The results of the MCP server's tools: bounded, and without terminal controls.

The docstrings and field names are part of the tools' schemas, which the other agent's model reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import UNSET
from typing_extensions import TypedDict  # the schema library does not accept typing.TypedDict before Python 3.12

from kedge.cli.transcript_lines import transcript_lines
from kedge.client.client import NOT_RECORDED
from kedge.client.safe_text import harmless, one_line, visible_line
from kedge.client.view.ask_text import approval_lines, question_lines
from kedge.client.view.job_text import jobs_remain
from kedge.wire.models import CancelReply, MessageBody, PermissionRequest, QuestionBatch, RunBody, SessionBody

#: One result: some thousand tokens, since the whole result goes into the context of a model. Characters.
RESULT_CHARS_MAX = 24_000
#: Longest title or error in a result. Characters.
LINE_CHARS_MAX = 1000
#: Sessions in one result, the last used first. Items.
SESSIONS_MAX = 50


class Pending(TypedDict):
    """A call or question of a run that waits for an answer."""

    id: str
    kind: Literal["approval", "question"]
    run_id: str
    session_id: str
    text: str
    #: To allow an approval, pass it back. Empty if the text was cut: then only the user can allow it.
    binding: str


class PendingReport(TypedDict):
    pending: list[Pending]
    omitted: int


class RunReport(TypedDict):
    """The state of a run. It has ended if `state` is "ended"; only then there is an outcome."""

    run_id: str
    session_id: str
    directory: str
    state: Literal["queued", "running", "waiting_for_answer", "ended"]
    outcome: str
    reason: str
    error: str
    text: str
    pending: list[Pending]
    note: str


class SubmitReport(TypedDict):
    run_id: str
    session_id: str
    directory: str
    state: Literal["queued", "active"]


class CoveredRun(TypedDict):
    run_id: str
    was: Literal["queued", "active", "folded"]


class CancelReport(TypedDict):
    """`covered` lists exactly the runs that this cancel stopped."""

    covered: list[CoveredRun]
    note: str


class SessionReport(TypedDict):
    session_id: str
    title: str
    messages: int
    mode: str
    is_busy: bool
    updated_at_ms: int


class SessionsReport(TypedDict):
    directory: str
    sessions: list[SessionReport]
    omitted: int


class TranscriptReport(TypedDict):
    """One page of a transcript. Pass `next_after` as `after` to get the next one; empty: this is the last."""

    session_id: str
    text: str
    next_after: str


class AnswerReport(TypedDict):
    id: str
    answer: str


def cut(text: str, chars_max: int) -> str:
    """Return the start of the text without terminal controls, and how much is missing."""
    shown = harmless(text[:chars_max])
    return shown if len(text) <= chars_max else f"{shown}\n[{len(text) - chars_max} more characters]"


def run_report(run: RunBody, pending: Sequence[Pending], directory: str) -> RunReport:
    state: Literal["queued", "running", "waiting_for_answer", "ended"]
    if run.state == "ended":
        state, note = "ended", ""
    elif pending:
        state, note = "waiting_for_answer", "The user can answer with `kedge approvals`. Then wait for the run again."
    else:
        state, note = "queued" if run.state == "queued" else "running", "The run continues. Wait for it again."
    return RunReport(
        run_id=run.run_id,
        session_id=run.session_id,
        directory=directory,
        state=state,
        outcome="" if run.outcome is UNSET else run.outcome,
        reason="" if run.reason is UNSET else run.reason,
        error="" if run.error is UNSET else one_line(run.error, LINE_CHARS_MAX),
        text="" if run.text is UNSET else cut(run.text, RESULT_CHARS_MAX),
        pending=list(pending),
        note=note,
    )


def cancel_report(reply: CancelReply) -> CancelReport:
    notes = [] if reply.recorded else [NOT_RECORDED]
    notes += [one_line(jobs_remain(reply.jobs), LINE_CHARS_MAX)] if reply.jobs else []
    notes += [] if reply.covered else ["Nothing was active or queued."]
    covered = [CoveredRun(run_id=run.run_id, was=run.was) for run in reply.covered]
    return CancelReport(covered=covered, note=" ".join(notes))


def pending_report(approvals: Sequence[PermissionRequest], questions: Sequence[QuestionBatch]) -> PendingReport:
    """Return the pending asks that fit into one result, the oldest first. One that is too long alone is cut."""
    pending: list[Pending] = []
    left = RESULT_CHARS_MAX
    asks: list[PermissionRequest | QuestionBatch] = [*approvals, *questions]
    asks.sort(key=lambda ask: ask.asked_at)
    for ask in asks:
        text = _ask_text(ask)
        if pending and len(text) > left:
            break
        fits = len(text) <= left
        pending.append(
            Pending(
                id=ask.id,
                kind="approval" if isinstance(ask, PermissionRequest) else "question",
                run_id=ask.run_id,
                session_id=ask.session_id,
                text=text if fits else cut(text, left),
                binding=ask.binding if isinstance(ask, PermissionRequest) and fits else "",
            )
        )
        left -= len(text)
    return PendingReport(pending=pending, omitted=len(asks) - len(pending))


def _ask_text(ask: PermissionRequest | QuestionBatch) -> str:
    """Return the text that a user sees, in full."""
    if isinstance(ask, PermissionRequest):
        return "\n".join(approval_lines(ask))
    return "\n".join(line for question in ask.questions for line in question_lines(question))


def sessions_report(sessions: Sequence[SessionBody], directory: str) -> SessionsReport:
    own = [session for session in sessions if not session.parent_run_id]  # not those of child agents
    reports = [
        SessionReport(
            session_id=session.id,
            title=visible_line(session.title),
            messages=session.message_count,
            mode=session.mode,
            is_busy=session.is_busy,
            updated_at_ms=session.updated_at,
        )
        for session in own[:SESSIONS_MAX]
    ]
    return SessionsReport(directory=directory, sessions=reports, omitted=len(own) - len(reports))


def transcript_report(session_id: str, messages: Sequence[MessageBody]) -> TranscriptReport:
    """Return the messages that fit, at least one. `messages` is a page of the server, empty after the last."""
    text, last = "", ""
    for message in messages:
        piece = cut("\n".join(transcript_lines([message])) + "\n", RESULT_CHARS_MAX)
        if last and len(text) + len(piece) > RESULT_CHARS_MAX:
            break
        text, last = text + piece, message.id
    return TranscriptReport(session_id=session_id, text=text, next_after=last)
