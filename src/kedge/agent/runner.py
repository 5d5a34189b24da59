"""The runner: one supervised task per active Run.

The work task carries out the actions of `core.step`. Its supervisor waits for the task, a stop or the timeout, then
ends everything the Run started (tool processes, the title task) and writes the terminal event, whatever the task did:
it returned, failed, was cancelled before its first line, or cannot be cancelled. The outcome does not depend on an
exception: the supervisor reports a verdict, and the Lane decides.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from contextlib import suppress
from functools import partial
from typing import Any

from msgspec.structs import replace

from kedge.agent.active_run import ActiveRun
from kedge.agent.compaction import compact
from kedge.agent.history import History
from kedge.agent.hook_calls import continues
from kedge.agent.model_call import ModelCall
from kedge.agent.model_choice import ModelChooser
from kedge.agent.system_prompt import Prompts
from kedge.agent.titles import make_title
from kedge.agent.tool_calls import ToolCalls, unreturned_results
from kedge.core.commands import BeginStep, Finish
from kedge.core.events import Change, reason_of
from kedge.core.kept_commands import kept_prompt
from kedge.core.lane import decide
from kedge.core.records import RunRecord
from kedge.core.step import (
    CHARS_PER_TOKEN,
    CallModel,
    CallTools,
    Compact,
    End,
    Limits,
    estimated_tokens,
    next_action,
    signatures,
)
from kedge.core.transcript import FinishPart, ToolCall
from kedge.engine.append import Append
from kedge.engine.door import RETRY_S, RETRY_S_MAX, Door
from kedge.engine.draft import Draft
from kedge.engine.lane_state import LaneState
from kedge.engine.run_end import Verdict, end_run, open_calls, results_message
from kedge.engine.workspace import Workspace
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
from kedge.tools.tool_threads import ToolThreads
from kedge.waiting import backoff_s, retrieve_exception, wait_uncancelled

log = logging.getLogger("kedge.agent")

#: After a restart, when no provider has counted tokens yet, this many messages are assumed to fit. Items.
MESSAGES_ASSUMED_TO_FIT = 20
#: Time for background commands to end after SIGTERM. Seconds.
BACKGROUND_GRACE_S = 1.0
#: Additional time to clean up while the store is away. Seconds.
STORE_WAIT_S = 120.0


class Runner:
    """Executes Runs. The RunExecutor of the engine."""

    def __init__(self, door: Door, models: ModelChooser, tool_calls: ToolCalls, prompts: Prompts) -> None:
        self._door = door
        self._models = models
        self._model_call = ModelCall()
        self._tool_calls = tool_calls
        self._prompts = prompts
        self._running: dict[str, ActiveRun] = {}  # by session
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, state: LaneState, run: RunRecord, workspace: Workspace) -> None:
        parent = next((one for one in self._running.values() if one.id == run.options.parent_run_id), None)
        threads = ToolThreads(workspace.files, parent.threads if parent else None)
        active = ActiveRun(self._door, state, run, workspace, History(self._door.store, state), threads, parent)
        self._running[run.session_id] = active
        # Set here, since the Run may end before it does anything, and its earlier cost must be kept.
        active.steps, active.usage = run.steps, run.usage
        active.child_usage, active.first_token_at = run.child_usage, run.first_token_at
        # Registered before any answer can arrive: one that comes before the Run waits for it must not be lost.
        pending = [ask for ask in state.asks.values() if ask.run_id == run.run_id]
        active.standing = {ask.tool_call_id: (ask, state.end_of_ask(ask.id)) for ask in pending}
        self._spawn(self._supervise(active), f"supervisor of run {run.run_id}")

    def is_running(self, session_id: str, run_id: str) -> bool:
        active = self._running.get(session_id)
        return active is not None and active.id == run_id

    @property
    def is_busy(self) -> bool:
        return bool(self._running)

    def stop(self, session_id: str, run_id: str) -> None:
        active = self._running.get(session_id)
        if active and active.id == run_id:
            active.stop.set()

    def reconsider(self, workspace_id: str) -> None:
        for active in self._running.values():
            if active.run.workspace_id == workspace_id:
                active.reconsider.set()

    async def close(self, timeout_s: float) -> None:
        """Stop every Run, wait until their ends are written, and close the connections to models."""
        for active in self._running.values():
            active.stop.set()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)
        for task in list(self._tasks):
            task.cancel()  # the store is still away: the next process ends these Runs
        await wait_uncancelled(self._tasks)
        await self._models.close()

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # --- the supervisor ------------------------------------------------------------------------------------------

    async def _supervise(self, active: ActiveRun) -> None:
        loop = asyncio.get_running_loop()
        timeout_s = active.run.options.timeout_s
        work = loop.create_task(self._work(active), name=f"work of run {active.id}")
        stopped = loop.create_task(active.stop.wait())
        await asyncio.wait({work, stopped}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if work.done():
            verdict = _verdict_of(work)
        elif active.stop.is_set():
            verdict = Verdict("stopped")
        else:
            verdict = Verdict("failed", "timeout", f"The run took longer than its {timeout_s:g} s.")
        if error := await self._clean_up(active, work):
            verdict.cleanup, verdict.error = "failed", error
            log.error("run %s: %s", active.id, error)
        await self._finish(active, verdict)

    async def _clean_up(self, active: ActiveRun, work: asyncio.Task[End]) -> str:
        """End everything of the Run within `cleanup_s`; return an error if something is left."""
        cleanup_s = active.workspace.config.runs.cleanup_s
        ending = asyncio.get_running_loop().create_task(_end_all(active, work))
        await asyncio.wait({ending}, timeout=cleanup_s)
        if self._door.is_catching_up:  # an agent of the Run has been stopped, and its end is not written yet
            await asyncio.wait({ending}, timeout=STORE_WAIT_S)
        work.add_done_callback(retrieve_exception)
        ending.add_done_callback(retrieve_exception)
        is_done = ending.done()
        ending.cancel()
        if pids := active.background.survivors:
            return f"Processes of the run could not be ended: {', '.join(map(str, sorted(pids)))}."
        if not is_done:
            busy = active.threads.busy
            rest = (
                f"{busy} of its threads {'is' if busy == 1 else 'are'} still busy"
                if busy
                else "its task was left behind"
            )
            return f"The run could not be stopped within {cleanup_s:g} s; {rest}."
        if (error := ending.exception()) is not None:
            return f"Processes of the run may be left: ending them failed ({type(error).__name__}: {error})."
        return ""

    async def _finish(self, active: ActiveRun, verdict: Verdict) -> None:
        """Write the end. The Run has not ended before the store has it, so retry for as long as it takes."""
        active.is_ending = True
        verdict.usage = active.usage
        verdict.context_tokens = active.state.context_tokens or active.run.context_tokens
        delays_s = backoff_s(RETRY_S, RETRY_S_MAX)
        while self._running.get(active.run.session_id) is active:
            try:
                await self._door.write(active.state, partial(self._plan_end, active, verdict))
                break
            except RunNotActive:
                break  # the end is already recorded: the first durable fact wins
            except (StoreUnavailable, StoreError) as error:
                log.error("run %s: its end could not be written: %s", active.id, error)
            except Exception as error:  # the store refuses the last message, and the Run must end anyway
                log.exception("run %s: its end is written without its last message", active.id)
                _drop_last_message(active, verdict, error)
            await asyncio.sleep(next(delays_s))
        # The same append may have started the next Run of the session, which then has this place.
        if self._running.get(active.run.session_id) is active:
            del self._running[active.run.session_id]

    async def _plan_end(self, active: ActiveRun, verdict: Verdict, tx: Append) -> None:
        """Close the transcript of the Run, then end it.

        Under the Lane's lock: an append of the Run has arrived by now, or comes too late and is refused."""
        finish = Finish(active.id, verdict.outcome, verdict.reason, tx.now)
        decide(tx.lane, finish)  # raises RunNotActive if the end is already recorded
        if active.run.resumes and not active.is_restored:
            # It ends before it continued: its open calls get results here. Damage to its transcript, perhaps the
            # reason for its end, must not prevent the end.
            with suppress(StoreDamaged):
                await self._restore(active)
        changes: dict[str, Change] = {}
        for message_id in list(active.unconfirmed):
            stored = await self._door.store.message(active.run.workspace_id, message_id)
            changes[message_id] = "created" if stored is None else "updated"
        active.end_stream()
        active.put_usage(tx)
        draft = active.draft
        for message in active.unconfirmed.values():
            if draft is None or message.id != draft.id:
                tx.put_message(changes[message.id], message)
                if message.is_summary and message.finish:
                    tx.session = replace(tx.session, summary_message_id=message.id)
        if results := unreturned_results(active):
            tx.put_message("created", results_message(tx.new_id("m"), active.run, results, tx.now))
        if draft is not None:
            end_run(tx, finish, verdict, changes.get(draft.id, "updated"), draft.message(tx.now))
        elif active.run.options.purpose == "summary" and active.summary is not None:
            end_run(tx, finish, verdict, "updated", active.summary)
        else:
            end_run(tx, finish, verdict, "created", active.new_message())

    # --- the work ------------------------------------------------------------------------------------------------

    async def _work(self, active: ActiveRun) -> End:
        await self._prepare(active)
        while True:
            match next_action(active.progress, active.limits):
                case CallTools(calls=calls):
                    await self._tool_calls.run(active, calls)
                case Compact():
                    await self._compact(active)
                case CallModel():
                    await self._step(active)
                case End() as end:
                    if not await continues(active, end):
                        return end

    async def _prepare(self, active: ActiveRun) -> None:
        """Choose the model and the limits; after a crash, restore the progress of the last durable Step."""
        await active.workspace.reload_config()
        await active.workspace.extensions.refresh(active.workspace.config)
        run, state, runs = active.run, active.state, active.workspace.config.runs
        model = await self._models.choose(active.workspace.config, run.options.model or state.session.model)
        active.chosen = model
        active.effort = state.session.effort_of(run.options)
        if run.options.budget_usd is not None and model.price is None:
            raise BadConfig(
                f"The price of {model.model.provider}/{model.model.name} is unknown, so a budget cannot be kept; "
                "leave it out, or set the model's input_price and output_price in the configuration."
            )
        compact_at = None if model.context_window is None else int(model.context_window * runs.compact_at)
        active.limits = Limits(run.options.max_steps or runs.max_steps, run.options.budget_usd, compact_at)
        active.context_tokens = state.context_tokens + len(run.prompt.text) // CHARS_PER_TOKEN
        is_uncounted = not state.context_tokens and state.session.message_count > MESSAGES_ASSUMED_TO_FIT
        if run.steps or run.resumes or is_uncounted:
            await active.with_store(partial(self._restore, active))

    async def _restore(self, active: ActiveRun) -> None:
        history = await active.history.read(before_summary=bool(active.run.steps or active.run.resumes))
        context_tokens = estimated_tokens(await active.history.for_model())
        own = [message for message in history if message.run_id == active.id]
        active.call_ids = {call.id for message in own for call in message.all(ToolCall)}
        # Calls that wait for an answer since before the crash; recovery gave all others a result.
        active.open_calls = {call.id: call for call in open_calls(own)}
        active.last = "tool_use" if active.open_calls else None
        active.signatures.extend(signatures(own))
        active.context_tokens = context_tokens
        active.is_restored = True

    async def _step(self, active: ActiveRun) -> None:
        if active.system:
            await self._begin_step(active)
        else:
            # Concurrently: the Step begins at once while the files of the system prompt are read.
            reading = self._prompts.system(active.workspace, active.run)
            _, active.system = await asyncio.gather(self._begin_step(active), reading)
            active.system += kept_prompt(active.state.kept_commands)
            if text := active.workspace.extensions.system_text():
                active.system += f"\n{text}\n"
        await self._begin_title(active)
        draft, model = active.draft, active.model
        assert draft is not None
        history = await active.with_store(active.history.for_model)
        request = ModelRequest(
            model.model.name,
            tuple(history),
            active.system,
            self._tool_calls.specs(active),
            active.workspace.record.path,
            model.output_tokens_max,
            model.thinking_tokens,
            model.takes_images,
            active.effort,
        )
        try:
            end = await self._model_call.request(active, request)
        except ContextFull:
            if active.is_compacted:
                raise
            active.context_is_full = True
            await self._abandon_step(active)
            return
        active.usage += end.usage
        read_tokens = end.usage.input_tokens or estimated_tokens(history)
        active.count_context(read_tokens + (end.usage.output_tokens or draft.chars // CHARS_PER_TOKEN))
        active.last, active.is_compacted = end.reason, False
        if end.tool_calls:
            await self._end_step(active, end.tool_calls)

    async def _begin_step(self, active: ActiveRun, *, is_summary: bool = False) -> None:
        message = replace(active.new_message(), is_summary=is_summary)

        async def plan(tx: Append) -> None:
            if tx.is_repeated and await self._door.store.message(active.run.workspace_id, message.id) is not None:
                return  # the append before was stored
            tx.decide(BeginStep(active.id, message.created_at, folds=not is_summary))
            tx.put_message("created", message)
            active.put_usage(tx)
            active.draft = Draft(message)
            active.unconfirmed[message.id] = message

        await active.write(plan)
        active.unconfirmed.clear()
        active.history.put(message)
        active.steps += 1
        active.begin_stream()

    async def _end_step(self, active: ActiveRun, calls: tuple[ToolCall, ...]) -> None:
        """Complete the message of a Step that calls tools."""
        draft = active.draft
        assert draft is not None
        now = self._door.clock.now_ms()
        active.end_stream()
        calls = tuple(self._tool_calls.described(active, self._with_unique_id(active, call)) for call in calls)
        message = draft.message(now, *calls).closed(FinishPart("tool_use", now))
        active.draft, active.open_calls = None, {call.id: call for call in calls}
        await active.put_message("updated", message)

    def _with_unique_id(self, active: ActiveRun, call: ToolCall) -> ToolCall:
        """Some providers number the calls of each Step from the start, and a result finds its call by the id alone."""
        if call.id in active.call_ids:
            call = replace(call, id=self._door.ids.new("call"))
        active.call_ids.add(call.id)
        return call

    async def _abandon_step(self, active: ActiveRun) -> None:
        """Close the message of a Step that the provider refused as too long; a later Step replaces it."""
        draft = active.draft
        assert draft is not None
        now = self._door.clock.now_ms()
        active.end_stream()
        finish = FinishPart("error", now, "context_full", "The history is too long for the model.")
        active.draft = None
        await active.put_message("updated", draft.message(now).closed(finish))

    async def _compact(self, active: ActiveRun) -> None:
        await self._begin_step(active, is_summary=True)
        # Read after the Step began: every message before the summary is part of it.
        history = await active.with_store(active.history.read)
        await compact(active, self._model_call, history, self._prompts.summary)

    async def _begin_title(self, active: ActiveRun) -> None:
        config, run, session = active.workspace.config, active.run, active.state.session
        is_wanted = config.runs.titles and session.title_is_makeshift and not run.options.parent_run_id
        if is_wanted and active.title is None:
            try:
                small = await self._models.choose_small(config, run.options.model or session.model)
            except BadConfig:
                return  # no small model: skip the title
            if small.writes_titles:
                active.title = self._spawn(make_title(active, small, self._prompts.title), f"title of run {active.id}")


async def _end_all(active: ActiveRun, work: asyncio.Task[End]) -> None:
    """End the work and the other tasks, the processes and the threads of a Run."""
    # A list, not a set: the order must be the same in each simulation.
    others = (active.title, active.settling, *active.hook_tasks)
    tasks: list[asyncio.Task[Any]] = [task for task in (work, *others) if task is not None]
    for task in tasks:
        task.cancel()
    # Concurrently: a task that cannot be cancelled must not keep processes alive.
    await asyncio.gather(asyncio.wait(tasks), active.background.end_all(BACKGROUND_GRACE_S))
    await active.background.end_all(BACKGROUND_GRACE_S)  # started by a call while it was being cancelled
    if active.settling is not None and not active.settling.done():  # as this task may be
        active.settling.cancel()
        await asyncio.wait({active.settling})
    await active.threads.idle()


def _drop_last_message(active: ActiveRun, verdict: Verdict, error: Exception) -> None:
    verdict.outcome, verdict.reason = "failed", "internal"
    verdict.error = f"The answer could not be stored ({type(error).__name__}); see the server's log."
    active.draft = active.draft.blank() if active.draft else None
    active.open_calls.clear()
    active.unconfirmed.clear()
    # The usage itself may be what cannot be stored.
    active.usage, active.child_usage = active.run.usage, active.run.child_usage
    verdict.usage = active.usage


def _verdict_of(work: asyncio.Task[End]) -> Verdict:
    if work.cancelled():
        return Verdict("stopped")
    error = work.exception()
    match error:
        case None:
            end = work.result()
            return Verdict(end.outcome, end.reason, end.error, finish_reason=end.finish)
        case ShuttingDown():
            return Verdict("stopped")  # starting a child Run was refused
        case RunIsStopping() | RunNotActive():
            return Verdict("stopped")
        case KedgeError():
            return Verdict("failed", reason_of(error.code), error.message)
        case _:
            log.error("unexpected error in a run", exc_info=error)
            return Verdict("failed", "internal", f"Internal error ({type(error).__name__}); see the server's log.")
