"""Sessions derived from others: a fork, which starts with messages of its parent, and the session of an agent."""

from __future__ import annotations

from contextlib import suppress

from msgspec import Struct
from msgspec.structs import replace

from kedge.core.extensions import AgentDefinition
from kedge.core.records import RunOptions, RunRecord, SessionRecord
from kedge.core.transcript import FinishPart, Message
from kedge.engine.append import Append
from kedge.engine.door import Door
from kedge.engine.lane_state import LaneState
from kedge.engine.workspace import Workspace
from kedge.engine.workspaces import Workspaces
from kedge.errors import KedgeError, ShuttingDown, StoreUnavailable
from kedge.store.base import CopiedMessages

#: New ids that are drawn for one slice of a copy; the store uses those that it needs. Items.
SLICE_IDS = 100
#: The title of a fork is that of its session, and the reason of the fork. Characters.
FORK_TITLE_CHARS_MAX = 80


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
    session = _new_session(door, parent, parent.title)
    copied = await _copy_slices(door, session, parent.id, "", last.id)
    return _completed(door, parent, session, last, copied.count, copied.summary_id)


class WholeCopy(Struct, frozen=True):
    """A copy of a whole session, and what is left of the session when it is cut at one of its messages."""

    session: SessionRecord
    last: Message
    #: The messages before the cut, and the last complete summary among them; empty: none.
    kept_count: int
    kept_summary_id: str
    #: The number of messages that the session had when it was copied.
    source_count: int


async def copy_whole(door: Door, source: SessionRecord, first_cut: str) -> WholeCopy:
    """Copy all messages, as `_copy_messages`. MessageNotFound if the session does not hold `first_cut`."""
    session = _new_session(door, source, f"{source.title[:FORK_TITLE_CHARS_MAX]} (before rewind)".lstrip())
    last = (await door.store.last_messages(source.id, 1))[-1]
    before = await _copy_slices(door, session, source.id, "", first_cut)
    rest = await _copy_slices(door, session, source.id, before.last, last.id)
    summary_id = rest.summary_id or before.summary_id
    fork, copy = _completed(door, source, session, last, before.count + rest.count, summary_id)
    kept_summary_id = before.summary_source if source.summary_message_id else ""
    return WholeCopy(fork, copy, before.count, kept_summary_id, source.message_count)


def _new_session(door: Door, parent: SessionRecord, title: str) -> SessionRecord:
    now = door.clock.now_ms()
    return SessionRecord(
        id=door.ids.new("s"),
        workspace_id=parent.workspace_id,
        title=title,
        created_at=now,
        updated_at=now,
        parent_session_id=parent.id,
        model=parent.model,
        effort=parent.effort,
    )


def _completed(
    door: Door, parent: SessionRecord, session: SessionRecord, last: Message, count: int, summary_id: str
) -> tuple[SessionRecord, Message]:
    copy = replace(last, id=door.ids.new("m"), session_id=session.id)
    if copy.is_summary and copy.finish and copy.finish.reason == "end_turn":
        summary_id = copy.id
    if copy.role == "assistant":
        # It may be streaming: the copy has the text so far and must be closed here.
        copy = copy.closed(FinishPart("unknown", session.created_at, "copied while it was being written"))
    # The fork uses the last complete summary among the copies.
    summary_id = summary_id if parent.summary_message_id else ""
    return replace(session, message_count=count + 1, summary_message_id=summary_id), copy


async def _copy_slices(door: Door, session: SessionRecord, source: str, after: str, until: str) -> CopiedMessages:
    """Copy the messages between these two; return their number, the last one, and the last complete summary."""
    total = CopiedMessages(0, after)
    try:
        while True:
            if door.closing:
                raise ShuttingDown(f"The server is shutting down; session {source} was not copied.")
            new_ids = [door.ids.new("m") for _ in range(SLICE_IDS)]
            copied = await door.store.copy_messages(
                session.workspace_id, source, session.id, total.last, until, new_ids
            )
            if not copied.count:
                return total
            summary = copied if copied.summary_id else total
            total = CopiedMessages(total.count + copied.count, copied.last, summary.summary_id, summary.summary_source)
    except KedgeError:
        await give_up(door, session)
        raise


async def give_up(door: Door, session: SessionRecord) -> None:
    """Remove the copies of a session that was not stored."""
    with suppress(StoreUnavailable):  # then the next start gives it up
        await door.give_up_copy(session)


def agent_session(
    family: SessionRecord, parent: RunRecord, agent: AgentDefinition | None, title: str, session_id: str, now: int
) -> tuple[SessionRecord, RunOptions]:
    """Return the session and the options for an agent that serves the Run `parent` of the session `family`.

    The agent may do and cost no more than its parent. One with tools of its own asks for approvals as its parent does,
    and the allow rules of its parent's Run, which were given for that, do not apply to it."""
    has_tools = agent is not None and agent.tools is not None
    own_model = agent.model if agent else ""
    session = SessionRecord(
        id=session_id,
        workspace_id=family.workspace_id,
        title=title,
        created_at=now,
        updated_at=now,
        parent_session_id=family.id,
        model=family.model,
        effort=family.effort,
        parent_run_id=parent.run_id,
    )
    options = RunOptions(
        model=own_model or parent.options.model,
        effort=None if own_model else parent.options.effort,
        budget_usd=parent.options.budget_usd,
        on_approval=parent.options.on_approval if has_tools else "fail",
        allow=() if has_tools else parent.options.allow,
        deny=parent.options.deny,
        parent_run_id=parent.run_id,
        agent=agent,
    )
    return session, options
