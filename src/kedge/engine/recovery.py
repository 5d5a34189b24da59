"""What a new process does first: no Run may stay "running" because its process is gone."""

from __future__ import annotations

from kedge.core.commands import OnCrash, Recover
from kedge.core.events import Change, LaneEvent, RunEnded
from kedge.core.records import RunRecord
from kedge.core.transcript import Finish, Message, ToolCall, ToolResult
from kedge.engine.closing import Verdict, close_run, cut_off_results
from kedge.engine.door import Door
from kedge.engine.history import HISTORY_MESSAGES_MAX
from kedge.engine.openlane import Addition, OpenLane
from kedge.engine.ports import Clock, Ids
from kedge.store.base import Store

#: A Run that keeps taking its process down is ended after this many resumptions.
RESUMES_MAX = 3


async def recover(lane: OpenLane, door: Door, store: Store, clock: Clock, ids: Ids, on_crash: OnCrash) -> None:
    """Resume or end the Run that was active, with its transcript made whole; queued Runs go on behind it."""
    _, live = await store.lane(lane.session.id)
    host = next((run for run in live if run.state == "active" and run.folded_into is None), None)
    if host is None:
        return
    messages = await store.last_messages(lane.session.id, HISTORY_MESSAGES_MAX)
    own = [message for message in messages if message.run_id == host.run_id]
    # A call that people had not answered yet has not begun: it goes on to wait. Any other may have had an effect.
    waiting = {ask.tool_call_id for ask in await store.session_asks(lane.session.id)}
    # Nobody waits for an agent's Run any more: the call it served was cut off with its process.
    resumes_max = 0 if host.options.parent_run_id else RESUMES_MAX

    def compose(events: tuple[LaneEvent, ...], runs: dict[str, RunRecord]) -> Addition:
        ends = any(isinstance(event, RunEnded) for event in events)
        calls = tuple(call for call in _open_calls(own) if ends or call.id not in waiting)
        return _made_whole(host, own, calls, events, runs, clock.now_ms(), ids)

    await door.command(lane, Recover(on_crash, clock.now_ms(), resumes_max), compose=compose)


def _made_whole(
    host: RunRecord,
    own: list[Message],
    calls: tuple[ToolCall, ...],
    events: tuple[LaneEvent, ...],
    runs: dict[str, RunRecord],
    now: int,
    ids: Ids,
) -> Addition:
    streaming = next((message for message in own if message.role == "assistant" and not message.finish), None)
    cut_off = cut_off_results(ids.new("m"), host, calls, now)
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
