"""The contract of every store: long copies and removals are done in slices, of which no read sees a part."""

from __future__ import annotations

from typing import Any

import pytest

from kedge.core.transcript import FinishPart, Text
from kedge.errors import MessageNotFound, VersionConflict
from kedge.store.base import Store, Write
from tests.store.conftest import StoreData
from tests.store.samples import (
    S,
    W,
    ask,
    copy_all,
    file_version,
    grant,
    lane,
    message,
    reclaim_all,
    run,
    session,
    tail,
    with_workspace,
)

COPY = "s2"
#: More than one slice in every store.
COUNT = 300


async def with_messages(store: Store, count: int = COUNT) -> None:
    await with_workspace(store)
    messages = tuple(message(f"m{number}", f"word{number}") for number in range(count))
    await store.append(Write(W, sessions=(session(),), messages=messages))


async def seen(store: Store, session_id: str) -> list[Any]:
    """Everything that reads return of one session."""
    return [
        await store.session(W, session_id),
        await store.lane(session_id),
        await store.messages(session_id, None, 1_000),
        await store.last_messages(session_id, 1_000),
        [hit for hit in await store.search(W, "word", 1_000) if hit.session_id == session_id],
        await store.runs(session_id, 10),
        [one for one in await store.live_runs(W) if one.session_id == session_id],
        await store.session_asks(session_id),
        [one for one in await store.asks(W) if one.session_id == session_id],
        await store.file_versions(W, session_id, None),
    ]


async def test_copy_is_invisible_until_its_session_is_stored(store: Store) -> None:
    await with_messages(store)
    nothing = await seen(store, COPY)
    copies = await copy_all(store, S, COPY, f"m{COUNT - 1}")
    assert len(copies) == COUNT - 1
    assert await seen(store, COPY) == nothing
    assert await store.message(W, copies[0]) is None
    last = message("last", "word of the last", COPY)
    await store.append(Write(W, sessions=(session(COPY),), messages=(last,)))
    stored = await store.messages(COPY, None, 1_000)
    assert [one.id for one in stored] == [*copies, "last"]
    assert [one.text for one in stored[:-1]] == [f"word{number}" for number in range(COUNT - 1)]
    assert [(hit.session_id, hit.message_id) for hit in await store.search(W, "word7", 100)][-1] == (S, "m7")
    assert (COPY, copies[7]) in [(hit.session_id, hit.message_id) for hit in await store.search(W, "word7", 100)]
    assert await reclaim_all(store) == 0


async def test_copy_has_tails_and_names_the_last_complete_summary(store: Store) -> None:
    await with_workspace(store)
    finished = (Text("in short"), FinishPart("end_turn", 1))
    messages = (
        message("m1", "one"),
        message("m2", parts=finished, is_summary=True),
        message("m3", "cut off", is_summary=True),
        message("m4"),
    )
    await store.append(Write(W, sessions=(session(),), messages=messages, tails=(tail(" two", "m1"),)))
    copied = await store.copy_messages(W, S, COPY, "", "m3", ["c1", "c2", "c3"])
    assert (copied.count, copied.last, copied.summary_id) == (2, "m2", "c2")
    copied = await store.copy_messages(W, S, COPY, "m2", "m4", ["c3"])
    assert (copied.count, copied.last, copied.summary_id) == (1, "m3", "")
    assert (await store.copy_messages(W, S, COPY, "m3", "m4", ["c4"])).count == 0
    await store.append(Write(W, sessions=(session(COPY),)))
    assert [one.text for one in await store.messages(COPY, None, 9)] == ["one two", "in short", "cut off"]


async def test_copy_of_an_unknown_message_is_refused(store: Store) -> None:
    await with_messages(store, 2)
    for source, after, until in ((S, "", "m9"), (S, "m9", "m1"), (COPY, "", "m1")):
        with pytest.raises(MessageNotFound):
            await store.copy_messages(W, source, "s3", after, until, ["c1"])


