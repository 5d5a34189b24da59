"""The end of a Run: its last message is closed and its record completed in the append of its RunEnded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from msgspec.structs import replace

from kedge.core.commands import Finish, Recover, VerdictOutcome
from kedge.core.events import REASON_TEXTS, Change, Reason, RunEnded
from kedge.core.lane import decide
from kedge.core.records import RunRecord, Usage
from kedge.core.transcript import FinishPart, FinishReason, Message, ToolCall, ToolResult
from kedge.engine.append import Append


@dataclass(slots=True)
class Verdict:
    """The supervisor's report on a Run that is done. The Lane decides whether it was cancelled."""

    outcome: VerdictOutcome
    reason: Reason = ""
    error: str = ""
    cleanup: Literal["clean", "failed"] = "clean"
    finish_reason: FinishReason = "end_turn"
    usage: Usage = Usage()
    context_tokens: int = 0


def end_run(tx: Append, command: Finish | Recover, verdict: Verdict, change: Change, last: Message) -> None:
    """Decide the end of the active Run and of the Runs folded into it.

    `last` is the message that was streaming, or a new empty one: a Run that was stopped before its first Step still
    leaves a message."""
    ended = next(event for event in decide(tx.lane, command) if isinstance(event, RunEnded))
    message = last.closed(_finish_part(ended, verdict, tx.now))
    error = verdict.error if ended.outcome == "failed" or verdict.cleanup == "failed" else ""
    if ended.outcome == "interrupted":
        error = error or REASON_TEXTS[ended.reason]
    tx.put_message(change, message)
    for event in tx.decide(command):
        if not isinstance(event, RunEnded):
            continue
        is_host = event.run_id == ended.run_id
        tx.change_run(
            replace(
                tx.runs[event.run_id],
                error=error,
                cleanup=verdict.cleanup,
                message_id=message.id,
                text=message.text,
                model=tx.runs[ended.run_id].model,
                # Folded Runs share the answer of their host; its cost is counted once.
                usage=verdict.usage if is_host else Usage(),
                context_tokens=verdict.context_tokens if is_host else 0,
            )
        )


def end_waiting_run(tx: Append) -> None:
    """End the active Run if it waits for a node and a cancel covers it: it has no task that would."""
    while (active := tx.lane.active) is not None and tx.lane.covers(active):
        run = tx.runs.get(active.run_id) or tx.state.runs[active.run_id]
        if not run.waits_for_node:
            return  # it began at a node that was lost: recovery completes its transcript
        last = Message(tx.new_id("m"), run.session_id, "assistant", (), tx.now, tx.now, run.run_id)
        end_run(tx, Finish(run.run_id, "stopped", "", tx.now), Verdict("stopped"), "created", last)


def _finish_part(ended: RunEnded, verdict: Verdict, now: int) -> FinishPart:
    match ended.outcome:
        case "completed":
            return FinishPart(verdict.finish_reason, now)
        case "cancelled":
            return FinishPart("canceled", now)
        case "failed":
            return FinishPart("error", now, ended.reason, verdict.error)
        case "interrupted":
            return FinishPart("error", now, REASON_TEXTS[ended.reason])


def results_message(message_id: str, run: RunRecord, results: tuple[ToolResult, ...], now: int) -> Message:
    """Return the message with the results of calls that returned none before their Run ended."""
    return Message(message_id, run.session_id, "tool", results, now, now, run.run_id)


def open_calls(messages: list[Message]) -> tuple[ToolCall, ...]:
    """Return the tool calls in these messages that have no result."""
    answered = {result.tool_call_id for message in messages for result in message.all(ToolResult)}
    return tuple(call for message in messages for call in message.all(ToolCall) if call.id not in answered)
