"""Forks of sessions."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from kedge.agent.assembly import make_engine
from kedge.config.schema import Config
from kedge.core.transcript import Message, Text
from kedge.errors import StoreUnavailable
from kedge.store.base import Write
from kedge.store.sqlite import SqliteStore
from kedge.testing.manual_system import CountingIds, ManualClock
from kedge.testing.scripted import Hold, Say, ScriptedModel
from kedge.wire import frames
from tests.agent.test_compaction import NEARLY_FULL, small_window
from tests.engine.rig import CLIENT, ActingTool, OneModel, do, kill, rig, spin, start, until


async def test_fork_has_the_summary_of_its_parent(tmp_path: Path) -> None:
    model = ScriptedModel([*do("a"), NEARLY_FULL], "in short", "done")
    async with rig(tmp_path, model, models=small_window(model), tools=(ActingTool(),)) as r:
        await r.end(await r.submit("please"))
        messages = await r.engine.messages(r.workspace, r.session, None, 100)
        for index, text in ((-1, "in short"), (0, "")):
            fork = await r.engine.fork_session(r.workspace, r.session, messages[index].id)
            copied = await r.engine.messages(r.workspace, fork.id, None, 100)
            summaries = [message.text for message in copied if message.id == fork.summary_message_id]
            assert [summary.startswith(text) for summary in summaries] == ([True] if text else [])


async def test_fork_of_a_streaming_message_has_a_finish(tmp_path: Path) -> None:
    async with rig(tmp_path, ScriptedModel([Say("one two"), Hold("k")])) as r:
        run = await r.submit()
        await r.model.wait_requests(1)
        await spin()
        streaming = (await r.engine.messages(r.workspace, r.session, None, 100))[-1]
        fork = await r.engine.fork_session(r.workspace, r.session, streaming.id)
        r.model.release("k")
        await r.end(run)
        copy = (await r.engine.messages(r.workspace, fork.id, None, 100))[-1]
        assert (copy.text, copy.finish and copy.finish.reason) == ("one two", "unknown")


async def test_fork_that_fails_leaves_nothing(tmp_path: Path) -> None:
    async with rig(tmp_path, ScriptedModel(*("answer",) * 3)) as r:
        for _ in range(3):
            await r.end(await r.submit())
        messages = await r.engine.messages(r.workspace, r.session, None, 100)
        r.store.fail_copies_after = 1
        with pytest.raises(StoreUnavailable):
            await r.engine.fork_session(r.workspace, r.session, messages[-1].id)
        await r.engine.reclaiming.idle()
        assert (r.store.data.copies, len(r.store.data.messages)) == ({}, len(messages))
        fork = await r.engine.fork_session(r.workspace, r.session, messages[-1].id)
        copied = await r.engine.messages(r.workspace, fork.id, None, 100)
        assert [message.text for message in copied] == [message.text for message in messages]
        assert fork.message_count == len(messages)


async def test_fork_interrupted_by_a_crash_leaves_nothing(tmp_path: Path) -> None:
    r = await start(tmp_path, ScriptedModel(*("answer",) * 3))
    for _ in range(3):
        await r.end(await r.submit())
    messages = await r.engine.messages(r.workspace, r.session, None, 100)
    forking = asyncio.create_task(r.engine.fork_session(r.workspace, r.session, messages[-1].id))
    await until(lambda: bool(r.store.data.copies))
    assert len(await r.engine.sessions(r.workspace)) == 1
    store = await kill(r)
    assert forking.cancelled()
    async with rig(tmp_path, ScriptedModel(), store) as r:
        await r.engine.reclaiming.idle()
        assert (store.data.copies, len(store.data.messages)) == ({}, len(messages))
        assert [session.id for session in await r.engine.sessions(r.workspace)] == [r.session]


@pytest.mark.found(
    "fault 7",
    "a fork was one append of all copies, for which every write of the server waited; the messages are now copied in "
    "slices, between which others write",
)
async def test_writes_continue_during_a_fork_and_a_removal(tmp_path: Path) -> None:
    """With the SQLite store: other sessions are renamed while a long session is forked, rewound and removed."""
    store = SqliteStore(tmp_path / "data")
    clock, ids = ManualClock(), CountingIds()
    engine = make_engine(store, clock, ids, frames, OneModel(ScriptedModel()), Config())
    await engine.open()
    try:
        workspace = await engine.workspaces.open(str(tmp_path), CLIENT)
        session, other = [(await engine.create_session(workspace, title)).id for title in ("long", "other")]
        parts = (Text("some words " * 700),)
        for number in range(MESSAGES):
            message = Message(f"x{number}", session, "user", parts, 0, 0)
            await store.append(Write(workspace.id, messages=(message,), durable=False))

        async def rename_during(work: asyncio.Task[Any]) -> list[int]:
            """Return the number of stored messages after each rename, of which there is at least one."""
            counts = [await _stored_messages(store)]
            while not work.done() or len(counts) == 1:
                await engine.change_session(workspace, other, f"title {len(counts)}")
                counts.append(await _stored_messages(store))
            return counts

        forking = asyncio.create_task(engine.fork_session(workspace, session, message.id))
        assert _largest_change(await rename_during(forking)) < MESSAGES / 2
        fork = await forking
        assert fork.message_count == MESSAGES
        rewinding = asyncio.create_task(engine.rewind.rewind(workspace, session, f"x{MESSAGES // 4}", "conversation"))
        assert _largest_change(await rename_during(rewinding)) < MESSAGES / 2
        assert len(await engine.messages(workspace, session, None, MESSAGES)) == MESSAGES // 4 + 1
        assert _largest_change(await rename_during(asyncio.create_task(engine.reclaiming.idle()))) < MESSAGES / 2
        assert ((await rewinding).fork or fork).id != fork.id
        deleting = asyncio.create_task(engine.delete_session(workspace, session))
        assert _largest_change(await rename_during(deleting)) < MESSAGES / 2
        assert _largest_change(await rename_during(asyncio.create_task(engine.reclaiming.idle()))) < MESSAGES / 2
        assert len(await engine.messages(workspace, fork.id, None, MESSAGES)) == MESSAGES
    finally:
        await engine.close()


#: Messages of 8 kB: they are copied in about 30 slices, and removed in 8.
MESSAGES = 1_000


async def _stored_messages(store: SqliteStore) -> int:
    _, reader = store.threads()
    ((count,),) = await reader.ask(lambda db: db.execute("SELECT count(*) FROM messages").fetchall())
    return int(str(count))


def _largest_change(counts: list[int]) -> int:
    """Return the most messages that were copied or removed between two renames."""
    return max(abs(after - before) for before, after in pairwise(counts))