@pytest.mark.parametrize("ending", ["crash", "deletion"])
async def test_copy_that_is_given_up_is_removed(data: StoreData, ending: str) -> None:
    store = await data.open()
    await with_messages(store)
    nothing = await seen(store, COPY)
    copies = await copy_all(store, S, COPY, f"m{COUNT - 1}")
    if ending == "crash":
        await store.close()
        store = await data.open()
    else:
        await store.append(Write(W, deleted_sessions=(COPY,)))
    assert await seen(store, COPY) == nothing
    await store.reclaim()
    assert await seen(store, COPY) == nothing
    assert await reclaim_all(store) > 1
    # Its ids are free.
    await store.append(Write(W, sessions=(session(COPY),), messages=(message(copies[0], "other", COPY),)))
    assert [one.text for one in await store.messages(COPY, None, 1_000)] == ["other"]


@pytest.mark.found(
    "fault 7", "other writes waited for the removal of a long session; it is removed in slices, and invisible meanwhile"
)
@pytest.mark.parametrize("reopened", [False, True])
async def test_deleted_session_is_invisible_before_it_is_removed(data: StoreData, reopened: bool) -> None:
    store = await data.open()
    await with_messages(store)
    nothing = await seen(store, "s9")
    records = Write(W, lane=lane(1, 0), runs=(run("r1"), run("r2", state="ended", seq=2)), grants=(grant(),))
    await store.append(records)
    await store.append(Write(W, asks=(ask(), ask("a2", state="answered")), files=(file_version(),)))
    await store.append(Write(W, deleted_sessions=(S,)))
    for _ in range(2):
        assert (await seen(store, S))[2:] == nothing[2:]
        assert (await store.session(W, S), (await store.lane(S))[0].version) == (None, 0)
        assert [await store.run(W, "r1"), await store.message(W, "m1"), await store.ask(W, "a2")] == [None] * 3
        assert await store.grants(W) == []
        await store.reclaim()
        if reopened:
            await store.close()
            store = await data.open()
    # A client may use the id of a Run again, in another session.
    await store.append(Write(W, sessions=(session(COPY),), runs=(run("r2", COPY),)))
    await reclaim_all(store)
    assert [one.run_id for one in await store.runs(COPY, 10)] == ["r2"]
    assert (await seen(store, S))[2:] == nothing[2:]
    # The id of the session as well.
    await store.append(Write(W, sessions=(session(),), messages=(message("m1", "new"),)))
    assert [one.text for one in await store.messages(S, None, 10)] == ["new"]


@pytest.mark.parametrize("reopened", [False, True])
async def test_cut_messages_are_invisible_before_they_are_removed(data: StoreData, reopened: bool) -> None:
    store = await data.open()
    await with_messages(store)
    await store.append(Write(W, messages=(message("other", "of another session", "s9"),)))
    with pytest.raises(MessageNotFound):
        await store.append(Write(W, sessions=(session(title="changed"),), cuts=((S, "other"),)))
    assert (await store.session(W, S)) == session()
    await store.append(Write(W, cuts=((S, "m10"),), messages=(message("new", "new word", run_id="r2"),)))
    assert await store.message_runs(S, "new") == ({""}, {"r2"})
    kept = [f"m{number}" for number in range(10)]
    for after in (["new"], ["new", "newer"]):
        assert [one.id for one in await store.messages(S, None, 1_000)] == kept + after
        assert [one.id for one in await store.last_messages(S, 1_000, "m20")] == kept + after
        assert (await store.message(W, "m10"), await store.search(W, "word20", 9)) == (None, [])
        with pytest.raises(MessageNotFound):
            await store.copy_messages(W, S, COPY, "", "m20", ["c1"])
        with pytest.raises(VersionConflict):
            await store.append(Write(W, tails=(tail("x", "m20"),)))
        await store.reclaim()
        if reopened:
            await store.close()
            store = await data.open()
        if after == ["new"]:
            await store.append(Write(W, messages=(message("newer"),)))
    await reclaim_all(store)
    # A second cut, and the ids of the first are free.
    await store.append(Write(W, cuts=((S, "new"),)))
    await store.append(Write(W, messages=(message("m20", "again"), message("new", "again"))))
    assert [one.id for one in await store.messages(S, None, 1_000)] == [*kept, "m20", "new"]
    await reclaim_all(store)
    assert [one.id for one in await store.messages(S, None, 1_000)] == [*kept, "m20", "new"]
    assert [one.id for one in await store.messages("s9", None, 9)] == ["other"]
