"""What a new process does first: no Run may stay "running" because its process is gone."""

from __future__ import annotations

from kedge.core.commands import OnCrash, Recover
from kedge.core.events import Change, LaneEvent, RunEnded
from kedge.core.records import RunRecord
from kedge.core.transcript import Finish, Message, ToolCall, ToolResult
from kedge.engine.closing import Verdict, close_run, cut_off_results
from kedge.engine.door import Addition, Door, OpenLane
from kedge.engine.ports import Clock, Ids
from kedge.engine.runner import HISTORY_MESSAGES_MAX
from kedge.store.base import Store


async def recover(lane: OpenLane, door: Door, store: Store, clock: Clock, ids: Ids, on_crash: OnCrash) -> None:
    """Resume or end the Run that was active, with its transcript made whole; queued Runs go on behind it."""
    _, live = await store.lane(lane.session.id)
    host = next((run for run in live if run.state == "active" and run.folded_into is None), None)
    if host is None:
        return
    messages = await store.last_messages(lane.session.id, HISTORY_MESSAGES_MAX)
    own = [message for message in messages if message.run_id == host.run_id]

    def compose(events: tuple[LaneEvent, ...], runs: dict[str, RunRecord]) -> Addition:
        return _made_whole(host, own, events, runs, clock.now_ms(), ids)

    await door.command(lane, Recover(on_crash, clock.now_ms()), compose=compose)


def _made_whole(
    host: RunRecord,
    own: list[Message],
    events: tuple[LaneEvent, ...],
    runs: dict[str, RunRecord],
    now: int,
    ids: Ids,
) -> Addition:
    streaming = next((message for message in own if message.role == "assistant" and not message.finish), None)
    cut_off = cut_off_results(ids.new("m"), host, _open_calls(own), now)
    before: list[tuple[Change, Message]] = [("created", cut_off)] if cut_off else []
    if any(isinstance(event, RunEnded) for event in events):
        blank = Message(ids.new("m"), host.session_id, "assistant", (), now, now, host.run_id)
        last: tuple[Change, Message] = ("updated", streaming) if streaming else ("created", blank)
        verdict = Verdict("interrupted", usage=host.usage)
        return close_run(events, runs, verdict, last, before, now)
    if streaming:
        cut = Finish("error", now, "interrupted", "The server process was lost; this step was begun again.")
        before.append(("updated", streaming.closed(cut)))
    return Addition(before)


def _open_calls(own: list[Message]) -> tuple[ToolCall, ...]:
    answered = {result.tool_call_id for message in own for result in message.all(ToolResult)}
    return tuple(call for message in own for call in message.all(ToolCall) if call.id not in answered)
