"""The engine: everything a front door can ask for, in the words of the core. HTTP is one such front door."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from kedge.agent.model_call import Asking
from kedge.agent.model_choice import ModelChooser, RunModel
from kedge.agent.runner import NoPrompts, Prompts, Runner
from kedge.agent.tool_calls import Calls
from kedge.config.schema import Config
from kedge.core.commands import (
    Cancel,
    CancelRun,
    ClearQueue,
    EditRun,
    FoldRun,
    MoveRun,
    Submit,
    WhenBusy,
    when_busy_default,
)
from kedge.core.events import CancelMarked, LaneEvent, RunCancelMarked, RunEnded, RunResumed, RunStarted
from kedge.core.lane import Covered, covered_by
from kedge.core.records import Attachment, Prompt, RunOptions, RunRecord, SessionRecord, content_digest
from kedge.core.transcript import Message
from kedge.engine.asks import Approvals
from kedge.engine.attached_files import with_contents
from kedge.engine.door import RETRY_S, RETRY_S_MAX, Door
from kedge.engine.forks import FORK_MESSAGES_MAX, for_agent, forked
from kedge.engine.lane_state import Addition, Compose, Draught, OpenLane
from kedge.engine.ports import Clock, Encoder, Ids, Machine
from kedge.engine.recovery import Recovery
from kedge.engine.tool_processes import NoMachine
from kedge.engine.undo import Undo
from kedge.engine.user_commands import Shell
from kedge.engine.workspaces import MakeSource, Workspace, Workspaces
from kedge.errors import (
    Invalid,
    KedgeError,
    RunNotFound,
    RunNotQueued,
    ShuttingDown,
    StoreUnavailable,
    TooLarge,
)
from kedge.store.base import SearchHit, Store
from kedge.tools.base import Tool
from kedge.tools.registry import Toolset
from kedge.waiting import wait_uncancelled

log = logging.getLogger("kedge.engine")

#: Time for readers to take the last events when the server stops. Seconds.
LAST_READ_S = 1.0
#: What the transcript shows of a summary that was asked for.
SUMMARY_PROMPT = "Summarize this session."


class Cancelled(Struct, frozen=True):
    """What a cancel covered. `mark` is None when there was nothing to cover."""

    mark: int | None
    covered: tuple[Covered, ...]


class Engine:
    def __init__(
        self,
        store: Store,
        clock: Clock,
        ids: Ids,
        encoder: Encoder,
        models: ModelChooser,
        config: Config,
        tools: tuple[Tool, ...] = (),
        machine: Machine | None = None,
        prompts: Prompts | None = None,
        make_source: MakeSource | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._ids = ids
        self.config = config
        self._models = models
        self._door = Door(store, clock, ids, self)
        self._machine = machine or NoMachine()
        self.workspaces = Workspaces(store, clock, ids, encoder, config, make_source, self._abandoned)
        asking = Asking(self._door, clock, ids)
        calls = Calls(self._door, store, clock, ids, asking, Toolset(tools), self._machine, self)
        choose = (self._model_for, self._small_model_for)
        self._runner = Runner(self._door, store, clock, ids, asking, calls, prompts or NoPrompts(), *choose)
        self.approvals = Approvals(store, self._door, self.workspaces, clock, ids)
        self.undo = Undo(store, self._door, self.workspaces)
        self.shell = Shell(self._door, self.workspaces, self._machine, clock, ids)
        self._closing = False
        #: Until every workspace is known to be whole or was set aside: no Run of one that is damaged may begin.
        self._recovering = True
        self._leaving: asyncio.Future[None]  # done when it begins to close
        self._stopped: asyncio.Future[None]
        self._cancels: dict[tuple[str, str], asyncio.Task[None]] = {}

    # --- life ----------------------------------------------------------------------------------------------------

    async def open(self, first: Callable[[], None] = lambda: None) -> None:
        """Open the store and go on where the last process stopped. `first`: done in between, and may refuse."""
        self._leaving, self._stopped = (asyncio.get_running_loop().create_future() for _ in range(2))
        await self._store.open()
        try:
            first()
        except BaseException:
            await self._store.close()  # no Run has been touched: the next process finds them as this one did
            raise
        recovery = Recovery(self._store, self._door, self.workspaces, self._clock, self._ids, self.config)
        lanes, self._recovering = await recovery.go_on(), False
        for lane in lanes:
            self.reconcile(lane)
        self.workspaces.look_again()

    async def close(self) -> None:
        """In order: accept nothing more, stop the Runs, wait for their ends, end the streams, close the store."""
        if self._leaving.done():
            return
        self._closing = True
        self._leaving.set_result(None)
        await self.shell.close()
        await self._runner.close(self.config.runs.cleanup_s + self.config.server.shutdown_s)
        await self._machine.close()
        self._door.closing = True
        await self._door.drain()
        feeds = [workspace.feed for workspace in self.workspaces.all()]
        self.workspaces.close_all()
        self._stopped.set_result(None)
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_READ_S):
                for feed in feeds:
                    await feed.wait_left()
        await self._models.close()
        await self._store.close()

    def refuse_new_if_unused(self) -> bool:
        """For a server that leaves when nobody uses it: decided and in force at once, so that no client can come in
        between and be thrown out."""
        self._closing = self._closing or self.workspaces.is_unused
        return self._closing

    def refuse_new_if_idle(self) -> bool:
        """For whoever wants to shut down without interrupting anybody: the same, with workspaces open."""
        self._closing = self._closing or all(workspace.is_idle for workspace in self.workspaces.all())
        return self._closing

    @property
    def is_closing(self) -> bool:
        return self._closing

    @property
    def is_busy(self) -> bool:
        """Whether a Run is active. May be called from any thread."""
        return self._runner.is_busy

    # --- reacting to what is durable -----------------------------------------------------------------------------

    def react(self, lane: OpenLane, events: tuple[LaneEvent, ...]) -> None:
        if self._recovering:
            return  # each Lane is reconciled once all are recovered
        for event in events:
            match event:
                case RunStarted(run_id=run_id) | RunResumed(run_id=run_id):
                    # A Run started while the server closes has not begun a Step: the next process goes on with it.
                    if not self._closing:
                        self._start(lane, run_id)
                case CancelMarked(run_id=run_id) | RunCancelMarked(run_id=run_id):
                    self._runner.stop(lane.session.id, run_id)
                case _:
                    pass
        if any(isinstance(event, RunEnded) for event in events) and not self._closing:
            self.workspaces.look_again()

    def reconcile(self, lane: OpenLane) -> None:
        if self._closing or self._recovering:
            return
        if lane.deleted:
            self.workspaces.get(lane.session.workspace_id).forget(lane.session.id)
        elif (active := lane.lane.active) is not None:
            if not self._runner.is_at_work(lane.session.id, active.run_id):
                self._start(lane, active.run_id)
            if lane.lane.covers(active):
                self._runner.stop(lane.session.id, active.run_id)
        self.workspaces.look_again()

    def _start(self, lane: OpenLane, run_id: str) -> None:
        workspace = self.workspaces.get(lane.session.workspace_id)
        try:
            workspace.look_at_config()
        except Exception:  # an accepted Run is worked on, whatever somebody has put into a file
            log.exception("the configuration of %s cannot be read again; what was read stays", workspace.record.path)
        self._runner.start(lane, lane.runs[run_id], workspace)

    def _abandoned(self, workspace: Workspace) -> None:
        """All clients have left: Runs whose submitter wished so are cancelled, the others go on."""
        for run in workspace.live_runs():
            key = (workspace.id, run.run_id)
            wished = run.options.on_disconnect == "cancel" and run.folded_into is None
            if wished and not run.stopping and key not in self._cancels:
                work = self._cancel_abandoned(workspace, run.run_id, lambda: not workspace.claims.held)
                task = asyncio.get_running_loop().create_task(work)
                self._cancels[key] = task
                task.add_done_callback(partial(self._cancels.pop, key))

    async def _cancel_abandoned(
        self, workspace: Workspace, run_id: str, is_wanted: Callable[[], bool] = lambda: True
    ) -> None:
        """Until the store takes it, or nobody wants it any more: a client may have come back meanwhile."""
        wait_s = RETRY_S
        while not self._closing and is_wanted():
            try:
                await self.cancel_run(workspace, run_id)
            except StoreUnavailable as error:
                log.warning("run %s was abandoned and could not be cancelled yet: %s", run_id, error)
            except KedgeError as error:
                log.warning("run %s was abandoned and cannot be cancelled: %s", run_id, error)
                return
            else:
                return
            await asyncio.sleep(wait_s)
            wait_s = min(wait_s * 2, RETRY_S_MAX)

    async def _model_for(self, lane: OpenLane, run: RunRecord) -> RunModel:
        config = self.workspaces.get(run.workspace_id).config
        return await self._models.choose(config, run.options.model or lane.session.model)

    async def _small_model_for(self, lane: OpenLane, run: RunRecord) -> RunModel:
        config = self.workspaces.get(run.workspace_id).config
        return await self._models.choose_small(config, run.options.model or lane.session.model)

    async def run_child(self, parent: RunRecord, prompt: str, title: str) -> RunRecord:
        """The Run of a read-only agent, in a child session: accepted like every Run, and ended before this returns."""
        workspace = self.workspaces.get(parent.workspace_id)
        family = (await self.workspaces.lane(workspace, parent.session_id)).session
        session, options = for_agent(family, parent, title, self._ids.new("s"), self._clock.now_ms())
        with self.workspaces.in_use(workspace):
            lane = await self._make_session(workspace, session)
            child = self._ids.new("r")
            accepting = asyncio.ensure_future(self.submit(workspace, session.id, Prompt(prompt), options, child))
            try:
                await asyncio.shield(accepting)
                return await (asyncio.shield(lane.end_of(child)) if child in lane.runs else self.run(workspace, child))
            except (asyncio.CancelledError, StoreUnavailable):
                await wait_uncancelled([asyncio.ensure_future(self._end_child(workspace, lane, child, accepting))])
                raise

    async def _end_child(
        self, workspace: Workspace, lane: OpenLane, run_id: str, accepting: asyncio.Future[RunRecord]
    ) -> None:
        """Its parent stops, so it does too, also if it was accepted in doubt; the parent's end waits for this one."""
        with suppress(KedgeError):
            await accepting
        await self._cancel_abandoned(workspace, run_id)
        if run_id in lane.runs:
            ended: asyncio.Future[Any] = lane.end_of(run_id)
            await asyncio.wait({ended, self._leaving}, return_when=asyncio.FIRST_COMPLETED)
            # A server that leaves does not begin what it has accepted: that is for the next process to end.
            if self._runner.is_at_work(lane.session.id, run_id):
                await asyncio.wait({ended})

    # --- runs ----------------------------------------------------------------------------------------------------

    async def submit(
        self,
        workspace: Workspace,
        session_id: str,
        prompt: Prompt,
        options: RunOptions,
        run_id: str | None = None,
        when_busy: WhenBusy | None = None,
    ) -> RunRecord:
        """Accept a prompt: durable when this returns."""
        self._check_open()
        configured = workspace.config.runs.when_busy
        if when_busy is None:
            when_busy = when_busy_default(has_own_run_id=run_id is not None) if configured == "auto" else configured
        content = content_digest(session_id, prompt, options)
        with self.workspaces.in_use(workspace):  # from here on: a server that is shut down when idle waits for it
            try:
                filled = await with_contents(prompt, workspace.root)
            except (Invalid, TooLarge):
                known = await self._store.run(workspace.id, run_id) if run_id else None
                if known is None or known.content != content:
                    raise
                return known  # the answer was lost; the files that it named may be gone by now
            new = RunRecord(
                run_id or self._ids.new("r"),
                session_id,
                workspace.id,
                seq=0,
                prompt=filled,
                options=options,
                content=content,
                accepted_at=0,
            )
            command = Submit(
                new.run_id,
                new.content,
                when_busy,
                self._clock.now_ms(),
                queue_runs_max=workspace.config.runs.queue_runs_max,
            )
            lane = await self.workspaces.lane(workspace, session_id)
            decided = await self._door.command(lane, command, accept=new, is_new_id=run_id is None)
            return decided.runs.get(new.run_id) or await self.run(workspace, new.run_id)

    async def summarize(self, workspace: Workspace, session_id: str) -> RunRecord:
        """A Run like any other, that replaces the history of the session by a summary."""
        return await self.submit(
            workspace, session_id, Prompt(SUMMARY_PROMPT), RunOptions(purpose="summary"), when_busy="queue"
        )

    async def cancel(self, workspace: Workspace, session_id: str) -> Cancelled:
        with self.workspaces.in_use(workspace):
            lane = await self.workspaces.lane(workspace, session_id)
            return await self._cancel(lane, Cancel(self._clock.now_ms()))

    async def cancel_run(self, workspace: Workspace, run_id: str) -> Cancelled:
        with self.workspaces.in_use(workspace):
            lane = await self._lane_of(workspace, run_id)
            return await self._cancel(lane, CancelRun(run_id, self._clock.now_ms()))

    async def clear_queue(self, workspace: Workspace, session_id: str) -> Cancelled:
        with self.workspaces.in_use(workspace):
            lane = await self.workspaces.lane(workspace, session_id)
            return await self._cancel(lane, ClearQueue(self._clock.now_ms()))

    async def _cancel(self, lane: OpenLane, command: Cancel | CancelRun | ClearQueue) -> Cancelled:
        decided = await self._door.command(lane, command)
        covered = covered_by(decided.before, command)
        if not isinstance(command, Cancel) or not covered:
            return Cancelled(None, covered)
        return Cancelled(max(lane.lane.mark, *(run.seq for run in covered)), covered)

    async def edit_run(
        self, workspace: Workspace, run_id: str, text: str, attachments: tuple[Attachment, ...] | None = None
    ) -> RunRecord:
        """`attachments`: they take the place of those it has; None: it keeps them."""
        given = None if attachments is None else await with_contents(Prompt(text, attachments), workspace.root)

        def edited(events: tuple[LaneEvent, ...], runs: dict[str, RunRecord]) -> Addition:
            run = runs[run_id]
            return Addition(runs={run_id: replace(run, prompt=given or Prompt(text, run.prompt.attachments))})

        return await self._change(workspace, EditRun(run_id, self._clock.now_ms()), edited)

    async def move_run(self, workspace: Workspace, run_id: str, before: str | None) -> RunRecord:
        with self.workspaces.in_use(workspace):
            lane = await self._lane_of(workspace, run_id)
            if before is not None and await self._lane_of(workspace, before) is not lane:
                raise RunNotQueued(f"run {before} is not queued in the session of run {run_id}")
            return await self._change(workspace, MoveRun(run_id, before, self._clock.now_ms()))

    async def fold_run(self, workspace: Workspace, run_id: str) -> RunRecord:
        return await self._change(workspace, FoldRun(run_id, self._clock.now_ms()))

    async def _change(
        self, workspace: Workspace, command: EditRun | MoveRun | FoldRun, compose: Compose | None = None
    ) -> RunRecord:
        with self.workspaces.in_use(workspace):
            lane = await self._lane_of(workspace, command.run_id)
            await self._door.command(lane, command, compose=compose)
            return await self.run(workspace, command.run_id)

    async def run(self, workspace: Workspace, run_id: str) -> RunRecord:
        for lane in workspace.lanes.values():
            if not lane.stale and (run := lane.runs.get(run_id)):
                return run
        if run := await self._store.run(workspace.id, run_id):
            return run
        raise RunNotFound(f"Run {run_id} does not exist in workspace {workspace.id}.")

    async def runs(self, workspace: Workspace, session_id: str, limit: int) -> list[RunRecord]:
        await self.workspaces.lane(workspace, session_id)
        return await self._store.runs(session_id, limit)

    async def queue(self, workspace: Workspace, session_id: str) -> list[RunRecord]:
        """The queued Runs in the order in which they will start."""
        lane = await self.workspaces.lane(workspace, session_id)
        await self._door.refresh(lane)
        return [lane.runs[run.run_id] for run in lane.lane.queue]

    async def wait_run(self, workspace: Workspace, run_id: str, timeout_s: float) -> RunRecord:
        """The Run, once it has ended; or as it is when the time is over, or the server stops."""
        run = await self.run(workspace, run_id)
        if run.state == "ended":
            return run
        lane = await self.workspaces.lane(workspace, run.session_id)
        await self._door.refresh(lane)
        if run_id in lane.runs:
            over: set[asyncio.Future[Any]] = {lane.end_of(run_id), self._stopped}
            await asyncio.wait(over, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        return await self.run(workspace, run_id)

    async def _lane_of(self, workspace: Workspace, run_id: str) -> OpenLane:
        run = await self.run(workspace, run_id)
        return await self.workspaces.lane(workspace, run.session_id)

    # --- sessions ------------------------------------------------------------------------------------------------

    async def create_session(self, workspace: Workspace, title: str) -> SessionRecord:
        self._check_open()
        now = self._clock.now_ms()
        session = SessionRecord(self._ids.new("s"), workspace.id, title, now, now)
        with self.workspaces.in_use(workspace):
            await self._make_session(workspace, session)
        return session

    async def _make_session(self, workspace: Workspace, session: SessionRecord, *messages: Message) -> OpenLane:
        def made(draught: Draught, session: SessionRecord) -> SessionRecord:
            draught.messages |= {message.id: message for message in messages}
            return session

        lane = self.workspaces.new_lane(workspace, session)
        await self._door.put(lane, made, change="created")
        return lane

    async def sessions(self, workspace: Workspace) -> list[SessionRecord]:
        return await self._store.sessions(workspace.id)

    async def session(self, workspace: Workspace, session_id: str) -> SessionRecord:
        return (await self.workspaces.lane(workspace, session_id)).session

    async def change_session(
        self, workspace: Workspace, session_id: str, title: str | None, model: str | None = None
    ) -> SessionRecord:
        """Give it another title, or a model of its own (empty: the configured one)."""

        def changed(draught: Draught, session: SessionRecord) -> SessionRecord:
            if title is not None:
                session = replace(session, title=title, title_is_makeshift=False)
            return session if model is None else replace(session, model=model)

        with self.workspaces.in_use(workspace):
            lane = await self.workspaces.lane(workspace, session_id)
            await self._door.put(lane, changed)
            return lane.session

    async def delete_session(self, workspace: Workspace, session_id: str) -> None:
        """Cancel its Runs, wait for their ends, then remove it."""
        with self.workspaces.in_use(workspace):
            lane = await self.workspaces.lane(workspace, session_id)
            lane.deleting += 1
            try:
                await self._door.command(lane, Cancel(self._clock.now_ms()))
                for end in [lane.end_of(run_id) for run_id in lane.runs]:
                    over: set[asyncio.Future[Any]] = {end, self._stopped}
                    await asyncio.wait(over, return_when=asyncio.FIRST_COMPLETED)
                    if not end.done():  # it never began here, and is for the next process to end
                        raise ShuttingDown(f"The server is shutting down; session {session_id} was not deleted.")
                await self._door.put(lane, lambda draught, session: session, change="deleted")
            finally:
                lane.deleting -= 1  # if it was refused, or nobody waits for it any more, it is as usable as before
            workspace.forget(session_id)

    async def fork_session(self, workspace: Workspace, session_id: str, message_id: str) -> SessionRecord:
        """A new session that begins with this one's messages up to and including that one."""
        self._check_open()
        with self.workspaces.in_use(workspace):
            parent = await self.session(workspace, session_id)
            messages = await self.messages(workspace, session_id, None, FORK_MESSAGES_MAX)
            new, copies = await forked(parent, messages, message_id, self._ids, self._clock.now_ms())
            await self._make_session(workspace, new, *copies)
            return new

    async def messages(self, workspace: Workspace, session_id: str, after: str | None, limit: int) -> list[Message]:
        """The transcript; a message that is streaming right now with all the text it has."""
        await self.workspaces.lane(workspace, session_id)
        stored = await self._store.messages(session_id, after, limit)
        now = self._clock.now_ms()
        return [
            draft.message(now) if not message.finish and (draft := workspace.feed.streaming(message.id)) else message
            for message in stored
        ]

    async def search(self, workspace: Workspace, query: str, limit: int) -> list[tuple[SearchHit, str]]:
        """Hits with the titles of their sessions."""
        titles = {session.id: session.title for session in await self.sessions(workspace)}
        hits = await self._store.search(workspace.id, query, limit)
        return [(hit, titles.get(hit.session_id, "")) for hit in hits]

    def _check_open(self) -> None:
        if self._closing:
            raise ShuttingDown("The server is shutting down and takes no new work; try again in a moment.")
