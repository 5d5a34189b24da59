"""The door: the one write path. No other module appends to the log or changes a record.

A write goes one way: plan, append (durable), apply, publish, react. It runs in a task of the engine, so that a caller
that is cancelled half-way cannot leave memory and store in different states. Memory follows disk, never leads it.

Nothing with a Position is published before it is durable: after a power loss the same Position would be assigned to
another event, and a client that has seen the first one would miss the second. Only text of a streaming message may be
lost.

A stop does not depend on the store. A cancel that cannot be written is kept in memory, and every later append to its
Lane decides it first: so it covers exactly the Runs accepted before it, as if it had been written at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from msgspec.structs import replace

from kedge.core.commands import Cancel, CancelRun, Command
from kedge.core.events import LaneEvent, RunAccepted
from kedge.core.records import Records, SessionRecord, restore
from kedge.engine.append import Append
from kedge.engine.draft import Draft
from kedge.engine.feed import Frame
from kedge.engine.lane_state import LaneState, PendingCancel
from kedge.engine.ports import Clock, Ids
from kedge.engine.run_end import end_waiting_run
from kedge.errors import SessionNotFound, StoreError, StoreUnavailable, VersionConflict
from kedge.store.base import Store, Write
from kedge.waiting import backoff_s, retrieve_exception

log = logging.getLogger("kedge.engine")

#: Attempts to write after version conflicts: another process wrote the Lane in between. Items.
ATTEMPTS_MAX = 5
#: First and longest delay before retrying a store that did not answer. Seconds.
RETRY_S, RETRY_S_MAX = 0.1, 5.0

#: Fills an append. Runs under the Lane's lock, and again after a version conflict, so it must be repeatable. Raising
#: an error writes nothing.
Plan = Callable[[Append], Awaitable[None]]
#: Writes a plan in `Door.write_several`.
WritePlan = Callable[[Plan], Awaitable[Append]]

T = TypeVar("T")


def deciding(command: Command) -> Plan:
    """Return a plan that only decides a command."""

    async def plan(tx: Append) -> None:
        tx.decide(command)

    return plan


def no_users() -> bool:
    """The default of `has_users`: the server has only its owner."""
    return False


async def _nothing(tx: Append) -> None:
    """Write only the pending cancels."""


class Reactions(Protocol):
    """The engine's reactions to durable events. They must not block or raise."""

    def react(self, state: LaneState, events: tuple[LaneEvent, ...]) -> None: ...

    def reconcile(self, state: LaneState) -> None:
        """Make tasks match a Lane that was reloaded after an append with an unknown result."""


