"""Runs at work: one Run is one supervised task.

The work task asks the model, Step by Step. Its supervisor waits for it, for a stop, or for the Run's time to be over,
and then writes the terminal event, whatever the task did: it ended, failed, was cancelled before its first line, or
does not let itself be cancelled. The outcome is not read off an exception: the supervisor reports, the Lane decides.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from kedge.core.commands import BeginStep, Finish
from kedge.core.events import Change, LaneEvent
from kedge.core.records import RunRecord, Usage
from kedge.core.transcript import Finish as FinishPart
from kedge.core.transcript import FinishReason, Message, ToolCall, for_model
from kedge.engine.closing import Verdict, close_run, cut_off_results
from kedge.engine.door import RETRY_S, RETRY_S_MAX, Addition, Door, OpenLane
from kedge.engine.draft import Draft
from kedge.engine.ports import Clock, Ids
from kedge.engine.tools import Tools
from kedge.errors import KedgeError, ModelFailed, RunIsStopping, RunNotActive, StoreError, StoreUnavailable
from kedge.llm.base import Model, ModelEnd, ModelRequest, ReasoningDelta, TextDelta
from kedge.store.base import Store

log = logging.getLogger("kedge.engine")

#: How often text already shown to readers is put where a killed process cannot lose it. Seconds.
CHECKPOINT_S = 0.2
#: A model that has written this much in one message is taken to be stuck. Characters.
MESSAGE_CHARS_MAX = 10_000_000
#: Steps of one Run unless it says otherwise: far above real work, so that a model in a loop ends some day. Items.
STEPS_MAX = 200
#: Messages of history a Run reads. Items.
HISTORY_MESSAGES_MAX = 10_000


class StepsUsedUp(KedgeError):
    code = "max_steps"


@dataclass(slots=True)
class ActiveRun:
    """A Run at work in this process."""

    lane: OpenLane
    run: RunRecord
    workspace: str
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    #: The message being streamed; None between Steps.
    draft: Draft | None = None
    #: Messages given to the store whose arrival is not known yet: their append is under way, failed or was left alone.
    #: The end puts them again, whole: that is right in either case.
    unsure: dict[str, Message] = field(default_factory=dict)
    #: Tool calls of the last Step that have no result yet.
    open_calls: tuple[ToolCall, ...] = ()
    finish_reason: FinishReason = "end_turn"
    usage: Usage = Usage()
    model_name: tuple[str, str] = ("", "")  # provider, name
    checkpoint_timer: asyncio.TimerHandle | None = None


class Runner:
    def __init__(
        self,
        door: Door,
        store: Store,
        clock: Clock,
        ids: Ids,
        tools: Tools,
        choose_model: Callable[[OpenLane, RunRecord], Model],
        cleanup_s: float,
    ) -> None:
        self._door = door
        self._store = store
        self._clock = clock
        self._ids = ids
        self._tools = tools
        self._choose_model = choose_model
        self._cleanup_s = cleanup_s
        self._at_work: dict[str, ActiveRun] = {}  # by session
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, lane: OpenLane, run: RunRecord, workspace: str) -> None:
        active = self._at_work[run.session_id] = ActiveRun(lane, run, workspace)
        self._spawn(self._supervise(active), f"supervisor of run {run.run_id}")

    def is_at_work(self, session_id: str, run_id: str) -> bool:
        active = self._at_work.get(session_id)
        return active is not None and active.run.run_id == run_id

    def stop(self, session_id: str, run_id: str) -> None:
        active = self._at_work.get(session_id)
        if active and active.run.run_id == run_id:
            active.stop.set()

    async def close(self, timeout_s: float) -> None:
        """Stop every Run and wait until their ends are written."""
        for active in self._at_work.values():
            active.stop.set()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # --- the supervisor ------------------------------------------------------------------------------------------

    async def _supervise(self, active: ActiveRun) -> None:
        loop = asyncio.get_running_loop()
        timeout_s = active.run.options.timeout_s
        work = loop.create_task(self._work(active), name=f"work of run {active.run.run_id}")
        stopped = loop.create_task(active.stop.wait())
        await asyncio.wait({work, stopped}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if work.done():
            verdict = _verdict_of(work)
        elif active.stop.is_set():
            verdict = Verdict("interrupted", "the server was shut down")
        else:
            verdict = Verdict("failed", "timeout", f"The run took longer than its {timeout_s:g} s.")
        if not work.done():
            work.cancel()
            await asyncio.wait({work}, timeout=self._cleanup_s)
        if not work.done():
            verdict.cleanup = "failed"
            verdict.error = f"The run could not be stopped within {self._cleanup_s:g} s; its task was left behind."
            log.error("run %s: %s", active.run.run_id, verdict.error)
            work.add_done_callback(_look_away)
        await self._finish(active, verdict)

    async def _finish(self, active: ActiveRun, verdict: Verdict) -> None:
        """Write the end. Until the store has taken it the Run has not ended, so this tries for as long as it takes."""
        verdict.usage, verdict.finish_reason = active.usage, active.finish_reason

        missing: set[str] = set()

        def closing(events: tuple[LaneEvent, ...], runs: dict[str, RunRecord]) -> Addition:
            now = self._clock.now_ms()
            self._end_stream(active)
            last = self._assistant_message(active)
            draft = active.draft
            again = [message for message in active.unsure.values() if draft is None or message.id != draft.id]
            before = [(_change(message, missing), message) for message in again]
            if cut_off := cut_off_results(self._ids.new("m"), active.run, active.open_calls, now):
                before.append(("created", cut_off))
            if draft is not None:
                last = draft.message(now)
            change: Change = "created" if draft is None else _change(last, missing)
            return close_run(events, runs, verdict, (change, last), before, now)

        wait_s = RETRY_S
        while self._at_work.get(active.run.session_id) is active:
            finish = Finish(active.run.run_id, verdict.outcome, verdict.reason, self._clock.now_ms())
            try:
                if active.unsure:
                    await self._door.refresh(active.lane)  # what is still under way at the door comes before
                for message_id in active.unsure:
                    if await self._store.message(active.run.workspace_id, message_id) is None:
                        missing.add(message_id)
                    else:
                        missing.discard(message_id)
                await self._door.command(active.lane, finish, compose=closing)
            except RunNotActive:
                break  # its end is recorded: the first durable fact wins
            except (StoreUnavailable, StoreError) as error:
                log.error("run %s: its end could not be written: %s", active.run.run_id, error)
            except Exception as error:  # whatever it is, the Run must end: the store does not take what it said
                log.exception("run %s: its end is written without its last message", active.run.run_id)
                verdict.outcome, verdict.reason = "failed", "internal"
                verdict.error = f"The answer could not be stored ({type(error).__name__}); the server's log has more."
                active.draft, active.open_calls = active.draft.blank() if active.draft else None, ()
                active.unsure.clear()
            else:
                break
            await asyncio.sleep(wait_s)
            wait_s = min(wait_s * 2, RETRY_S_MAX)
        # That very command may have started the next Run of the session, which then has this place.
        if self._at_work.get(active.run.session_id) is active:
            del self._at_work[active.run.session_id]

    # --- the work ------------------------------------------------------------------------------------------------

    async def _work(self, active: ActiveRun) -> None:
        model = self._choose_model(active.lane, active.run)
        active.model_name = (model.provider, model.name)
        steps, steps_max = active.run.steps, active.run.options.max_steps or STEPS_MAX
        while True:
            await self._begin_step(active)
            end = await self._ask(active, model)
            active.usage += end.usage
            if not end.tool_calls:
                active.finish_reason = end.reason
                return
            await self._call_tools(active, end.tool_calls)
            steps += 1
            if steps >= steps_max:
                raise StepsUsedUp(f"The run used up its {steps_max} steps.")

    async def _begin_step(self, active: ActiveRun) -> None:
        message = self._assistant_message(active)

        def begun(events: tuple[LaneEvent, ...], runs: dict[str, RunRecord]) -> Addition:
            active.draft = Draft(message)
            active.unsure[message.id] = message
            return Addition(behind=[("created", message)])

        command = BeginStep(active.run.run_id, message.created_at)
        await self._door.command(active.lane, command, compose=begun, durable=False)
        active.unsure.clear()
        assert active.draft is not None
        active.lane.feed.stream(active.draft)

    async def _ask(self, active: ActiveRun, model: Model) -> ModelEnd:
        draft = active.draft
        assert draft is not None
        history = await self._store.last_messages(active.run.session_id, HISTORY_MESSAGES_MAX)
        request = ModelRequest(model.name, tuple(for_model(history)), "", self._tools.specs, active.workspace)
        feed = active.lane.feed
        async with model.stream(request) as parts:
            async for part in parts:
                match part:
                    case TextDelta(text=text):
                        draft.add("text", text)
                    case ReasoningDelta(text=text):
                        draft.add("reasoning", text)
                    case ModelEnd():
                        return part
                if draft.closed:
                    raise RunNotActive(f"run {active.run.run_id} has ended and says no more")
                feed.grew(draft)
                if active.checkpoint_timer is None:
                    self._plan_checkpoint(active)
                if draft.chars > MESSAGE_CHARS_MAX:
                    raise ModelFailed(f"The model wrote more than {MESSAGE_CHARS_MAX} characters and was stopped.")
        raise ModelFailed("The model's answer broke off before its end; try again.")

    async def _call_tools(self, active: ActiveRun, calls: tuple[ToolCall, ...]) -> None:
        draft = active.draft
        assert draft is not None
        now = self._clock.now_ms()
        self._end_stream(active)
        message = draft.message(now, *calls).closed(FinishPart("tool_use", now))
        active.draft, active.open_calls = None, calls
        await self._put(active, "updated", message)
        results = tuple([await self._tools.call(call, active.workspace) for call in calls])
        run, now = active.run, self._clock.now_ms()
        answer = Message(self._ids.new("m"), run.session_id, "tool", results, now, now, run.run_id)
        active.open_calls = ()
        await self._put(active, "created", answer)

    async def _put(self, active: ActiveRun, change: Change, message: Message) -> None:
        active.unsure[message.id] = message
        await self._door.put_message(active.lane, change, message)
        del active.unsure[message.id]

    # --- messages ------------------------------------------------------------------------------------------------

    def _assistant_message(self, active: ActiveRun) -> Message:
        now = self._clock.now_ms()
        provider, name = active.model_name
        run = active.run
        return Message(self._ids.new("m"), run.session_id, "assistant", (), now, now, run.run_id, name, provider)

    def _plan_checkpoint(self, active: ActiveRun) -> None:
        def save() -> None:
            active.checkpoint_timer = None
            if active.draft is not None:
                self._spawn(self._save(active, active.draft), f"checkpoint of run {active.run.run_id}")

        active.checkpoint_timer = asyncio.get_running_loop().call_later(CHECKPOINT_S, save)

    async def _save(self, active: ActiveRun, draft: Draft) -> None:
        try:
            await self._door.save_tails(active.lane, draft)
        except StoreUnavailable as error:
            # The text is still here and is put whole when the message ends; only a kill in between would lose it.
            log.warning("run %s: a checkpoint could not be written: %s", active.run.run_id, error)

    def _end_stream(self, active: ActiveRun) -> None:
        if active.checkpoint_timer is not None:
            active.checkpoint_timer.cancel()
            active.checkpoint_timer = None
        if active.draft is not None:
            active.draft.close()
            active.lane.feed.stream_ended(active.draft)


def _change(message: Message, missing: set[str]) -> Change:
    return "created" if message.id in missing else "updated"


def _look_away(work: asyncio.Task[None]) -> None:
    """An abandoned task's end is nobody's business; asking for its exception keeps asyncio from reporting it."""
    if not work.cancelled():
        work.exception()


def _verdict_of(work: asyncio.Task[None]) -> Verdict:
    if work.cancelled():
        return Verdict("interrupted", "the server was shut down")
    error = work.exception()
    match error:
        case None:
            return Verdict("completed")
        case RunIsStopping() | RunNotActive():
            return Verdict("interrupted", "the run was stopped")  # the Lane says what that means
        case KedgeError():
            return Verdict("failed", error.code, error.message)
        case _:
            log.error("a run failed in a way nobody foresaw", exc_info=error)
            return Verdict("failed", "internal", f"Internal error ({type(error).__name__}); the server's log has more.")
