"""How a Run's last message is closed, in the append of its end: used by the supervisor and by recovery alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from msgspec.structs import replace

from kedge.core.commands import VerdictOutcome
from kedge.core.events import REASON_TEXTS, Change, LaneEvent, Outcome, Reason, RunEnded
from kedge.core.records import RunRecord, Usage
from kedge.core.transcript import CUT_OFF, Finish, FinishReason, Message, ToolCall, ToolResult
from kedge.engine.lane_state import Addition

_REASONS: dict[Outcome, FinishReason] = {"failed": "error", "cancelled": "canceled", "interrupted": "error"}


@dataclass(slots=True)
class Verdict:
    """What was seen of a Run that is over. Whether it was cancelled is for the Lane to say."""

    outcome: VerdictOutcome
    reason: Reason = ""
    error: str = ""
    cleanup: Literal["clean", "failed"] = "clean"
    finish_reason: FinishReason = "end_turn"
    usage: Usage = Usage()
    context_tokens: int = 0


def close_run(
    events: tuple[LaneEvent, ...],
    runs: dict[str, RunRecord],
    verdict: Verdict,
    last: tuple[Change, Message],
    before: list[tuple[Change, Message]],
    now: int,
) -> Addition:
    """The Run's last message with its end, and what its record says of it. `events` hold the Run's RunEnded first.

    `last` is the message that was streaming, or a new empty one: a Run that was stopped before it did anything leaves
    its trace all the same. `before`: messages to be put ahead of it, such as results for tool calls that got none."""
    ended = next(event for event in events if isinstance(event, RunEnded))
    reason = verdict.finish_reason if ended.outcome == "completed" else _REASONS[ended.outcome]
    said = (
        REASON_TEXTS[ended.reason]
        if ended.outcome == "interrupted"
        else ended.reason
        if ended.outcome == "failed"
        else ""
    )
    message = last[1].closed(Finish(reason, now, said, verdict.error if ended.outcome == "failed" else ""))
    changes: dict[str, RunRecord] = {}
    for event in events:
        if not isinstance(event, RunEnded):
            continue
        error = verdict.error if ended.outcome == "failed" or verdict.cleanup == "failed" else ""
        changes[event.run_id] = replace(
            runs[event.run_id],
            error=error,
            cleanup=verdict.cleanup,
            message_id=message.id,
            text=message.text,
            # Folded Runs share their host's answer; what it cost is counted once.
            usage=verdict.usage if event is ended else Usage(),
            context_tokens=verdict.context_tokens if event is ended else 0,
        )
    return Addition([*before, (last[0], message)], runs=changes)


def cut_off_results(message_id: str, run: RunRecord, calls: tuple[ToolCall, ...], now: int) -> Message | None:
    results = tuple(ToolResult(call.id, call.name, CUT_OFF, is_error=True) for call in calls)
    return Message(message_id, run.session_id, "tool", results, now, now, run.run_id) if results else None
