"""The engine's API in terms of core types. HTTP is one front end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any

from msgspec.structs import replace

from kedge.config.schema import Config
from kedge.core.commands import Cancel, CancelRun, ClearQueue, EditRun, FoldRun, MoveRun, WhenBusy
from kedge.core.events import CancelMarked, LaneEvent, RunCancelMarked, RunEnded, RunResumed, RunStarted
from kedge.core.extensions import AgentDefinition
from kedge.core.records import AttachmentContent, Effort, Prompt, RunOptions, RunRecord, SessionRecord, content_digest
from kedge.core.transcript import Message
from kedge.engine.abandoned_runs import AbandonedRuns
from kedge.engine.append import Append
from kedge.engine.asks import Asks
from kedge.engine.attached_files import read_files
from kedge.engine.cancels import Cancelled, Cancels
from kedge.engine.door import Door, Plan, deciding, no_users
from kedge.engine.executor import MakeExecutor
from kedge.engine.file_names import FileNames
from kedge.engine.forks import agent_session, fork, make_session
from kedge.engine.kept_registry import KeptRegistry
from kedge.engine.known_workspaces import KnownWorkspaces
from kedge.engine.lane_state import LaneState
from kedge.engine.log_trimming import LogTrimming
from kedge.engine.mode_switch import ModeSwitch
from kedge.engine.placement import OneServer, Placement
from kedge.engine.ports import Clock, Encoder, Ids, Machine
from kedge.engine.reclaiming import Reclaiming
from kedge.engine.recovery import Recovery
from kedge.engine.reports import Reports
from kedge.engine.rewind import Rewind
from kedge.engine.submission import QueueLimits, Submission, edited_prompt, filled_prompt, hooked_prompt, hooked_run
from kedge.engine.undo import Undo
from kedge.engine.user_commands import UserCommands
from kedge.engine.workspace import MakeExtensions, MakeSource, Workspace
from kedge.engine.workspaces import Workspaces
from kedge.errors import (
    DirectoryTimeout,
    Invalid,
    KedgeError,
    MessageNotFound,
    NotFound,
    RunNotFound,
    RunNotQueued,
    ShuttingDown,
    StoreUnavailable,
    TooLarge,
)
from kedge.store.base import Store
from kedge.waiting import wait_uncancelled

log = logging.getLogger("kedge.engine")
#: Time for readers to receive the last events when the server stops. Seconds.
LAST_READ_S = 1.0
#: The prompt that the transcript shows for a requested summary.
SUMMARY_PROMPT = "Summarize this session."


class Engine:
    def __init__(
        self,
        store: Store,
        clock: Clock,
        ids: Ids,
        encoder: Encoder,
        config: Config,
        machine: Machine,
        make_executor: MakeExecutor,
        make_source: MakeSource | None = None,
        make_extensions: MakeExtensions | None = None,
        placement: Placement | None = None,
        has_users: Callable[[], bool] = no_users,
    ) -> None:
        self.config = config
        self._store = store
        self._clock = clock
        self._ids = ids
        self._machine = machine
        self._door = Door(store, clock, ids, self, has_users)
        self._executor = make_executor(self._door, self)
        self._cancels = Cancels(self._door, self._executor.stop)
        self._placement = placement or OneServer(store)
        self.workspaces = Workspaces(
            store, clock, ids, encoder, config, self._placement, make_source, make_extensions, self
        )
        self.recovery = Recovery(self._door, self.workspaces, config)
        self.known_workspaces = KnownWorkspaces(self._door, self.workspaces, self._placement)
        self.reports = Reports(store, clock, self.workspaces)
        self._trimming = LogTrimming(store, config.server.log_entries_max)
        self._queue_limits = QueueLimits(
            self.workspaces, config.server.queue_mib_max, config.server.live_runs_per_user_max
        )
        self.asks = Asks(self._door, self.workspaces, self._executor.reconsider)
        self.modes = ModeSwitch(self._door, self.workspaces, machine, self._executor.reconsider)
        self.undo = Undo(self._door, self.workspaces)
        self.user_commands = UserCommands(self._door, self.workspaces, machine)
        self.kept_registry = KeptRegistry(self._door, self.workspaces)
        self.kept_commands = self.kept_registry.of_run
        self.reclaiming = Reclaiming(store)
        self.file_names = FileNames(machine)
        self.rewind = Rewind(self._door, self.workspaces, self.reclaiming)
        self._closing = False
        self._leaving: asyncio.Future[None]  # done when closing begins
        self._stopped: asyncio.Future[None]
        self.abandoned_runs = AbandonedRuns(self._door, self._lane_of, lambda: self._closing)

    # --- life cycle ----------------------------------------------------------------------------------------------

    async def open(self, first: Callable[[], Awaitable[None]] | None = None) -> None:
        """Open the store and begin recovery, in the background. `first` runs before it and may refuse to start."""
        self._leaving, self._stopped = (asyncio.get_running_loop().create_future() for _ in range(2))
        await self._store.open()
        try:
            if first is not None:
                await first()
            live = await self._placement.unserved()
        except BaseException:
            await self._store.close()  # no Run was touched
            raise
        self.recovery.start(live)
        self.workspaces.sweep()
        self.reclaiming.wake()

    async def close(self) -> None:
        """Accept no more work, stop the Runs and wait for their ends, end the streams, close the store."""
        if self._leaving.done():
            return
        self._closing = True
        self._leaving.set_result(None)
        await self.recovery.close()
        await self.user_commands.close()
        await self._executor.close(self.config.runs.cleanup_s + self.config.server.shutdown_s)
        await self.kept_registry.close()
        await self.workspaces.close_extensions()
        await self._machine.close()
        await self._trimming.close()
        await self.known_workspaces.close()
        self._door.closing = True
        await self._door.drain()
        await self.reclaiming.close()
        feeds = [workspace.feed for workspace in self.workspaces.all()]
        self.workspaces.close_all()
        self._stopped.set_result(None)
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_READ_S):
                for feed in feeds:
                    await feed.wait_left()
        await self._placement.close()
        await self._store.close()

    def refuse_new_if_unused(self) -> bool:
        """Stop accepting work if no workspace is open: checked and in force at once, so no client can slip in."""
        self._closing = self._closing or self.workspaces.is_unused
        return self._closing

    def refuse_new_if_idle(self) -> bool:
        """Stop accepting work if no Run is live, even if workspaces are open."""
        self._closing = self._closing or self.workspaces.are_idle
        return self._closing

    @property
    def is_closing(self) -> bool:
        return self._closing

    @property
    def is_busy(self) -> bool:
        """True if a Run is active. May be read from any thread."""
        return self._executor.is_busy

    # --- reactions to durable events -----------------------------------------------------------------------------

    def react(self, state: LaneState, events: tuple[LaneEvent, ...]) -> None:
        if (workspace := self.workspaces.find(state.session.workspace_id)) is None:
            return  # being recovered: its Lanes are reconciled when it is open
        self._trimming.appended(workspace)
        for event in events:
            match event:
                case RunStarted(run_id=run_id) | RunResumed(run_id=run_id):
                    # While the server closes, a started Run begins no Step: the next process continues with it.
                    if not self._closing:
                        self._start(state, run_id)
                case CancelMarked(run_id=run_id) | RunCancelMarked(run_id=run_id):
                    self._executor.stop(state.session.id, run_id)
        if any(isinstance(event, RunEnded) for event in events) and not self._closing:
            self.workspaces.sweep()

    def reconcile(self, state: LaneState) -> None:
        if self._closing or self.workspaces.find(state.session.workspace_id) is None:
            return  # see `react`
        if state.deleted:
            self.workspaces.get(state.session.workspace_id).forget(state.session.id)
            self.reclaiming.wake()
        elif (active := state.lane.active) is not None:
            if not self._executor.is_running(state.session.id, active.run_id):
                self._start(state, active.run_id)
            if state.lane.covers(active):
                self._executor.stop(state.session.id, active.run_id)
        self.workspaces.sweep()

    async def take_over(self) -> None:
        """Recover the workspaces that a lost node has left, and those that a client opened when the store failed."""
        if not self._closing:
            left = await self._placement.unserved()
            half = [one.record for one in self.workspaces.recovering.values()]
            left += [record for record in half if not self.workspaces.opening(record.path).locked()]
            self.recovery.start(left)
            await self.workspaces.hand_over()

    async def recover(self, workspace: Workspace) -> None:
        await self.recovery.recover(workspace)

    def _start(self, state: LaneState, run_id: str) -> None:
        workspace = self.workspaces.get(state.session.workspace_id)
        if workspace.has_directory:
            self._executor.start(state, state.runs[run_id], workspace)

    def abandoned(self, workspace: Workspace) -> None:
        self.abandoned_runs.cancel(workspace)

    # --- agents --------------------------------------------------------------------------------------------------

    async def run_child(self, parent: RunRecord, prompt: str, title: str, agent: AgentDefinition | None) -> RunRecord:
        """Execute the Run of an agent in a session of its own and return its ended record."""
        workspace = self.workspaces.get(parent.workspace_id)
        family = (await self.workspaces.lane(workspace, parent.session_id)).session
        session, options = agent_session(family, parent, agent, title, self._ids.new("s"), self._clock.now_ms())
        with self.workspaces.in_use(workspace):
            state = await make_session(self._door, self.workspaces, workspace, session)
            child = self._ids.new("r")
            submitting = self.submit(workspace, session.id, Prompt(prompt), options, child, author=parent.author)
            accepting = asyncio.ensure_future(submitting)
            try:
                await asyncio.shield(accepting)
                if child in state.runs:
                    return await asyncio.shield(state.end_of(child))
                return await self.run(workspace, child)
            except (asyncio.CancelledError, StoreUnavailable):
                await wait_uncancelled([asyncio.ensure_future(self._end_child(workspace, state, child, accepting))])
                raise

    async def _end_child(
        self, workspace: Workspace, state: LaneState, run_id: str, accepting: asyncio.Future[RunRecord]
    ) -> None:
        """Cancel an agent's Run, also if its acceptance is uncertain, and wait for its end before the parent ends."""
        with suppress(KedgeError):
            await accepting
        with suppress(KedgeError):
            await self._cancels.cancel(state, CancelRun(run_id, self._clock.now_ms(), is_abandoned=True))
        while state.catching_up is not None:  # whether it was accepted is not certain before the store answers
            await asyncio.wait({state.catching_up})
        if run_id in state.runs:
            ended: asyncio.Future[Any] = state.end_of(run_id)
            await asyncio.wait({ended, self._leaving}, return_when=asyncio.FIRST_COMPLETED)
            # A closing server does not start accepted Runs: the next process ends this one. It also ends those whose
            # end the store does not take in time.
            if self._executor.is_running(state.session.id, run_id):
                await asyncio.wait({ended, self._stopped}, return_when=asyncio.FIRST_COMPLETED)

    # --- runs ----------------------------------------------------------------------------------------------------

    async def submit(
        self,
        workspace: Workspace,
        session_id: str,
        prompt: Prompt,
        options: RunOptions,
        run_id: str | None = None,
        when_busy: WhenBusy | None = None,
        contents: tuple[AttachmentContent, ...] = (),
        author: str = "",
    ) -> RunRecord:
        """Accept a prompt: durable when this returns. `contents`: its attachments, but for those named by path only."""
        self._check_open()
        content = content_digest(session_id, prompt, options)
        with self.workspaces.in_use(workspace):  # from here on, a server that shuts down when idle waits for this
            try:
                await workspace.reload_config()
                filled, files, options = await filled_prompt(workspace, prompt, options)
            except (Invalid, NotFound, TooLarge, DirectoryTimeout):
                known = await self._store.run(workspace.id, run_id) if run_id else None
                if known is None or known.content != content:
                    raise
                return known  # a retry of an accepted prompt, whose files are gone by now
            new_id = run_id or self._ids.new("r")
            new = RunRecord(new_id, session_id, workspace.id, 0, filled, options, content, accepted_at=0, author=author)
            state = await self.workspaces.lane(workspace, session_id)
            new = await hooked_run(workspace, state, new, self._store if run_id else None)
            submission = Submission(workspace, new, run_id is not None, when_busy, contents + files)
            with self._queue_limits.pending_run(new):
                plan = partial(submission.plan, store=self._store, limits=self._queue_limits)
                tx = await self._door.write(state, plan)
            return tx.runs.get(new.run_id) or await self.run(workspace, new.run_id)

    async def summarize(self, workspace: Workspace, session_id: str, author: str = "") -> RunRecord:
        """Accept a Run that replaces the history of the session by a summary."""
        prompt, options = Prompt(SUMMARY_PROMPT), RunOptions(purpose="summary")
        return await self.submit(workspace, session_id, prompt, options, when_busy="queue", author=author)

    async def cancel(self, workspace: Workspace, session_id: str, author: str = "") -> Cancelled:
        with self.workspaces.in_use(workspace):
            state = await self.workspaces.lane(workspace, session_id)
            return await self._cancels.cancel(state, Cancel(self._clock.now_ms(), author))

    async def cancel_run(self, workspace: Workspace, run_id: str, author: str = "") -> Cancelled:
        with self.workspaces.in_use(workspace):
            state = await self._lane_of(workspace, run_id)
            return await self._cancels.cancel(state, CancelRun(run_id, self._clock.now_ms(), author=author))

    async def clear_queue(self, workspace: Workspace, session_id: str, author: str = "") -> Cancelled:
        with self.workspaces.in_use(workspace):
            state = await self.workspaces.lane(workspace, session_id)
            return await self._cancels.cancel(state, ClearQueue(self._clock.now_ms(), author))

    async def edit_run(
        self,
        workspace: Workspace,
        run_id: str,
        prompt: Prompt,
        contents: tuple[AttachmentContent, ...] = (),
        *,
        keeps_attachments: bool = False,
        author: str = "",
    ) -> RunRecord:
        """Change the prompt of a queued Run."""
        filled, files = await read_files(prompt, workspace.root, workspace.files)
        filled = await hooked_prompt(workspace, await self._lane_of(workspace, run_id), filled)

        async def plan(tx: Append) -> None:
            tx.decide(EditRun(run_id, tx.now, author))
            run = tx.runs[run_id]
            edited = replace(run, prompt=edited_prompt(run, filled, keeps_attachments=keeps_attachments))
            tx.change_run(edited)
            tx.attachments = contents + files
            if edited.prompt.size > run.prompt.size:
                self._queue_limits.check(tx, workspace.config.runs.queue_mib_max)

        with self._queue_limits.pending(filled):
            return await self._change(workspace, run_id, plan)

    async def move_run(self, workspace: Workspace, run_id: str, before: str | None, author: str = "") -> RunRecord:
        with self.workspaces.in_use(workspace):
            state = await self._lane_of(workspace, run_id)
            if before is not None and await self._lane_of(workspace, before) is not state:
                raise RunNotQueued(f"Run {before} is not queued in the session of run {run_id}.")
            command = MoveRun(run_id, before, self._clock.now_ms(), author)
            return await self._change(workspace, run_id, deciding(command))

    async def fold_run(self, workspace: Workspace, run_id: str, author: str = "") -> RunRecord:
        return await self._change(workspace, run_id, deciding(FoldRun(run_id, self._clock.now_ms(), author)))

    async def _change(self, workspace: Workspace, run_id: str, plan: Plan) -> RunRecord:
        with self.workspaces.in_use(workspace):
            await self._door.write(await self._lane_of(workspace, run_id), plan)
            return await self.run(workspace, run_id)

    async def run(self, workspace: Workspace, run_id: str) -> RunRecord:
        for state in workspace.lanes.values():
            if not state.stale and (run := state.runs.get(run_id)):
                return run
        if run := await self._store.run(workspace.id, run_id):
            return run
        raise RunNotFound(f"Run {run_id} not found in workspace {workspace.id}.")

    async def runs(
        self, workspace: Workspace, session_id: str, limit: int, bytes_max: int | None = None
    ) -> list[RunRecord]:
        await self.workspaces.lane(workspace, session_id)
        return await self._store.runs(session_id, limit, bytes_max)

    async def wait_run(self, workspace: Workspace, run_id: str, timeout_s: float) -> RunRecord:
        """Return the Run once it has ended, or as it is at the timeout or when the server stops."""
        run = await self.run(workspace, run_id)
        if run.state == "ended":
            return run
        state = await self.workspaces.lane(workspace, run.session_id)
        await self._door.refresh(state)
        if run_id in state.runs:
            ends: set[asyncio.Future[Any]] = {state.end_of(run_id), self._stopped}
            await asyncio.wait(ends, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        return await self.run(workspace, run_id)

    async def _lane_of(self, workspace: Workspace, run_id: str) -> LaneState:
        # A live Run is found without the store, which may be away.
        for state in workspace.lanes.values():
            if run_id in state.runs:
                return state
        run = await self.run(workspace, run_id)
        return await self.workspaces.lane(workspace, run.session_id)

    # --- sessions ------------------------------------------------------------------------------------------------

    async def create_session(self, workspace: Workspace, title: str) -> SessionRecord:
        self._check_open()
        now = self._clock.now_ms()
        session = SessionRecord(self._ids.new("s"), workspace.id, title, now, now, mode=workspace.config.mode)
        with self.workspaces.in_use(workspace):
            await make_session(self._door, self.workspaces, workspace, session)
        return session

    async def sessions(
        self,
        workspace: Workspace,
        after: tuple[int, str] | None = None,
        limit: int | None = None,
        bytes_max: int | None = None,
    ) -> list[SessionRecord]:
        return await self._store.sessions(workspace.id, after, limit, bytes_max)

    async def session(self, workspace: Workspace, session_id: str) -> SessionRecord:
        return (await self.workspaces.lane(workspace, session_id)).session

    async def change_session(
        self,
        workspace: Workspace,
        session_id: str,
        title: str | None,
        model: str | None = None,
        effort: Effort | None = None,
    ) -> SessionRecord:
        """Set the title, the model (empty: the configured one), or the effort (empty: the default of the model)."""

        async def plan(tx: Append) -> None:
            if title is not None:
                tx.session = replace(tx.session, title=title, title_is_makeshift=False)
            if model is not None:
                tx.session = replace(tx.session, model=model)
            if effort is not None:
                tx.session = replace(tx.session, effort=effort)

        with self.workspaces.in_use(workspace):
            state = await self.workspaces.lane(workspace, session_id)
            await self._door.write(state, plan)
            return state.session

    async def delete_session(self, workspace: Workspace, session_id: str, author: str = "") -> None:
        """Cancel the Runs of a session, wait for their ends, end its kept commands, then delete it."""

        async def delete(tx: Append) -> None:
            tx.session_change = "deleted"
            tx.record("delete_session", author)

        with self.workspaces.in_use(workspace):
            state = await self.workspaces.lane(workspace, session_id)
            state.deleting += 1
            try:
                await self._door.write(state, deciding(Cancel(self._clock.now_ms(), author)))
                for end in [state.end_of(run_id) for run_id in state.runs]:
                    ends: set[asyncio.Future[Any]] = {end, self._stopped}
                    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                    if not end.done():  # it never started here; the next process ends it
                        raise ShuttingDown(f"The server is shutting down; session {session_id} was not deleted.")
                await self.kept_registry.end_session(session_id)
                await self._door.write(state, delete)
            finally:
                state.deleting -= 1  # if the deletion failed or was given up, the session is usable again
            workspace.forget(session_id)
            self.reclaiming.wake()

    async def fork_session(self, workspace: Workspace, session_id: str, message_id: str) -> SessionRecord:
        """Create a session that starts with this one's messages up to and including `message_id`."""
        self._check_open()
        with self.workspaces.in_use(workspace):
            parent = await self.session(workspace, session_id)
            last = await self._store.message(workspace.id, message_id)
            if last is None or last.session_id != session_id:
                raise MessageNotFound(f"Message {message_id} not found in session {session_id}.")
            copying = fork(
                self._door, self.workspaces, workspace, parent, workspace.with_draft(last, self._clock.now_ms())
            )
            try:
                return await self._door.run_to_end(copying)
            finally:
                self.reclaiming.wake()  # what a failed fork has copied

    async def messages(
        self,
        workspace: Workspace,
        session_id: str,
        after: str | None,
        limit: int,
        bytes_max: int | None = None,
        before: str | None = None,
    ) -> list[Message]:
        """Return the transcript; a streaming message has all the text it has so far."""
        await self.workspaces.lane(workspace, session_id)
        stored = await self._store.messages(session_id, after, limit, bytes_max, before)
        return [workspace.with_draft(message, self._clock.now_ms()) for message in stored]

    def _check_open(self) -> None:
        if self._closing:
            raise ShuttingDown("The server is shutting down and accepts no new work; try again in a moment.")
