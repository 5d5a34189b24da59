"""The one door: nothing else appends to the log or changes a record. Memory follows disk, never leads it.

A command goes through in one direction: decide (pure), append (durable), apply, publish, react. It runs as a task of
the engine's own, so that a caller who goes away in the middle cannot leave memory behind the store.

Whatever has a Position is durable before anybody is told: after a loss of power the same Position would be given to
something else, and a client that has seen it would miss that. Only the text of a streaming message may be lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from msgspec.structs import replace

from kedge.core.commands import Command, Submit
from kedge.core.events import (
    Change,
    ErrorReported,
    LaneEvent,
    RunAccepted,
    RunEnded,
    RunFolded,
    RunReported,
    RunStarted,
    SessionChanged,
)
from kedge.core.lane import apply_all, decide
from kedge.core.records import LaneRecord, RecordKind, RunRecord, SessionRecord, project, restore, user_message
from kedge.engine.draft import Draft
from kedge.engine.feed import Frame, StoredRecord
from kedge.engine.lane_state import Addition, Compose, Decided, Draught, OpenLane, session_after, withdrawn_asks
from kedge.engine.ports import Clock, Ids
from kedge.errors import RunNotActive, SessionNotFound, StoreError, StoreUnavailable, VersionConflict
from kedge.store.base import LaneWrite, Store, Write
from kedge.waiting import retrieve_exception

log = logging.getLogger("kedge.engine")

#: A version conflict means that another process wrote this Lane: read it again and decide again, so many times.
DECISIONS_MAX = 5
#: First and longest wait before asking a store again that did not answer. Seconds.
RETRY_S, RETRY_S_MAX = 0.1, 5.0

#: Fills an append that decides nothing: sees the session, gives it back as it is afterwards.
Plain = Callable[[Draught, SessionRecord], SessionRecord]
#: Done ahead of an append, under the Lane's lock.
First = Callable[[], Awaitable[None]]

T = TypeVar("T")


class Reactions(Protocol):
    """What the engine does about durable facts. None of it waits, none of it fails."""

    def react(self, lane: OpenLane, events: tuple[LaneEvent, ...]) -> None: ...

    def reconcile(self, lane: OpenLane) -> None:
        """The Lane was read again, after appends whose end was unknown: see that what is active is at work."""


class Door:
    def __init__(self, store: Store, clock: Clock, ids: Ids, reactions: Reactions) -> None:
        self._store = store
        self._clock = clock
        self._ids = ids
        self._reactions = reactions
        self._under_way: set[asyncio.Task[Any]] = set()
        self.closing = False

    # --- commands ------------------------------------------------------------------------------------------------

    async def command(
        self,
        lane: OpenLane,
        command: Command,
        *,
        accept: RunRecord | None = None,
        is_new_id: bool = False,
        compose: Compose | None = None,
        first: First | None = None,
    ) -> Decided:
        """Put a command to the Lane; returns what was decided, after it is durable and acted upon.

        `accept` is the Run of a Submit; `is_new_id`: its id was made for it, nothing was accepted under it before.
        `first`: done before its append is composed, while nothing else happens in the Lane."""
        return await self._to_the_end(self._command(lane, command, accept, is_new_id, compose, first))

    async def _command(
        self,
        lane: OpenLane,
        command: Command,
        accept: RunRecord | None,
        is_new_id: bool,
        compose: Compose | None,
        first: First | None,
    ) -> Decided:
        async with lane.lock:
            for _ in range(DECISIONS_MAX):
                if lane.stale:
                    await self._reload(lane)
                if isinstance(command, Submit) and (lane.deleting or lane.deleted):
                    raise SessionNotFound(f"Session {lane.session.id} was deleted, or is being deleted.")
                if isinstance(command, Submit) and not is_new_id:
                    command = replace(command, accepted_content=await self._accepted_content(lane, command.run_id))
                before = lane.lane
                events = decide(before, command)
                if not events:
                    return Decided(before, (), {})
                if first is not None:
                    await first()
                try:
                    changed = await self._carry_out(lane, events, command.now, accept, compose)
                except VersionConflict:
                    lane.stale = True
                    continue
                except StoreUnavailable:
                    self._doubt(lane)
                    raise
                self._reactions.react(lane, events)
                return Decided(before, events, changed)
        self._doubt(lane)
        raise VersionConflict(f"session {lane.session.id} is being changed by another server; try again")

    async def _carry_out(
        self,
        lane: OpenLane,
        events: tuple[LaneEvent, ...],
        now: int,
        accept: RunRecord | None,
        compose: Compose | None,
    ) -> dict[str, RunRecord]:
        after = apply_all(lane.lane, events)
        live = lane.runs if accept is None else {**lane.runs, accept.run_id: accept}
        changed = project(live, events, after)
        addition = compose(events, changed) if compose else Addition()
        addition.asks += withdrawn_asks(lane, events, now)
        changed |= addition.runs
        if accept is not None:
            state = changed[accept.run_id].state
            changed[accept.run_id] = replace(
                changed[accept.run_id], accepted_state="active" if state == "active" else "queued"
            )
        draught = self._draught(events, changed, addition, now)
        session = session_after(lane, events, changed, draught, now)
        if session.title != lane.session.title or any(isinstance(event, RunStarted | RunEnded) for event in events):
            draught.log.append(SessionChanged(session.id, "updated"))
        last = await self._store.append(
            Write(
                session.workspace_id,
                tuple((session.id, event) for event in draught.log),
                LaneWrite(LaneRecord(session.id, after.version, after.next_seq, after.mark), lane.lane.version),
                (session,),
                tuple(changed.values()),
                tuple(draught.messages.values()),
                asks=tuple(draught.asks.values()),
            )
        )
        first = last - len(draught.log) + 1
        if accept is not None:
            place = next(index for index, event in enumerate(draught.log) if isinstance(event, RunAccepted))
            changed[accept.run_id] = replace(changed[accept.run_id], position=first + place)
        lane.lane, lane.session = after, session
        lane.runs |= changed
        self._publish(lane, first, draught, changed)
        _settle_asks(lane, draught)
        for run in changed.values():
            if run.state == "ended":
                del lane.runs[run.run_id]
                if waiting := lane.ended.pop(run.run_id, None):
                    waiting.set_result(run)
        return changed

    def _draught(
        self, events: tuple[LaneEvent, ...], changed: dict[str, RunRecord], addition: Addition, now: int
    ) -> Draught:
        draught = Draught()
        for change, message in addition.before:
            draught.put(change, message)
        for event in events:
            draught.log.append(event)
            match event:
                case RunStarted() | RunFolded():
                    draught.put("created", user_message(self._ids.new("m"), changed[event.run_id], now))
                case RunEnded(run_id=run_id, outcome=outcome, reason=reason):
                    if outcome == "failed":
                        draught.log.append(ErrorReported(run_id))
                    draught.log.append(RunReported(run_id, outcome, reason))
                case _:
                    pass
        for change, message in addition.behind:
            draught.put(change, message)
        for ask in addition.asks:
            draught.put_ask(ask)
        return draught

    def _publish(self, lane: OpenLane, first: int, draught: Draught, runs: dict[str, RunRecord]) -> None:
        feed, last = lane.feed, first + len(draught.log) - 1
        if not feed.has_readers:
            return feed.skip(last)
        try:
            frames = self._frames(lane, first, draught, runs)
        except Exception:
            # It is durable, and memory follows: nobody may miss that because it cannot be shown to some.
            log.exception("events %d to %d of %s cannot be told", first, last, lane.session.workspace_id)
            return feed.skip(last)
        return feed.publish(first, frames)

    def _frames(self, lane: OpenLane, first: int, draught: Draught, runs: dict[str, RunRecord]) -> list[Frame]:
        feed, session = lane.feed, lane.session
        records: dict[RecordKind, Mapping[str, StoredRecord]] = {
            "session": {} if lane.deleted else {session.id: session},
            "run": runs,
            "message": draught.messages,
            "ask": draught.asks,
        }
        frames: list[Frame] = []
        for position, event in enumerate(draught.log, first):
            named = feed.encoder.record_of(event)
            record = records[named[0]].get(named[1]) if named else None
            frames.append(Frame(position, session.id, "all", feed.encode(position, session.id, event, record)))
        return frames

    async def refresh(self, lane: OpenLane) -> None:
        """See to it that the Lane in memory is what the store has."""
        async with lane.lock:
            if lane.stale:
                await self._reload(lane)

    def _doubt(self, lane: OpenLane) -> None:
        """An append failed; it may have happened all the same. Find out as soon as the store answers again."""
        lane.stale = True
        task = asyncio.get_running_loop().create_task(self._find_out(lane))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _find_out(self, lane: OpenLane) -> None:
        wait_s = RETRY_S
        while lane.stale and not self.closing:
            # A damaged page, too: one of another workspace may be met once.
            with suppress(StoreUnavailable, StoreError):
                await self.refresh(lane)
                continue
            await asyncio.sleep(wait_s)
            wait_s = min(wait_s * 2, RETRY_S_MAX)

    async def _reload(self, lane: OpenLane) -> None:
        """The Lane as the store has it; whoever waits for a Run that has ended meanwhile is told."""
        record, live = await self._store.lane(lane.session.id)
        _, head = await self._store.bounds(lane.session.workspace_id)
        lane.lane = restore(record, live)
        lane.runs = {run.run_id: run for run in live}
        session = await self._store.session(lane.session.workspace_id, lane.session.id)
        lane.deleted = session is None
        lane.session = session or lane.session
        lane.asks = {ask.id: ask for ask in await self._store.session_asks(lane.session.id)}
        for ask_id in [ask_id for ask_id in lane.settled if ask_id not in lane.asks]:
            if ask := await self._store.ask(lane.session.workspace_id, ask_id):
                waiting = lane.settled.pop(ask_id)
                if not waiting.done():  # its call may have been cancelled
                    waiting.set_result(ask)
        for run_id in [run_id for run_id in lane.ended if run_id not in lane.runs]:
            if run := await self._store.run(lane.session.workspace_id, run_id):
                lane.ended.pop(run_id).set_result(run)
        lane.stale = False
        if lane.loaded:
            lane.feed.skip(head)
            self._reactions.reconcile(lane)
        lane.loaded = True

    async def _accepted_content(self, lane: OpenLane, run_id: str) -> str | None:
        run = lane.runs.get(run_id) or await self._store.run(lane.session.workspace_id, run_id)
        return run.content if run else None

    # --- writes without a decision -------------------------------------------------------------------------------

    async def put(
        self,
        lane: OpenLane,
        compose: Plain,
        *,
        of_run: str = "",
        change: Change = "updated",
        first: First | None = None,
    ) -> None:
        """A write that decides nothing. `compose` fills the draught and gives the session as it is afterwards.

        `of_run`: refused (RunNotActive) unless that Run is active. `change`: of the session as a whole. `first`: done
        before, while nothing else happens in the Lane; it may refuse."""
        await self._to_the_end(self._put(lane, compose, of_run, change, first))

    async def _put(
        self,
        lane: OpenLane,
        compose: Plain,
        of_run: str,
        change: Change,
        first: First | None = None,
    ) -> None:
        async with lane.lock:
            if lane.stale:
                await self._reload(lane)
            if lane.deleted:
                raise SessionNotFound(f"Session {lane.session.id} was deleted.")
            if of_run and (lane.lane.active is None or lane.lane.active.run_id != of_run):
                raise RunNotActive(f"run {of_run} has ended and writes no more")
            if first is not None:
                await first()
            draught = Draught()
            session = compose(draught, lane.session)
            if change == "updated" and session == lane.session and not draught.log:
                return
            if change != "updated" or session != lane.session:
                draught.log.append(SessionChanged(session.id, change))
            count = session.message_count + (draught.created if change != "created" else 0)
            session = replace(session, message_count=count, updated_at=self._clock.now_ms())
            deleted = change == "deleted"
            write = Write(
                session.workspace_id,
                tuple((session.id, event) for event in draught.log),
                sessions=() if deleted else (session,),
                runs=tuple(draught.runs.values()),
                messages=tuple(draught.messages.values()),
                asks=tuple(draught.asks.values()),
                grants=draught.grants,
                deleted_grants=draught.deleted_grants,
                files=draught.files,
                deleted_sessions=(session.id,) if deleted else (),
            )
            try:
                last = await self._store.append(write)
            except StoreUnavailable:
                self._doubt(lane)
                raise
            lane.session, lane.deleted = session, deleted
            lane.runs |= draught.runs
            self._publish(lane, last - len(draught.log) + 1, draught, {})
            _settle_asks(lane, draught)

    async def forget_grant(self, workspace_id: str, grant_id: str) -> None:
        """A standing answer belongs to a workspace, not to a Lane; taking it back is nobody's event."""
        await self._to_the_end(self._store.append(Write(workspace_id, deleted_grants=(grant_id,))))

    async def save_tails(self, lane: OpenLane, draft: Draft) -> None:
        """The text a streaming message gained: a change of a record that is no event."""
        await self._to_the_end(self._save_tails(lane, draft))

    async def _save_tails(self, lane: OpenLane, draft: Draft) -> None:
        # Under the lock, so that no tail can come behind the whole message: whoever puts that closes the draft first.
        async with lane.lock:
            tails = draft.take_unsaved()
            if draft.closed or not (tails or draft.is_doubtful):
                return
            write = Write(lane.session.workspace_id, tails=tails, durable=False)
            if draft.is_doubtful:
                # A tail may be there or not; neither may it come twice nor be left out. So the message is put whole.
                write = replace(write, tails=(), messages=(draft.message(self._clock.now_ms()),))
            try:
                await self._store.append(write)
            except StoreUnavailable:
                draft.is_doubtful = True
                raise
            draft.is_doubtful = False

    # --- tasks ---------------------------------------------------------------------------------------------------

    async def _to_the_end(self, work: Coroutine[Any, Any, T]) -> T:
        """Await this work; if the caller is cancelled, the work still goes on to its end."""
        task = asyncio.get_running_loop().create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._settled)
        return await asyncio.shield(task)

    def _settled(self, task: asyncio.Task[Any]) -> None:
        self._under_way.discard(task)
        retrieve_exception(task)  # a cancelled caller does not

    async def drain(self) -> None:
        """Until nothing is under way."""
        while self._under_way:
            await asyncio.wait(self._under_way)


def _settle_asks(lane: OpenLane, draught: Draught) -> None:
    for ask in draught.asks.values():
        if ask.state == "pending":
            lane.asks[ask.id] = ask
            continue
        lane.asks.pop(ask.id, None)
        waiting = lane.settled.pop(ask.id, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(ask)
