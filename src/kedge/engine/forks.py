"""Sessions derived from others: a fork, which starts with messages of its parent, and the session of an agent."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from kedge.core.records import RunOptions, RunRecord, SessionRecord
from kedge.core.transcript import FinishPart, Message
from kedge.engine.ports import Ids
from kedge.errors import MessageNotFound

#: Messages that a fork copies; one append writes them all. Items.
FORK_MESSAGES_MAX = 100_000
#: Messages copied before other tasks get a turn: a few milliseconds. Items.
COPY_BATCH = 1_000


async def fork(
    parent: SessionRecord, messages: list[Message], message_id: str, ids: Ids, now: int
) -> tuple[SessionRecord, list[Message]]:
    """Return a new session and copies of the messages up to and including `message_id`."""
    index = next((index for index, message in enumerate(messages) if message.id == message_id), None)
    if index is None:
        raise MessageNotFound(f"Message {message_id} not found in session {parent.id}.")
    session = SessionRecord(
        id=ids.new("s"),
        workspace_id=parent.workspace_id,
        title=parent.title,
        created_at=now,
        updated_at=now,
        parent_session_id=parent.id,
        message_count=index + 1,
        model=parent.model,
    )
    copies: list[Message] = []
    for message in messages[: index + 1]:
        copies.append(replace(message, id=ids.new("m"), session_id=session.id))
        if len(copies) % COPY_BATCH == 0:
            await asyncio.sleep(0)
    # The fork uses the last complete summary among the copies.
    summaries = [copy.id for copy in copies if copy.is_summary and copy.finish and copy.finish.reason == "end_turn"]
    session = replace(session, summary_message_id=summaries[-1] if summaries and parent.summary_message_id else "")
    if copies[-1].role == "assistant":
        # It may be streaming: the copy has the text so far and must be closed here.
        copies[-1] = copies[-1].closed(FinishPart("unknown", now, "copied while it was being written"))
    return session, copies


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