class Door:
    """Writes through `write`; reads through `store`."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        ids: Ids,
        reactions: Reactions,
        has_users: Callable[[], bool] = no_users,
    ) -> None:
        """`has_users`: whether the server has users besides its owner, whose actions are then audited too."""
        self.store = store
        self.clock = clock
        self.ids = ids
        self._reactions = reactions
        self.has_users = has_users
        self._tasks: set[asyncio.Task[Any]] = set()
        self._catching_up: set[asyncio.Task[None]] = set()
        self.closing = False

    # --- writes --------------------------------------------------------------------------------------------------

    async def write(self, state: LaneState, plan: Plan, keep: Cancel | CancelRun | None = None) -> Append:
        """Write what the plan decides and puts; return the append once it is durable and acted upon.

        `keep`: the cancel that the plan decides. If the store does not take it, it is kept and StoreUnavailable
        raised."""
        return await self._shielded(self._write(state, plan, keep))

    async def write_several(self, state: LaneState, work: Callable[[WritePlan], Awaitable[T]]) -> T:
        """Await work that writes several plans: no other write to this Lane happens in between.

        The work must be short, since a cancel waits for it."""
        return await self._shielded(self._write_several(state, work))

    async def _write_several(self, state: LaneState, work: Callable[[WritePlan], Awaitable[T]]) -> T:
        async with state.lock:
            return await work(lambda plan: self._write_locked(state, plan, None))

    async def _write(self, state: LaneState, plan: Plan, keep: Cancel | CancelRun | None) -> Append:
        async with state.lock:
            return await self._write_locked(state, plan, keep)

    async def _write_locked(self, state: LaneState, plan: Plan, keep: Cancel | CancelRun | None) -> Append:
        for _ in range(ATTEMPTS_MAX):
            sent: Append | None = None
            try:
                if state.stale:
                    await self._reload(state)
                tx = Append(state, self.clock.now_ms(), self.ids, audits_owner=self.has_users())
                tx.decide_pending_cancels()
                await plan(tx)
                end_waiting_run(tx)
                if (write := tx.as_write()) is None:
                    state.pending_cancels.clear()  # there is nothing left that they cover
                    return tx
                if state.deleted:
                    raise SessionNotFound(f"Session {state.session.id} was deleted.")
                sent = tx
                last = await self.store.append(write)
            except VersionConflict:
                state.stale = True
                continue
            except StoreUnavailable:
                self._keep(state, sent, keep)
                raise
            self._apply(tx, last)
            self._publish(tx, last)
            self._settle(tx)
            self._reactions.react(state, tx.events)
            return tx
        self._catch_up_later(state)
        raise VersionConflict(f"Session {state.session.id} is being changed by another server. Try again.")

    def _keep(self, state: LaneState, sent: Append | None, cancel: Cancel | CancelRun | None) -> None:
        """Reload the Lane later, and write the cancels then. `sent`: the append with an unknown result."""
        if sent is not None:
            state.stale = True
            for pending, mark in sent.pending_cancels:
                pending.mark = mark
        if cancel is not None:
            mark = sent.lane.mark if sent is not None and isinstance(cancel, Cancel) else 0
            state.pending_cancels.append(PendingCancel(cancel, mark))
        self._catch_up_later(state)

    def _apply(self, tx: Append, last: int) -> None:
        state, first = tx.state, last - len(tx.log) + 1
        for position, event in enumerate(tx.log, first):
            if isinstance(event, RunAccepted):
                tx.change_run(replace(tx.runs[event.run_id], position=position))
        state.lane, state.session = tx.lane, tx.session
        state.deleted = tx.session_change == "deleted"
        state.runs |= tx.runs
        state.pending_cancels.clear()

    def _publish(self, tx: Append, last: int) -> None:
        state, first = tx.state, last - len(tx.log) + 1
        feed, workspace_id = state.feed, state.session.workspace_id
        if not tx.log:
            return None
        if not feed.has_readers:
            return feed.skip(last)
        try:
            frames = self._frames(tx, first)
        except Exception:
            # The events are durable, so memory must follow, even if they cannot be shown to readers.
            log.exception("events %d to %d of %s could not be encoded", first, last, workspace_id)
            return feed.skip(last)
        return feed.publish(first, frames)

    def _frames(self, tx: Append, first: int) -> list[Frame]:
        feed, session = tx.state.feed, tx.session
        records: Records = {
            "session": {} if tx.state.deleted else {session.id: feed.view(session)},
            "run": {**tx.state.runs, **tx.runs},
            "message": tx.messages,
            "ask": tx.asks,
        }
        return [
            Frame(position, session.id, "all", feed.encoder.encode(position, session.id, event, records))
            for position, event in enumerate(tx.log, first)
        ]

    def _settle(self, tx: Append) -> None:
        """Resolve the futures of Asks and Runs that have ended."""
        state = tx.state
        for ask in tx.asks.values():
            if ask.state == "pending":
                state.asks[ask.id] = ask
                continue
            state.asks.pop(ask.id, None)
            answered = state.settled.pop(ask.id, None)
            if answered is not None and not answered.done():
                answered.set_result(ask)
        for run in tx.runs.values():
            if run.state == "ended":
                del state.runs[run.run_id]
                if ended := state.ended.pop(run.run_id, None):
                    ended.set_result(run)

    async def revoke_grant(self, workspace_id: str, grant_id: str) -> None:
        """Delete a grant. It belongs to a workspace, not to a Lane, and revoking it emits no event."""
        await self._shielded(self.store.append(Write(workspace_id, deleted_grants=(grant_id,))))

    async def give_up_copy(self, session: SessionRecord) -> None:
        """Delete the copied messages of a session that was never stored, and that no client has seen."""
        await self._shielded(self.store.append(Write(session.workspace_id, deleted_sessions=(session.id,))))

    async def run_to_end(self, work: Coroutine[Any, Any, T]) -> T:
        """Await work that consists of several writes; it ends even if the caller is cancelled."""
        return await self._shielded(work)

    async def save_tails(self, state: LaneState, draft: Draft) -> None:
        """Save the new text of a streaming message. This changes a record without an event."""
        await self._shielded(self._save_tails(state, draft))

    async def _save_tails(self, state: LaneState, draft: Draft) -> None:
        # Under the lock, so that no tail follows the complete message: its writer closes the draft first.
        async with state.lock:
            tails = draft.take_unsaved()
            if draft.closed or not (tails or draft.is_uncertain):
                return
            write = Write(state.session.workspace_id, tails=tails, durable=False)
            if draft.is_uncertain:
                # The last tail may or may not be stored, so put the complete message instead.
                write = replace(write, tails=(), messages=(draft.message(self.clock.now_ms()),))
            try:
                await self.store.append(write)
            except StoreUnavailable:
                draft.is_uncertain = True
                raise
            draft.is_uncertain = False

    @property
    def is_catching_up(self) -> bool:
        """True if an append has failed and its Lane is not reloaded yet: the store may be away."""
        return bool(self._catching_up)

    # --- reloading -----------------------------------------------------------------------------------------------

    async def refresh(self, state: LaneState) -> None:
        """Reload the Lane if it is stale."""
        async with state.lock:
            if state.stale:
                await self._reload(state)

    def _catch_up_later(self, state: LaneState) -> None:
        """Reload a stale Lane and write its pending cancels once the store answers."""
        if state.catching_up is None:
            state.catching_up = asyncio.get_running_loop().create_task(self._catch_up(state))
            self._tasks.add(state.catching_up)
            state.catching_up.add_done_callback(self._tasks.discard)
            self._catching_up.add(state.catching_up)
            state.catching_up.add_done_callback(self._catching_up.discard)

    async def _catch_up(self, state: LaneState) -> None:
        delays_s = backoff_s(RETRY_S, RETRY_S_MAX)
        try:
            while (state.stale or state.pending_cancels) and not self.closing:
                with suppress(StoreUnavailable, StoreError):  # a damaged page may belong to another workspace
                    await self._write(state, _nothing, None)
                    continue
                await asyncio.sleep(next(delays_s))
        finally:
            state.catching_up = None

    async def _reload(self, state: LaneState) -> None:
        """Load the Lane from the store and resolve the futures of Runs and Asks that have ended meanwhile."""
        session_id, workspace_id = state.session.id, state.session.workspace_id
        record, live = await self.store.lane(session_id)
        _, head = await self.store.bounds(workspace_id)
        state.lane = restore(record, live)
        state.runs = {run.run_id: run for run in live}
        session = await self.store.session(workspace_id, session_id)
        state.deleted = session is None
        if state.deleted:
            state.pending_cancels.clear()
        state.session = session or state.session
        state.asks = {ask.id: ask for ask in await self.store.session_asks(session_id)}
        for ask_id in [ask_id for ask_id in state.settled if ask_id not in state.asks]:
            if ask := await self.store.ask(workspace_id, ask_id):
                answered = state.settled.pop(ask_id)
                if not answered.done():  # the tool call that waited may have been cancelled
                    answered.set_result(ask)
        for run_id in [run_id for run_id in state.ended if run_id not in state.runs]:
            if run := await self.store.run(workspace_id, run_id):
                state.ended.pop(run_id).set_result(run)
        state.stale = False
        if state.loaded:
            state.feed.skip(head)
            self._reactions.reconcile(state)
        state.loaded = True

    # --- tasks ---------------------------------------------------------------------------------------------------

    async def _shielded(self, work: Coroutine[Any, Any, T]) -> T:
        """Await the work; if the caller is cancelled, the work still runs to its end."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return await asyncio.shield(task)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        retrieve_exception(task)  # a cancelled caller does not

    async def drain(self) -> None:
        """Wait until no write is running."""
        while self._tasks:
            await asyncio.wait(self._tasks)
