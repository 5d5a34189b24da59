"""Bodies of the statistics, of the timeline of a Lane, and of the live Lanes."""

from __future__ import annotations

from datetime import date
from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from kedge.core.events import Outcome, Reason
from kedge.core.records import RunRecord, Usage
from kedge.core.statistics import Figures, GroupBy, Spread, ToolFigures
from kedge.core.timeline import CallItem, StepItem, StepItems
from kedge.core.transcript import CallEnd, FinishReason
from kedge.core.untrusted_text import one_line
from kedge.wire.codec import trace_body, usage_body
from kedge.wire.models import UsageBody
from kedge.wire.trace_models import TraceBody

#: A prompt in a timeline: a label. Characters.
LABEL_CHARS_MAX = 200
_EPOCH = date(1970, 1, 1).toordinal()

# --- statistics -------------------------------------------------------------------------------------------------------


class SpreadBody(Struct, kw_only=True):
    """The distribution of a time over `count` Runs: the median and the 95th percentile, both measured values."""

    count: int
    median_ms: int
    p95_ms: int


class FiguresBody(Struct, kw_only=True):
    """The figures of a group of Runs."""

    #: A day as YYYY-MM-DD, a model, the id of a workspace, or an outcome. Empty: the total, or no model was chosen.
    key: str
    #: The key for users: the path of a workspace.
    label: str
    runs: int
    completed: int
    failed: int
    cancelled: int
    interrupted: int
    #: Runs that joined another one, are children of another one, or continued after the loss of a server.
    folded: int
    children: int
    resumed: int
    steps: int
    input_tokens: int
    output_tokens: int
    #: Parts of `input_tokens`.
    cache_read_tokens: int
    cache_write_tokens: int
    cost_usd: float
    #: From acceptance to start, or to joining another Run.
    queue_wait: SpreadBody
    #: From start to the first piece of the first reply.
    first_token: SpreadBody
    #: From start to end, without folded Runs.
    duration: SpreadBody
    tool_calls: int
    tool_failures: int


class ToolFiguresBody(Struct, kw_only=True):
    name: str
    #: Runs that called it.
    runs: int
    calls: int
    #: Calls that returned an error or were cut off.
    failures: int
    #: Further calls that did not begin: not approved, or not reached when their Run ended.
    not_run: int
    #: Time from the begin of the calls to their results, in total.
    busy_ms: int


class StatsBody(Struct, kw_only=True):
    """The statistics of the Runs that ended at `since` or later and before `until`."""

    since: int
    until: int
    by: GroupBy
    total: FiguresBody
    #: By key; empty for `tool`. After 1,000 groups the rest are in the group `(other)`.
    groups: list[FiguresBody]
    #: Most calls first.
    tools: list[ToolFiguresBody]
    #: Runs that did not complete, by reason.
    reasons: dict[Reason, int]


def spread_body(spread: Spread) -> SpreadBody:
    return SpreadBody(count=spread.count, median_ms=spread.median_ms, p95_ms=spread.p95_ms)


def day_text(number: str) -> str:
    """Return the date of a day, whose number since the epoch is given."""
    return date.fromordinal(_EPOCH + int(number)).isoformat()


def figures_body(figures: Figures, key: str, label: str) -> FiguresBody:
    usage: Usage = figures.usage
    outcomes = figures.outcomes
    return FiguresBody(
        key=key,
        label=label,
        runs=figures.runs,
        completed=outcomes.get("completed", 0),
        failed=outcomes.get("failed", 0),
        cancelled=outcomes.get("cancelled", 0),
        interrupted=outcomes.get("interrupted", 0),
        folded=figures.folded,
        children=figures.children,
        resumed=figures.resumed,
        steps=figures.steps,
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cache_read_tokens=usage.cache_read_tokens,
        cache_write_tokens=usage.cache_write_tokens,
        cost_usd=round(usage.cost_usd, 9),
        queue_wait=spread_body(figures.queue_wait),
        first_token=spread_body(figures.first_token),
        duration=spread_body(figures.duration),
        tool_calls=figures.tool_calls,
        tool_failures=figures.tool_failures,
    )


def tool_figures_body(tool: ToolFigures) -> ToolFiguresBody:
    use = tool.use
    return ToolFiguresBody(
        name=use.name,
        runs=tool.runs,
        calls=use.calls,
        failures=use.failures,
        not_run=use.not_run,
        busy_ms=use.busy_ms,
    )


# --- the timeline -----------------------------------------------------------------------------------------------------


class CallBody(Struct, kw_only=True):
    """A tool call in a timeline."""

    id: str
    name: str
    title: str
    #: When the model had requested it.
    requested_at: int
    #: When it began, after its approval. Missing: it did not begin, or that is not known.
    started_at: int | UnsetType = UNSET
    #: Missing: it has no result yet.
    ended_at: int | UnsetType = UNSET
    is_error: bool
    end: CallEnd | UnsetType = UNSET


class StepBody(Struct, kw_only=True):
    """A Step in a timeline: the model's reply from `started_at` to `ended_at`, then its calls."""

    #: The message of the model in the transcript.
    message_id: str
    started_at: int
    #: Missing: the reply is streaming.
    ended_at: int | UnsetType = UNSET
    finish: FinishReason | UnsetType = UNSET
    is_summary: bool
    calls: list[CallBody]


