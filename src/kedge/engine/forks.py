"""New sessions that come of others: a fork, which begins with the messages of another one, and that of an agent."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from kedge.core.records import RunOptions, RunRecord, SessionRecord
from kedge.core.transcript import Finish, Message
from kedge.engine.ports import Ids
from kedge.errors import MessageNotFound

#: Messages a fork copies at the most: one append writes them all. Items.
FORK_MESSAGES_MAX = 100_000
#: Copied in one go, before others have their turn: some milliseconds. Items.
COPIED_MAX = 1_000


async def forked(
    parent: SessionRecord, messages: list[Message], message_id: str, ids: Ids, now: int
) -> tuple[SessionRecord, list[Message]]:
    """The new session, and its messages: copies up to and including that one."""
    place = next((index for index, message in enumerate(messages) if message.id == message_id), None)
    if place is None:
        raise MessageNotFound(f"Message {message_id} is not in session {parent.id}.")
    kept = messages[: place + 1]
    new = SessionRecord(
        *(ids.new("s"), parent.workspace_id, parent.title, now, now, parent.id),
        message_count=len(kept),
        model=parent.model,
    )
    copies: list[Message] = []
    for message in kept:
        copies.append(replace(message, id=ids.new("m"), session_id=new.id))
        if len(copies) % COPIED_MAX == 0:
            await asyncio.sleep(0)
    # What was summarised there is so here, as of the last summary that came along whole.
    summaries = [copy.id for copy in copies if copy.is_summary and copy.finish and copy.finish.reason == "end_turn"]
    new = replace(new, summary_message_id=summaries[-1] if summaries and parent.summary_message_id else "")
    if copies[-1].role == "assistant":
        # It may be streaming: the copy has what was said so far, and nobody else will give it an end.
        copies[-1] = copies[-1].closed(Finish("unknown", now, "copied while it was being written"))
    return new, copies


def for_agent(
    family: SessionRecord, parent: RunRecord, title: str, session_id: str, now: int
) -> tuple[SessionRecord, RunOptions]:
    """The session of an agent that serves `parent`, a Run of `family`, and what its Run may do and cost: no more than
    that one. Nobody can be asked for it."""
    session = SessionRecord(
        *(session_id, family.workspace_id, title, now, now, family.id), model=family.model, parent_run_id=parent.run_id
    )
    given = parent.options
    options = RunOptions(
        given.model,
        budget_usd=given.budget_usd,
        on_approval="fail",
        allow=given.allow,
        deny=given.deny,
        parent_run_id=parent.run_id,
    )
    return session, options
