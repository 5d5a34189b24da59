"""Sessions derived from others: a fork, which starts with messages of its parent, and the session of an agent."""

from __future__ import annotations

from contextlib import suppress

from msgspec.structs import replace

from kedge.core.records import RunOptions, RunRecord, SessionRecord
from kedge.core.transcript import FinishPart, Message
from kedge.engine.append import Append
from kedge.engine.door import Door
from kedge.engine.lane_state import LaneState
from kedge.engine.workspace import Workspace
from kedge.engine.workspaces import Workspaces
from kedge.errors import KedgeError, ShuttingDown, StoreUnavailable

#: New ids that are drawn for one slice of a copy; the store uses those that it needs. Items.
SLICE_IDS = 100


async def make_session(
    door: Door, workspaces: Workspaces, workspace: Workspace, session: SessionRecord, *messages: Message
) -> LaneState:
    async def plan(tx: Append) -> None:
        tx.session_change = "created"
        tx.copy_messages(messages)

    state = workspaces.new_lane(workspace, session)
    await door.write(state, plan)
    return state


async def fork(
    door: Door, workspaces: Workspaces, workspace: Workspace, parent: SessionRecord, last: Message
) -> SessionRecord:
    """Create a session with copies of the messages of `parent` up to `last`."""
    session, copy = await _copy_messages(door, parent, last)
    session = replace(session, mode=workspace.config.mode)  # that of its parent was set for that session
    await make_session(door, workspaces, workspace, session, copy)
    return session


async def _copy_messages(door: Door, parent: SessionRecord, last: Message) -> tuple[SessionRecord, Message]:
    """Copy the messages before `last`, in slices; return the new session and the copy of `last`.

    Nothing is visible until the caller stores both, in one append. An error gives the copy up."""
    now = door.clock.now_ms()
    session = SessionRecord(
        id=door.ids.new("s"),
        workspace_id=parent.workspace_id,
        title=parent.title,
        created_at=now,
        updated_at=now,
        parent_session_id=parent.id,
        model=parent.model,
    )
    try:
        count, summary_id = await _copy_slices(door, session, parent.id, last.id)
    except KedgeError:
        with suppress(StoreUnavailable):  # then the next start gives it up
            await door.give_up_copy(session)
        raise
    copy = replace(last, id=door.ids.new("m"), session_id=session.id)
    if copy.is_summary and copy.finish and copy.finish.reason == "end_turn":
        summary_id = copy.id
    if copy.role == "assistant":
        # It may be streaming: the copy has the text so far and must be closed here.
        copy = copy.closed(FinishPart("unknown", now, "copied while it was being written"))
    # The fork uses the last complete summary among the copies.
    summary_id = summary_id if parent.summary_message_id else ""
    return replace(session, message_count=count + 1, summary_message_id=summary_id), copy


async def _copy_slices(door: Door, session: SessionRecord, source: str, until: str) -> tuple[int, str]:
    """Copy the messages before `until`; return their number, and the copy of the last complete summary."""
    count, summary_id, after = 0, "", ""
    while True:
        if door.closing:
            raise ShuttingDown(f"The server is shutting down; session {source} was not forked.")
        new_ids = [door.ids.new("m") for _ in range(SLICE_IDS)]
        copied = await door.store.copy_messages(session.workspace_id, source, session.id, after, until, new_ids)
        if not copied.count:
            return count, summary_id
        count += copied.count
        summary_id = copied.summary_id or summary_id
        after = copied.last


def agent_session(
    family: SessionRecord, parent: RunRecord, title: str, session_id: str, now: int
) -> tuple[SessionRecord, RunOptions]:
    """Return the session and the options for an agent that serves the Run `parent` of the session `family`.

    The agent may do and cost no more than its parent, and cannot ask for approvals."""
    session = SessionRecord(
        id=session_id,
        workspace_id=family.workspace_id,
        title=title,
        created_at=now,
        updated_at=now,
        parent_session_id=family.id,
        model=family.model,
        parent_run_id=parent.run_id,
    )
    options = RunOptions(
        model=parent.options.model,
        budget_usd=parent.options.budget_usd,
        on_approval="fail",
        allow=parent.options.allow,
        deny=parent.options.deny,
        parent_run_id=parent.run_id,
    )
    return session, options
