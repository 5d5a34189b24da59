"""Runs at work: one Run is one supervised task.

The work task does what `core.step` says, action by action. Its supervisor waits for it, for a stop, or for the Run's
time to be over, and then writes the terminal event, whatever the task did: it ended, failed, was cancelled before its
first line, or does not let itself be cancelled. The outcome is not read off an exception: the supervisor reports, the
Lane decides. Before that, everything the Run has started is gone: its tool processes, its title in the making.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, Protocol

from msgspec.structs import replace

from kedge.agent.active_run import ActiveRun
from kedge.agent.compaction import compact
from kedge.agent.history import History
from kedge.agent.model_call import Asking
from kedge.agent.model_choice import RunModel
from kedge.agent.titles import make_title
from kedge.agent.tool_calls import Calls
from kedge.core.commands import BeginStep, Finish
from kedge.core.events import Change, LaneEvent, reason_of
from kedge.core.records import RunRecord
from kedge.core.step import (
    CHARS_PER_TOKEN,
    AskModel,
    CallTools,
    Compact,
    End,
    Limits,
    estimated_tokens,
    next_action,
    signatures,
)
from kedge.core.transcript import Finish as FinishPart
from kedge.core.transcript import Message, ToolCall, ToolResult, for_model
from kedge.engine.door import RETRY_S, RETRY_S_MAX, Door
from kedge.engine.draft import Draft
from kedge.engine.lane_state import Addition, OpenLane
from kedge.engine.ports import Clock, Ids
from kedge.engine.run_end import Verdict, close_run, cut_off_results
from kedge.engine.workspaces import Workspace
from kedge.errors import (
    BadConfig,
    ContextFull,
    KedgeError,
    RunIsStopping,
    RunNotActive,
    ShuttingDown,
    StoreDamaged,
    StoreError,
    StoreUnavailable,
)
from kedge.llm.base import ModelRequest
from kedge.store.base import Store
from kedge.tools.tool_threads import ToolThreads
from kedge.waiting import retrieve_exception

log = logging.getLogger("kedge.engine")

#: After a restart, when nobody has counted tokens yet, so many messages are taken to fit. Items.
MESSAGES_TAKEN_TO_FIT = 20
#: How long what a Run left running in the background may take to end by itself when it is told to. Seconds.
GRACE_S = 1.0

#: Which model a Run uses; and the small one, for titles.
ChooseModel = Callable[[OpenLane, RunRecord], Awaitable[RunModel]]


class Prompts(Protocol):
    """What models are told besides the conversation."""

    #: For the small model: how to name a session. For any model: how to summarise one.
    title: str
    summary: str

    async def system(self, workspace: Workspace, run: RunRecord) -> str: ...


class NoPrompts:
    """For an engine whose models need not be told anything."""

    title, summary = "Write a title.", "Summarize the conversation."

    async def system(self, workspace: Workspace, run: RunRecord) -> str:
        return ""


class Runner:
    def __init__(
        self,
        door: Door,
        store: Store,
        clock: Clock,
        ids: Ids,
        asking: Asking,
        calls: Calls,
        prompts: Prompts,
        choose_model: ChooseModel,
        choose_small: ChooseModel,
    ) -> None:
        self._door = door
        self._store = store
        self._clock = clock
        self._ids = ids
        self._asking = asking
        self._calls = calls
        self._prompts = prompts
        self._choose_model = choose_model
        self._choose_small = choose_small
        self._at_work: dict[str, ActiveRun] = {}  # by session
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, lane: OpenLane, run: RunRecord, workspace: Workspace) -> None:
        parent = next((one for one in self._at_work.values() if one.run.run_id == run.options.parent_run_id), None)
        threads = ToolThreads(parent.threads if parent else None)
        active = ActiveRun(lane, run, workspace, History(self._store, lane), threads=threads)
        self._at_work[run.session_id] = active
        # Now, since it may end before it does anything: what it has cost stays, whatever becomes of it.
        active.steps, active.usage = run.steps, run.usage
        # And before anybody can answer: an answer that comes before the Run has got there must not be lost.
        mine = [ask for ask in lane.asks.values() if ask.run_id == run.run_id]
        active.standing = {ask.tool_call_id: (ask, lane.end_of_ask(ask.id)) for ask in mine}
        self._spawn(self._supervise(active), f"supervisor of run {run.run_id}")

    def is_at_work(self, session_id: str, run_id: str) -> bool:
        active = self._at_work.get(session_id)
        return active is not None and active.run.run_id == run_id

    @property
    def is_busy(self) -> bool:
        return bool(self._at_work)

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
        cleanup_s = active.workspace.config.runs.cleanup_s
        work = loop.create_task(self._work(active), name=f"work of run {active.run.run_id}")
        stopped = loop.create_task(active.stop.wait())
        await asyncio.wait({work, stopped}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if work.done():
            verdict = _verdict_of(work)
        elif active.stop.is_set():
            verdict = Verdict("stopped")
        else:
            verdict = Verdict("failed", "timeout", f"The run took longer than its {timeout_s:g} s.")
        clean_up = loop.create_task(self._clean_up(active, work))
        await asyncio.wait({clean_up}, timeout=cleanup_s)
        left = active.background.survivors
        work.add_done_callback(retrieve_exception)
        clean_up.add_done_callback(retrieve_exception)
        if not clean_up.done():
            clean_up.cancel()
            verdict.cleanup = "failed"
            busy = active.threads.busy
            left_behind = (
                f"{busy} of its threads {'is' if busy == 1 else 'are'} still busy"
                if busy
                else "its task was left behind"
            )
            verdict.error = f"The run could not be stopped within {cleanup_s:g} s; {left_behind}."
        elif (error := clean_up.exception()) is not None:
            verdict.cleanup = "failed"
            verdict.error = f"Processes of the run may be left: ending them failed ({type(error).__name__}: {error})."
        if left:
            verdict.cleanup = "failed"
            verdict.error = f"Processes of the run could not be ended: {', '.join(map(str, sorted(left)))}."
        if verdict.cleanup == "failed":
            log.error("run %s: %s", active.run.run_id, verdict.error)
        await self._finish(active, verdict)

    async def _clean_up(self, active: ActiveRun, work: asyncio.Task[End]) -> None:
        """Everything of the Run is over when this returns: its work, its title, its processes."""
        # In this order, and not in that of a set, which is another one each time: what is seen can be seen again.
        tasks: list[asyncio.Task[Any]] = [task for task in (work, active.title) if task is not None]
        for task in tasks:
            task.cancel()
        # Side by side: a task that does not let itself be stopped must not keep processes alive.
        await asyncio.gather(asyncio.wait(tasks), active.background.end_all(GRACE_S))
        await active.background.end_all(GRACE_S)  # what a call left behind on its way out
        await active.threads.idle()

    async def _finish(self, active: ActiveRun, verdict: Verdict) -> None:
        """Write the end. Until the store has taken it the Run has not ended, so this tries for as long as it takes."""
        verdict.usage, active.is_ending = active.usage, True
        verdict.context_tokens = active.lane.context_tokens or active.run.context_tokens
        missing: set[str] = set()

        def closing(events: tuple[LaneEvent, ...], runs: dict[str, RunRecord]) -> Addition:
            now = self._clock.now_ms()
            self._asking.end_stream(active)
            last = self._asking.new_message(active)
            draft = active.draft
            again = [message for message in active.unsure.values() if draft is None or message.id != draft.id]
            before = [(_change(message, missing), message) for message in again]
            if cut_off := cut_off_results(self._ids.new("m"), active.run, tuple(active.open_calls.values()), now):
                before.append(("created", cut_off))
            change: Change = "created"
            if draft is not None:
                last = draft.message(now)
                change = _change(last, missing)
            elif active.run.options.purpose == "summary" and active.summary is not None:
                change, last = "updated", active.summary
            return close_run(events, runs, verdict, (change, last), before, now)

        async def look() -> None:
            """In the Lane's lock: an append that is under way has arrived by now, or comes too late and is refused."""
            if active.run.resumes and not active.is_recalled:
                # It ends before it went on: its open calls get their results here. Damage to its transcript, which may
                # be why it ends, must not keep it from ending.
                with suppress(StoreDamaged):
                    await self._recall(active)
            for message_id in list(active.unsure):
                if await self._store.message(active.run.workspace_id, message_id) is None:
                    missing.add(message_id)
                else:
                    missing.discard(message_id)

        wait_s = RETRY_S
        while self._at_work.get(active.run.session_id) is active:
            finish = Finish(active.run.run_id, verdict.outcome, verdict.reason, self._clock.now_ms())
            try:
                await self._door.command(active.lane, finish, compose=closing, first=look)
            except RunNotActive:
                break  # its end is recorded: the first durable fact wins
            except (StoreUnavailable, StoreError) as error:
                log.error("run %s: its end could not be written: %s", active.run.run_id, error)
            except Exception as error:  # whatever it is, the Run must end: the store does not take what it said
                log.exception("run %s: its end is written without its last message", active.run.run_id)
                verdict.outcome, verdict.reason = "failed", "internal"
                verdict.error = f"The answer could not be stored ({type(error).__name__}); the server's log has more."
                active.draft = active.draft.blank() if active.draft else None
                active.open_calls.clear()
                active.unsure.clear()
                verdict.usage = active.run.usage  # it may be that which no record can hold
            else:
                break
            await asyncio.sleep(wait_s)
            wait_s = min(wait_s * 2, RETRY_S_MAX)
        # That very command may have started the next Run of the session, which then has this place.
        if self._at_work.get(active.run.session_id) is active:
            del self._at_work[active.run.session_id]

    # --- the work ------------------------------------------------------------------------------------------------

    async def _work(self, active: ActiveRun) -> End:
        await self._prepare(active)
        while True:
            match next_action(active.progress, active.limits):
                case CallTools(calls=calls):
                    await self._calls.make(active, calls)
                case Compact():
                    await self._compact(active)
                case AskModel():
                    await self._step(active)
                case End() as end:
                    return end

    async def _prepare(self, active: ActiveRun) -> None:
        """Where the Run stands: at its beginning, or, after a crash, behind its last durable Step."""
        run, runs = active.run, active.workspace.config.runs
        chosen = active.chosen = await self._choose_model(active.lane, run)
        if run.options.budget_usd is not None and chosen.price is None:
            raise BadConfig(
                f"The price of {chosen.model.provider}/{chosen.model.name} is not known, so a budget cannot be kept; "
                "leave it out, or give the model's input_price and output_price in the configuration."
            )
        window = chosen.context_window
        compact_at = None if window is None else int(window * runs.compact_at)
        active.limits = Limits(run.options.max_steps or runs.max_steps, run.options.budget_usd, compact_at)
        lane = active.lane
        active.context_tokens = lane.context_tokens + len(run.prompt.text) // CHARS_PER_TOKEN
        is_unknown = not lane.context_tokens and lane.session.message_count > MESSAGES_TAKEN_TO_FIT
        if not (run.steps or run.resumes or is_unknown):
            return  # at its beginning: its first Step begins at once, and whoever comes now waits for the next one
        await self._recall(active)

    async def _recall(self, active: ActiveRun) -> None:
        history = await active.history.read()
        own = [message for message in history if message.run_id == active.run.run_id]
        active.call_ids = {call.id for message in own for call in message.all(ToolCall)}
        active.open_calls = {call.id: call for call in _open_calls(own)}
        active.last = "tool_use" if active.open_calls else None
        active.signatures.extend(signatures(own))
        active.context_tokens = estimated_tokens(for_model(history, active.lane.session.summary_message_id))
        active.is_recalled = True

    async def _step(self, active: ActiveRun) -> None:
        if active.system:
            await self._begin_step(active)
        else:
            # Side by side: the Step begins at once, and the files that go into the prompt are read meanwhile.
            reading = self._prompts.system(active.workspace, active.run)
            _, active.system = await asyncio.gather(self._begin_step(active), reading)
        await self._begin_title(active)
        draft, chosen = active.draft, active.model
        assert draft is not None
        history = for_model(await active.history.read(), active.lane.session.summary_message_id)
        request = ModelRequest(
            chosen.model.name,
            tuple(history),
            active.system,
            self._calls.specs(active),
            active.workspace.record.path,
            chosen.output_tokens_max,
            chosen.thinking_tokens,
            chosen.takes_images,
        )
        try:
            end = await self._asking.ask(active, request)
        except ContextFull:
            if active.is_compacted:
                raise
            active.context_is_full = True
            await self._leave_step(active)
            return
        active.usage += end.usage
        read = end.usage.input_tokens or estimated_tokens(history)
        active.context_tokens = read + (end.usage.output_tokens or draft.chars // CHARS_PER_TOKEN)
        active.lane.context_tokens = active.context_tokens
        active.last, active.is_compacted = end.reason, False
        if end.tool_calls:
            await self._end_step(active, end.tool_calls)

    async def _begin_step(self, active: ActiveRun, *, sums_up: bool = False) -> None:
        message = replace(self._asking.new_message(active), is_summary=sums_up)

        def begun(events: tuple[LaneEvent, ...], runs: dict[str, RunRecord]) -> Addition:
            active.draft = Draft(message)
            active.unsure[message.id] = message
            return Addition(behind=[("created", message)], runs={active.run.run_id: active.spent(runs)})

        command = BeginStep(active.run.run_id, message.created_at, folds=not sums_up)
        await self._door.command(active.lane, command, compose=begun)
        active.unsure.clear()
        active.history.put(message)
        active.steps += 1
        assert active.draft is not None
        active.lane.feed.stream(active.draft)

    async def _end_step(self, active: ActiveRun, calls: tuple[ToolCall, ...]) -> None:
        """The model wants tools: its message is whole, and says which."""
        draft = active.draft
        assert draft is not None
        now = self._clock.now_ms()
        self._asking.end_stream(active)
        calls = tuple(self._calls.described(self._told_apart(active, call)) for call in calls)
        message = draft.message(now, *calls).closed(FinishPart("tool_use", now))
        active.draft, active.open_calls = None, {call.id: call for call in calls}
        await self._asking.put(active, "updated", message)

    def _told_apart(self, active: ActiveRun, call: ToolCall) -> ToolCall:
        """Some providers number the calls of each Step anew, and a result finds its call by the id alone."""
        if call.id in active.call_ids:
            call = replace(call, id=self._ids.new("call"))
        active.call_ids.add(call.id)
        return call

    async def _leave_step(self, active: ActiveRun) -> None:
        """Nothing came of it; what there is of its message says so, and a later Step stands for it."""
        draft = active.draft
        assert draft is not None
        now = self._clock.now_ms()
        self._asking.end_stream(active)
        message = draft.message(now).closed(
            FinishPart("error", now, "context_full", "The history is summarised first.")
        )
        active.draft = None
        await self._asking.put(active, "updated", message)

    async def _compact(self, active: ActiveRun) -> None:
        await self._begin_step(active, sums_up=True)
        # Behind that: whatever stands before the summary is in it.
        history = await active.history.read()
        await compact(active, self._asking, self._clock, history, self._prompts.summary)

    async def _begin_title(self, active: ActiveRun) -> None:
        config, run = active.workspace.config, active.run
        wanted = config.runs.titles and active.lane.session.title_is_makeshift and not run.options.parent_run_id
        if wanted and active.title is None:
            try:
                small = await self._choose_small(active.lane, run)
            except BadConfig:
                return  # the large model works; a title is not worth a word
            if small.writes_titles:
                title = make_title(active, small, self._prompts.title, self._door)
                active.title = self._spawn(title, f"title of run {run.run_id}")


def _open_calls(own: list[Message]) -> list[ToolCall]:
    """Calls that wait for an answer of people since before a crash; recovery gave all others a result."""
    answered = {result.tool_call_id for message in own for result in message.all(ToolResult)}
    return [call for message in own for call in message.all(ToolCall) if call.id not in answered]


def _change(message: Message, missing: set[str]) -> Change:
    return "created" if message.id in missing else "updated"


def _verdict_of(work: asyncio.Task[End]) -> Verdict:
    if work.cancelled():
        return Verdict("stopped")
    error = work.exception()
    match error:
        case None:
            end = work.result()
            return Verdict(end.outcome, end.reason, end.error, finish_reason=end.finish)
        case ShuttingDown():
            return Verdict("stopped")  # it was to begin a child, and was not let
        case RunIsStopping() | RunNotActive():
            return Verdict("stopped")  # the Lane says what that means
        case KedgeError():
            return Verdict("failed", reason_of(error.code), error.message)
        case _:
            log.error("a run failed in a way nobody foresaw", exc_info=error)
            return Verdict("failed", "internal", f"Internal error ({type(error).__name__}); the server's log has more.")
