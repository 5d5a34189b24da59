"""The contract of `kedge.store.base`, for every store: facts of ended Runs, Runs in a span, messages of a Run."""

from __future__ import annotations

from typing import Any

import pytest

from kedge.core import run_facts
from kedge.core.events import RunEnded
from kedge.core.records import RunSpan, Usage
from kedge.core.run_facts import RunFacts, facts_of
from kedge.core.run_trace import ToolUse, TraceEntry
from kedge.errors import VersionConflict, WrongType
from kedge.store.base import Store
from tests.store.conftest import StoreData
from tests.store.samples import W, accepted, events, message, reclaim_all, run, session, with_workspace

ALWAYS = 2**53


def end(run_id: str, at: int) -> RunEnded:
    return RunEnded(run_id, "completed", "", at)


async def put_ended(store: Store, run_id: str, at: int, workspace_id: str = W, **fields: Any) -> RunFacts:
    made = run(run_id, fields.pop("session_id", "s1"), workspace_id, state="ended", ended_at=at, **fields)
    where: dict[str, Any] = {"session_id": made.session_id, "workspace_id": workspace_id}
    await store.append(events(accepted(run_id), end(run_id, at), runs=(made,), **where))
    return facts_of(made, end(run_id, at))


async def every_fact(store: Store) -> list[str]:
    facts, after = await store.run_facts(0, 1_000, 0, ALWAYS)
    assert after == 0
    return [one.run_id for one in facts]


async def test_end_of_a_run_stores_its_facts(store: Store, data: StoreData) -> None:
    await with_workspace(store)
    used: dict[str, Any] = {
        "usage": Usage(5, 3, 0.5, 2, 1),
        "model": "x/y",
        "first_token_at": 7,
        "tools": (ToolUse("bash", 2, 1),),
    }
    made = await put_ended(store, "r1", 9, started_at=6, **used)
    assert await store.run_facts(0, 10, 0, ALWAYS) == ([made], 0)
    await store.close()
    assert await (await data.open()).run_facts(0, 10, 0, ALWAYS) == ([made], 0)


async def test_run_is_counted_once_and_only_when_it_ends(store: Store) -> None:
    await with_workspace(store)
    await store.append(events(accepted("r1"), runs=(run("r1", state="active"),)))
    assert await every_fact(store) == []
    await put_ended(store, "r2", 5)
    for refused in (end("r2", 5), end("r2", 6)):
        with pytest.raises(VersionConflict):
            await store.append(events(refused, runs=(run("r2", state="ended"),)))
    infinite = run("r3", state="ended", child_usage=Usage(cost_usd=float("inf")))
    with pytest.raises(WrongType):
        await store.append(events(end("r3", 5), runs=(infinite,)))
    await store.append(events(runs=(run("r2", state="ended", text="again"),)))
    assert await every_fact(store) == ["r2"]


async def test_facts_are_read_in_pages_and_by_range(store: Store) -> None:
    await with_workspace(store, W, "w2")
    for number, at in enumerate((30, 10, 20, 20, 40), 1):
        await put_ended(store, f"r{number}", at, "w2" if number == 4 else W, session_id=f"s{number}")
    assert await every_fact(store) == ["r1", "r2", "r3", "r4", "r5"], "in the order of the Writes"
    first, after = await store.run_facts(0, 2, 10, 40)
    rest, last = await store.run_facts(after, 100, 10, 40)
    assert ([one.run_id for one in first], [one.run_id for one in rest], last) == (["r1", "r2"], ["r3", "r4"], 0)
    assert [one.run_id for one in (await store.run_facts(0, 9, 20, 31, W))[0]] == ["r1", "r3"]
    assert await store.run_facts(0, 9, 0, ALWAYS, "unknown") == ([], 0)


async def test_facts_outlive_the_log_and_the_session(store: Store) -> None:
    await with_workspace(store)
    await store.append(events(sessions=(session(),)))
    await put_ended(store, "r1", 5)
    await store.trim(W, 0)
    await store.append(events(deleted_sessions=("s1",)))
    await reclaim_all(store)
    assert await every_fact(store) == ["r1"]
    await put_ended(store, "r1", 6, session_id="s2")
    assert await every_fact(store) == ["r1", "r1"], "the id was free: it is another Run"


async def test_facts_are_removed_with_their_workspace(store: Store) -> None:
    await with_workspace(store, W, "w2")
    await put_ended(store, "r1", 5)
    await put_ended(store, "r2", 5, "w2", session_id="s2")
    await store.remove_workspace(W)
    assert await every_fact(store) == ["r2"], "at once"
    while await store.purge():
        assert await every_fact(store) == ["r2"]
    await with_workspace(store)
    assert await every_fact(store) == ["r2"], "also if the id is used again"


async def test_latest_facts_are_kept(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_facts, "FACTS_MAX", 3)
    await with_workspace(store)
    for number in range(5):
        await put_ended(store, f"r{number}", number)
    assert await every_fact(store) == ["r2", "r3", "r4"]


async def test_runs_in_a_span(store: Store) -> None:
    await with_workspace(store)
    times = [(1, 2), (3, 6), (5, None), (8, 9)]
    made = tuple(
        run(f"r{seq}", seq=seq, accepted_at=first, ended_at=last, trace=(TraceEntry("move", 4),))
        for seq, (first, last) in enumerate(times, 1)
    )
    await store.append(events(runs=made))

    async def seqs(limit: int = 9, **span: int) -> list[int]:
        return [one.seq for one in await store.runs("s1", limit, None, RunSpan(**span))]

    assert await store.runs("s1", 9) == list(made)
    assert await seqs(since=3) == [2, 3, 4]
    assert await seqs(since=6, until=7) == [2, 3]
    assert await seqs(since=7, until=7) == [3]
    assert await seqs(before_seq=4, limit=2) == [2, 3]
    assert await seqs(until=0) == []


async def test_messages_of_one_run(store: Store) -> None:
    await with_workspace(store)
    owners = ["r1", "r2", "r1", "", "r1"]
    made = tuple(message(f"m{number}", run_id=owner) for number, owner in enumerate(owners))
    await store.append(events(sessions=(session(),), messages=made))

    async def ids(after: str | None, limit: int, run_id: str | None) -> list[str]:
        return [one.id for one in await store.messages("s1", after, limit, run_id=run_id)]

    assert await ids(None, 9, "r1") == ["m0", "m2", "m4"]
    assert await ids("m0", 1, "r1") == ["m2"]
    assert await ids("m1", 9, "") == ["m3"]
    assert await ids(None, 9, "r9") == []
    await store.append(events(cuts=(("s1", "m2"),)))
    assert await ids(None, 9, "r1") == ["m0"]