class LaneRunBody(Struct, kw_only=True):
    """A Run in a timeline."""

    run_id: str
    session_id: str
    seq: int
    state: Literal["queued", "active", "ended"]
    #: The beginning of the prompt, in one line.
    prompt: str
    accepted_at: int
    #: Of a folded Run: when it joined `folded_into`.
    started_at: int | UnsetType = UNSET
    first_token_at: int | UnsetType = UNSET
    ended_at: int | UnsetType = UNSET
    outcome: Outcome | UnsetType = UNSET
    reason: Reason | UnsetType = UNSET
    folded_into: str | UnsetType = UNSET
    parent_run_id: str | UnsetType = UNSET
    #: Queued to join the active Run at its next Step.
    folds: bool
    stopping: bool
    queue_order: int
    model: str
    usage: UsageBody
    #: The last message of the Run.
    message_id: str | UnsetType = UNSET
    #: The user who submitted it. Omitted: the owner.
    author: str | UnsetType = UNSET
    #: Cancels, moves, folds and resumes, in order: at most the last 50.
    trace: list[TraceBody]
    #: Steps that have begun. `steps` may have fewer: those of messages that a rewind removed are missing.
    step_count: int
    steps: list[StepBody]
    #: Steps and calls that are missing, because the Run has more than 2,000.
    omitted: int


class CancelMarkBody(Struct, kw_only=True):
    """A cancel: a line in the picture of a Lane. It covers each Run with seq <= mark, or `run_id` alone."""

    at: int
    #: Missing: only the Run `run_id` was cancelled.
    mark: int | UnsetType = UNSET
    #: The Run that was active.
    run_id: str
    #: The user who cancelled. Omitted: the owner.
    author: str | UnsetType = UNSET


class LaneBody(Struct, kw_only=True):
    """A page of the timeline of a session, the latest Runs of it first."""

    session_id: str
    #: The stream after this Position has everything that is not in this page.
    position: int
    #: In ascending order of seq.
    runs: list[LaneRunBody]
    #: The cancels that found one of these Runs active, by time.
    cancels: list[CancelMarkBody]
    #: `before` of the next page, with earlier Runs. Missing: this is the last page.
    next_before: int | UnsetType = UNSET


class LiveLaneBody(Struct, kw_only=True):
    """The Lane of a session with live Runs."""

    workspace_id: str
    path: str
    session_id: str
    title: str
    #: The Run whose child agent uses the session.
    parent_run_id: str | UnsetType = UNSET
    #: Without its Steps and calls.
    active: LaneRunBody
    #: Runs that wait for their start or to join the active one, and Runs that joined it.
    queued: int
    folded: int
    #: Approvals and questions that wait for an answer, and when the first of them was asked.
    asks: int
    asked_at: int | UnsetType = UNSET


def _call_body(call: CallItem) -> CallBody:
    return CallBody(
        id=call.id,
        name=call.name,
        title=call.title,
        requested_at=call.requested_at,
        started_at=UNSET if call.started_at is None else call.started_at,
        ended_at=UNSET if call.ended_at is None else call.ended_at,
        is_error=call.is_error,
        end=call.end or UNSET,
    )


def _step_body(step: StepItem) -> StepBody:
    return StepBody(
        message_id=step.message_id,
        started_at=step.started_at,
        ended_at=UNSET if step.ended_at is None else step.ended_at,
        finish=step.finish or UNSET,
        is_summary=step.is_summary,
        calls=[_call_body(call) for call in step.calls],
    )


def lane_run_body(run: RunRecord, items: StepItems | None = None) -> LaneRunBody:
    return LaneRunBody(
        run_id=run.run_id,
        session_id=run.session_id,
        seq=run.seq,
        state=run.state,
        prompt=one_line(run.prompt.typed[: 4 * LABEL_CHARS_MAX], LABEL_CHARS_MAX),
        accepted_at=run.accepted_at,
        started_at=run.started_at or UNSET,
        first_token_at=run.first_token_at or UNSET,
        ended_at=run.ended_at or UNSET,
        outcome=run.outcome or UNSET,
        reason=run.reason or UNSET,
        folded_into=run.folded_into or UNSET,
        parent_run_id=run.options.parent_run_id or UNSET,
        folds=run.folds and run.state == "queued",
        stopping=run.stopping and run.state != "ended",
        queue_order=run.queue_order,
        model=run.model,
        usage=usage_body(run.usage),
        message_id=run.message_id or UNSET,
        author=run.author or UNSET,
        trace=trace_body(run),
        step_count=run.steps,
        steps=[_step_body(step) for step in items.steps] if items else [],
        omitted=items.omitted if items else 0,
    )


def cancel_marks(runs: list[RunRecord]) -> list[CancelMarkBody]:
    """Return the cancels in the traces of these Runs, by time."""
    marks = [
        CancelMarkBody(
            at=entry.at,
            mark=entry.mark if entry.kind == "cancel" else UNSET,
            run_id=run.run_id,
            author=entry.author or UNSET,
        )
        for run in runs
        for entry in run.trace
        if entry.kind in ("cancel", "cancel_run")
    ]
    return sorted(marks, key=lambda mark: mark.at)
