"""The contract of `kedge.store.base`, for every store: the log and the atomicity of a Write."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import fields, replace

from kedge.core.events import EVENT_TYPES, Event, MessageChanged, RetryReported, RunEnded
from kedge.core.records import LaneRecord, Todo
from kedge.errors import StoreError, StoreUnavailable, VersionConflict, WorkspaceNotFound, WrongType
from kedge.store import codec
from kedge.store.base import Store, Write
from tests.store.conftest import StoreData
from tests.store.samples import (
    BASE,
    S,
    W,
    accepted,
    ask,
    ended,
    events,
    file_version,
    grant,
    lane,
    message,
    run,
    session,
    started,
    tail,
    with_workspace,
    workspace,
)

#: A value for each field of an event.
VALUES: dict[str, Any] = {
    "run_id": "r1",
    "session_id": S,
    "message_id": "m1",
    "fork_session_id": "s2",
    "at": 2**53,
    "seq": 1,
    "step": 2,
    "mark": 7,
    "folds": True,
    "into": "r0",
    "before": None,
    "author": "ann",
    "folded_into": "r0",
    "outcome": "cancelled",
    "reason": "timeout",
    "change": "updated",
    "attempt": 2,
    "attempts_max": 5,
    "wait_s": 0.25,
    "error": 'said "no" 🚫\0',
    "ask_id": "a1",
    "version_id": "f1",
    "undone": True,
    "path": "/home/w1/ü 🗂",
}
ONE_OF_EACH: list[Event] = [
    kind(**{field.name: VALUES[field.name] for field in fields(kind)}) for kind in EVENT_TYPES.values()
]


async def everything(store: Store, *sessions: str) -> dict[str, Any]:
    """Everything that can be read from workspace W."""
    seen: dict[str, Any] = {
        "bounds": await store.bounds(W),
        "log": await store.read(W, 0, 1_000),
        "workspaces": await store.workspaces(),
        "sessions": await store.sessions(W),
        "live": await store.live_runs(W),
        "search": await store.search(W, "h", 100),
        "asks": await store.asks(W),
        "grants": await store.grants(W),
    }
    for session_id in sessions or (S,):
        seen[session_id] = (
            await store.lane(session_id),
            await store.runs(session_id, 100),
            await store.messages(session_id, None, 100),
            await store.file_versions(W, session_id, None),
        )
    return seen


# --- Positions -------------------------------------------------------------------------------------------------------


async def test_empty_log_starts_at_the_base_of_its_workspace(store: Store) -> None:
    await with_workspace(store)
    assert await store.bounds(W) == (BASE, BASE)
    assert await store.read(W, 0, 10) == []
    assert await store.verify(W) == 0


async def test_append_returns_the_position_of_its_last_entry(store: Store) -> None:
    await with_workspace(store)
    assert await store.append(events(accepted(), started())) == BASE + 2
    assert await store.append(events(ended())) == BASE + 3
    assert await store.append(Write(W)) == BASE + 3
    assert [entry.position for entry in await store.read(W, 0, 10)] == [BASE + 1, BASE + 2, BASE + 3]


async def test_every_event_type_round_trips(store: Store) -> None:
    await with_workspace(store)
    await store.append(events(*ONE_OF_EACH))
    assert [entry.event for entry in await store.read(W, 0, 100)] == ONE_OF_EACH
    assert {entry.session_id for entry in await store.read(W, 0, 100)} == {S}
    assert await store.verify(W) == len(ONE_OF_EACH)


async def test_concurrent_appends_get_consecutive_positions(store: Store) -> None:
    await with_workspace(store)
    positions = await asyncio.gather(*(store.append(events(accepted(f"r{i}"), started(f"r{i}"))) for i in range(50)))
    log = await store.read(W, 0, 1_000)
    assert [entry.position for entry in log] == list(range(BASE + 1, BASE + 101))
    by_position = {entry.position: entry.event for entry in log}
    for i, last in enumerate(positions):
        assert (by_position[last - 1], by_position[last]) == (accepted(f"r{i}"), started(f"r{i}"))
    assert await store.verify(W) == 100


async def test_workspaces_count_positions_independently(store: Store) -> None:
    await with_workspace(store, "w1", "w2")
    await store.append(events(accepted(), workspace_id="w1"))
    assert await store.append(events(accepted("r2"), workspace_id="w2")) == BASE + 1
    assert [entry.event for entry in await store.read("w1", 0, 10)] == [accepted()]
    assert [entry.event for entry in await store.read("w2", 0, 10)] == [accepted("r2")]


async def test_read_returns_pages(store: Store) -> None:
    await with_workspace(store)
    await store.append(events(*(accepted(f"r{i}") for i in range(7))))
    seen, after = [], 0
    while page := await store.read(W, after, 3):
        assert len(page) <= 3
        seen += page
        after = page[-1].position
    assert [entry.event for entry in seen] == [accepted(f"r{i}") for i in range(7)]
    assert await store.read(W, BASE + 7, 3) == []
    assert await store.read(W, BASE + 10**9, 3) == []
    assert await store.read(W, 0, 0) == []
    assert await store.read(W, -5, 1) == seen[:1]


async def test_unknown_workspace_is_not_found(store: Store) -> None:
    for call in (
        store.append(events(accepted(), workspace_id="w9")),
        store.read("w9", 0, 1),
        store.bounds("w9"),
        store.trim("w9", 1),
        store.verify("w9"),
    ):
        with pytest.raises(WorkspaceNotFound, match="w9"):
            await call
    assert await store.workspaces() == []


# --- Trim ------------------------------------------------------------------------------------------------------------


async def test_trim_keeps_the_last_entries_and_raises_the_floor(store: Store) -> None:
    await with_workspace(store)
    await store.append(events(*(accepted(f"r{i}") for i in range(10)), runs=(run(),)))
    await store.trim(W, 4)
    assert await store.bounds(W) == (BASE + 6, BASE + 10)
    assert [entry.position for entry in await store.read(W, 0, 100)] == [BASE + 7, BASE + 8, BASE + 9, BASE + 10]
    assert [entry.position for entry in await store.read(W, BASE + 8, 100)] == [BASE + 9, BASE + 10]
    assert await store.verify(W) == 4
    assert await store.run(W, "r1") is not None
    await store.trim(W, 100)
    assert await store.bounds(W) == (BASE + 6, BASE + 10)


async def test_log_continues_after_a_complete_trim(store: Store) -> None:
    await with_workspace(store)
    await store.append(events(accepted(), started()))
    await store.trim(W, 0)
    assert await store.bounds(W) == (BASE + 2, BASE + 2)
    assert await store.read(W, 0, 10) == []
    assert await store.append(events(ended())) == BASE + 3
    assert await store.verify(W) == 1


async def test_long_log_is_trimmed_in_one_call(store: Store) -> None:
    await with_workspace(store)
    for _ in range(6):
        await store.append(events(*(MessageChanged("m1", "updated") for _ in range(2_000)), durable=False))
    await store.trim(W, 10)
    assert await store.bounds(W) == (BASE + 11_990, BASE + 12_000)
    assert await store.verify(W) == 10


# --- All or nothing --------------------------------------------------------------------------------------------------


async def test_write_stores_all_its_parts(store: Store) -> None:
    await with_workspace(store)
    await store.append(
        events(
            accepted(),
            started(),
            lane=lane(2, 0),
            sessions=(session(),),
            runs=(run(state="active"),),
            messages=(message(text="Hel"),),
            tails=(tail("lo"),),
        )
    )
    assert await store.lane(S) == (LaneRecord(S, 2, 3, 0), [run(state="active", position=BASE + 1)])
    assert await store.session(W, S) == session()
    assert await store.messages(S, None, 10) == [message(text="Hello")]


REFUSED = {
    "lane": Write(W, ((S, accepted("r2")),), lane=lane(5, 4)),
    "second end": Write(W, ((S, accepted("r2")), (S, ended("r0")))),
    "session elsewhere": Write(W, ((S, accepted("r2")),), sessions=(session("s2", title="new"), session("s-of-w2"))),
    "run elsewhere": Write(W, ((S, accepted("r2")),), runs=(run("r2"), run("r1", "s2"))),
    "run twice": Write(W, ((S, accepted("r2")),), runs=(run("r2"), run("r2", "s2"))),
    "message elsewhere": Write(W, messages=(message("m2"), message("m1", session_id="s2"))),
    "tail": Write(W, ((S, accepted("r2")),), lane=lane(9, 3), messages=(message(text="x"),), tails=(tail("y", "m9"),)),
    "tail of another session": Write(W, tails=(tail("y"), tail("y", session_id="s2"))),
    "ask elsewhere": Write(W, ((S, accepted("r2")),), asks=(ask("a2"), ask("a1", "s2"))),
    "ask of another workspace": Write(W, asks=(ask("a2"), ask("a-of-w2"))),
    "ask settled": Write(W, ((S, accepted("r2")),), asks=(ask("a2"), ask("a0", state="answered", answer="deny"))),
    "ask twice": Write(W, asks=(ask("a2", state="withdrawn"), ask("a2", state="answered", answer="allow"))),
    "grant elsewhere": Write(W, asks=(ask("a2"),), grants=(grant("g2"), grant("g1", ""))),
    "grant of another workspace": Write(W, grants=(grant("g2"), grant("g-of-w2"))),
    "grant twice": Write(W, grants=(grant("g2"), grant("g2", "s2"))),
    "file elsewhere": Write(W, grants=(grant("g2"),), files=(file_version("f2"), file_version("f1", "s2"))),
    "file of another workspace": Write(W, files=(file_version("f2"), file_version("f-of-w2"))),
    "file twice": Write(W, files=(file_version("f2"), file_version("f2", "s2"))),
}


@pytest.mark.parametrize("reason", REFUSED)
async def test_write_whose_last_part_is_refused_stores_nothing(store: Store, reason: str) -> None:
    await with_workspace(store, "w1", "w2")
    w2 = Write("w2", sessions=(session("s-of-w2", "w2"),), asks=(ask("a-of-w2", S, "w2"),))
    await store.append(replace(w2, grants=(grant("g-of-w2", S, "w2"),), files=(file_version("f-of-w2", S, "w2"),)))
    asks = (ask("a0", state="answered", answer="allow"), ask())
    await store.append(Write(W, asks=asks, grants=(grant(),), files=(file_version(),)))
    await store.append(events(accepted("r0"), ended("r0"), runs=(run(),), messages=(message(),), lane=lane(3, 0)))
    before = await everything(store, S, "s2", "s-of-w2")
    with pytest.raises(VersionConflict):
        await store.append(REFUSED[reason])
    assert await everything(store, S, "s2", "s-of-w2") == before
    assert await store.append(events(accepted("r9"))) == BASE + 3


async def test_refused_write_does_not_affect_concurrent_writes(store: Store) -> None:
    await with_workspace(store)
    writes = [events(accepted(f"r{i}"), lane=lane(1, 0, f"s{i % 5}"), session_id=f"s{i % 5}") for i in range(20)]
    results = await asyncio.gather(*map(store.append, writes), return_exceptions=True)
    assert results[:5] == [BASE + 1, BASE + 2, BASE + 3, BASE + 4, BASE + 5]
    assert all(isinstance(result, VersionConflict) for result in results[5:])
    assert await store.bounds(W) == (BASE, BASE + 5)


async def test_lane_must_have_the_expected_version(store: Store) -> None:
    await with_workspace(store)
    await store.append(events(accepted(), lane=lane(1, 0)))
    for expected in (0, 2):
        with pytest.raises(VersionConflict, match="version 1"):
            await store.append(events(started(), lane=lane(3, expected)))
    await store.append(events(started(), lane=lane(2, 1)))
    assert (await store.lane(S))[0].version == 2
    assert await store.bounds(W) == (BASE, BASE + 2)


async def test_second_end_of_a_run_is_refused(store: Store) -> None:
    await with_workspace(store)
    await store.append(events(accepted(), ended()))
    with pytest.raises(VersionConflict, match="r1"):
        await store.append(events(started(), RunEnded("r1", "failed", "timeout", 9), lane=lane(3, 0)))
    with pytest.raises(VersionConflict, match="r2"):
        await store.append(events(accepted("r2"), ended("r2"), ended("r2")))
    assert await store.bounds(W) == (BASE, BASE + 2)
    await store.append(events(ended("r2")))


async def test_second_end_is_refused_after_a_trim(store: Store) -> None:
    await with_workspace(store)
    await store.append(events(accepted(), ended(), runs=(run(state="ended"),)))
    await store.trim(W, 0)
    with pytest.raises(VersionConflict):
        await store.append(events(ended()))


async def test_run_that_reuses_the_id_of_a_deleted_run_can_end(store: Store) -> None:
    """Otherwise the Run would be accepted and stay live forever."""
    await with_workspace(store)
    await store.append(events(accepted(), ended(), sessions=(session(),), runs=(run(state="ended"),)))
    await store.append(Write(W, deleted_sessions=(S,)))
    await store.append(events(accepted(), session_id="s2", runs=(run("r1", "s2"),)))
    await store.append(events(ended(), session_id="s2", runs=(run("r1", "s2", state="ended"),)))
    assert await store.live_runs(W) == []


async def test_record_of_another_workspace_is_refused(store: Store) -> None:
    await with_workspace(store, "w1", "w2")
    for write in (
        Write("w1", runs=(run(workspace_id="w2"),)),
        Write("w1", sessions=(session(workspace_id="w2"),)),
        Write("w1", asks=(ask(workspace_id="w2"),)),
        Write("w1", grants=(grant(workspace_id="w2"),)),
        Write("w1", files=(file_version(workspace_id="w2"),)),
    ):
        with pytest.raises(StoreError, match="w2"):
            await store.append(write)
    assert (await store.live_runs("w1"), await store.live_runs("w2")) == ([], [])
    assert await store.sessions("w2") == []
    assert (await store.asks("w2"), await store.grants("w2"), await store.file_versions("w2", S, None)) == ([], [], [])


BROKEN = "half \ud83d of one"


@pytest.mark.parametrize(
    "write",
    [
        events(RunEnded(BROKEN, "failed", "timeout", 1)),
        events(accepted(), session_id=BROKEN),
        Write(W, runs=(run(error=BROKEN),)),
        Write(W, sessions=(session(title=BROKEN),)),
        Write(W, messages=(message(text=BROKEN),)),
        Write(W, messages=(message(), message(BROKEN))),
        Write(W, messages=(message(),), tails=(tail(BROKEN),)),
        Write(W, runs=(run(options=replace(run().options, timeout_s=float("inf"))),)),
        Write(W, sessions=(session(todos=(Todo(BROKEN),)),)),
        Write(W, asks=(ask(), ask("a2", params=BROKEN))),
        Write(W, asks=(ask(BROKEN),)),
        Write(W, grants=(grant(), grant("g2", rule=BROKEN))),
        Write(W, grants=(grant(),), deleted_grants=(BROKEN,)),
        Write(W, files=(file_version(), file_version("f2", path="/not/unicode/\udcff"))),
        events(RetryReported("r1", 1, 2, float("inf"), "")),
        Write(W, sessions=(session(usage=replace(session().usage, cost_usd=float("nan"))),)),
    ],
)
async def test_unstorable_values_are_refused_and_store_nothing(store: Store, write: Write) -> None:
    await with_workspace(store)
    before = await everything(store)
    with pytest.raises(WrongType):
        await store.append(replace(write, events=(("s0", accepted("r0")), *write.events)))
    assert await everything(store) == before


# --- Open and close --------------------------------------------------------------------------------------------------


async def test_appended_data_is_read_by_the_next_store(data: StoreData) -> None:
    first = await data.open()
    await with_workspace(first)
    await first.append(
        events(
            accepted(),
            started(),
            accepted("r2", 2),
            lane=lane(3, 0),
            sessions=(session(),),
            runs=(run(state="active"), run("r2", seq=2)),
            messages=(message(text="Hel"), message("m2", "x")),
            asks=(ask(), ask("a2", state="withdrawn")),
            grants=(grant(), grant("g2", "")),
            files=(file_version(), file_version("f2", before="")),
            originals={"f1": b"old"},
            durable=False,
        )
    )
    await first.append(Write(W, tails=(tail("lo "), tail("you")), durable=False))
    await first.trim(W, 2)
    before = await everything(first)
    await first.close()
    second = await data.open()
    assert await everything(second) == before
    assert await second.verify(W) == 2
    assert (await second.messages(S, None, 10))[0].text == "Hello you"
    assert await second.append(events(ended())) == BASE + 4


async def test_close_finishes_earlier_requests_and_refuses_later(data: StoreData) -> None:
    store = await data.open()
    await with_workspace(store)
    appends = [asyncio.ensure_future(store.append(events(accepted(f"r{i}")))) for i in range(20)]
    await asyncio.sleep(0)
    await store.close()
    await store.close()
    assert await asyncio.gather(*appends) == list(range(BASE + 1, BASE + 21))
    for call in (store.append(events(accepted())), store.read(W, 0, 1), store.workspaces()):
        with pytest.raises(StoreUnavailable):
            await call
    assert await (await data.open()).bounds(W) == (BASE, BASE + 20)


async def test_store_that_is_not_open_raises(data: StoreData) -> None:
    store = data.store()
    await store.close()
    with pytest.raises(StoreUnavailable):
        await store.workspaces()


async def test_cancelled_append_leaves_the_store_usable(store: Store) -> None:
    await with_workspace(store)
    for i in range(10):
        append = asyncio.ensure_future(store.append(events(accepted(f"r{i}"))))
        await asyncio.sleep(0)
        append.cancel()
        with pytest.raises(asyncio.CancelledError):
            await append
    # Each was queued, so each was written: cancelling the caller does not cancel the Write.
    assert await store.append(events(accepted("last"))) == BASE + 11
    assert await store.verify(W) == 11


async def test_damaged_entry_is_refused_and_named(data: StoreData) -> None:
    rows = codec.log_rows(events(accepted(), started(), ended()), BASE, codec.first_hash(W, BASE))
    entries = codec.checked_entries(W, codec.first_hash(W, BASE), BASE, rows)
    assert [entry.position for entry in entries] == [BASE + 1, BASE + 2, BASE + 3]
    wrong = {
        "payload": replace(rows[1], payload=codec.encode_event(ended())),
        "session": replace(rows[1], session_id="s2"),
        "kind": replace(rows[1], kind="RunEnded"),
        "run": replace(rows[1], run_id="r2"),
        "position": replace(rows[1], position=BASE + 3),
        "hash": replace(rows[1], hash=rows[0].hash),
    }
    for row in wrong.values():
        with pytest.raises(StoreError, match=f"{W} is damaged at position {BASE + 2}"):
            codec.checked_entries(W, codec.first_hash(W, BASE), BASE, [rows[0], row, rows[2]])
    with pytest.raises(StoreError, match=f"damaged at position {BASE + 2}"):
        codec.checked_entries(W, codec.first_hash(W, BASE), BASE, [rows[0], rows[2]])
    with pytest.raises(StoreError, match=f"damaged at position {BASE + 1}"):
        codec.checked_entries("w2", codec.first_hash("w2", BASE), BASE, rows)


async def test_workspace_is_created_once_for_a_path(store: Store) -> None:
    first = workspace("w1")
    made = await asyncio.gather(*(store.workspace("/home/x", replace(first, id=f"w{i}")) for i in range(5)))
    assert len({record.id for record in made}) == 1
    assert made[0].path == "/home/x"
    assert await store.workspaces() == [made[0]]
    other = await store.workspace("/home/ÿ/🗂", replace(first, id="other", path="/home/ÿ/🗂"))
    assert await store.workspace_at("/home/ÿ/🗂") == other
    assert await store.workspace_at("/home") is None
    assert await store.workspaces() == [made[0], other]
    with pytest.raises(VersionConflict):
        await store.workspace("/elsewhere", replace(first, id="other"))
    assert await store.bounds("other") == (BASE, BASE)
