"""Whatever is written, all stores show the same."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kedge.core.events import MessageChanged
from kedge.core.transcript import Message, Reasoning, Text
from kedge.errors import KedgeError
from kedge.store.base import Store, Write
from kedge.store.memory import MemoryStore
from kedge.store.sqlite import SqliteStore
from tests.store.samples import (
    accepted,
    ask,
    ended,
    file_version,
    grant,
    lane,
    run,
    session,
    started,
    tail,
    with_workspace,
)

WORKSPACES, SESSIONS, RUNS, MESSAGES = ("w1", "w2"), ("s1", "s2"), ("r1", "r2", "r3"), ("m1", "m2", "m3")
ASKS, GRANTS, FILES = ("a1", "a2", "a3"), ("g1", "g2", "g3"), ("f1", "f2", "f3")
QUERIES = ("a", "ab b", "É", "_", "0")

texts = st.text(st.sampled_from("aAbB é_É0 ß\0\n🙂\"*'"), max_size=12)
session_ids, run_ids, message_ids = st.sampled_from(SESSIONS), st.sampled_from(RUNS), st.sampled_from(MESSAGES)
ask_ids, grant_ids, file_ids = st.sampled_from(ASKS), st.sampled_from(GRANTS), st.sampled_from(FILES)
happenings = st.one_of(
    st.builds(accepted, run_ids, st.integers(1, 5)),
    st.builds(started, run_ids),
    st.builds(ended, run_ids),
    st.builds(MessageChanged, message_ids, st.sampled_from(["created", "updated", "deleted"])),
)


def messages() -> st.SearchStrategy[Message]:
    parts = st.lists(st.one_of(st.builds(Text, texts), st.builds(Reasoning, texts)), max_size=2).map(tuple)
    role = st.sampled_from(["user", "assistant"])
    return st.builds(Message, message_ids, session_ids, role, parts, st.integers(0, 9), st.integers(0, 9))


@st.composite
def writes(draw: st.DrawFn) -> Write:
    workspace_id = draw(st.sampled_from((*WORKSPACES, "w1", "w1", "nowhere")))
    states = st.sampled_from(["queued", "active", "ended"])

    def some(strategy: st.SearchStrategy[Any]) -> tuple[Any, ...]:
        return tuple(draw(st.lists(strategy, max_size=2)))

    versions, nobody = st.integers(0, 2), st.just("")
    return Write(
        workspace_id,
        some(st.tuples(session_ids, happenings)),
        draw(st.none() | st.builds(lane, versions, versions, session_ids)),
        some(st.builds(lambda s, at: session(s, workspace_id, updated_at=at), session_ids, st.integers(0, 9))),
        some(
            st.builds(
                lambda r, s, q, x: run(r, s, workspace_id, seq=q, state=x), run_ids, session_ids, versions, states
            )
        ),
        some(messages()),
        some(st.builds(lambda text, m, s: tail(text, m, 0, session_id=s), texts, message_ids, session_ids)),
        draw(st.just(()) | st.just(()) | st.lists(session_ids, max_size=1).map(tuple)),
        asks=some(
            st.builds(
                lambda a, s, at, x, why: ask(a, s, workspace_id, asked_at=at, state=x, message=why),
                *(ask_ids, session_ids, versions, st.sampled_from(["pending", "answered", "withdrawn"]), texts),
            )
        ),
        grants=some(
            st.builds(lambda g, s, rule: grant(g, s, workspace_id, rule=rule), grant_ids, session_ids | nobody, texts)
        ),
        deleted_grants=some(grant_ids),
        files=some(
            st.builds(
                lambda f, s, r, old, undone: file_version(f, s, workspace_id, run_id=r, before=old, undone=undone),
                *(file_ids, session_ids, run_ids, st.none() | st.binary(max_size=3), st.booleans()),
            )
        ),
        durable=draw(st.booleans()),
    )


steps = st.one_of(writes(), writes(), writes(), st.tuples(st.sampled_from(WORKSPACES), st.integers(0, 4)))


async def answer(call: Any) -> Any:
    try:
        return await call
    except KedgeError as error:
        return type(error), error.message


async def observed(store: Store) -> list[Any]:
    seen: list[Any] = [await store.workspaces()]
    for workspace_id in WORKSPACES:
        seen += [await store.bounds(workspace_id), await store.verify(workspace_id)]
        seen += [await store.read(workspace_id, 0, 100), await store.read(workspace_id, 1_002, 2)]
        seen += [await store.sessions(workspace_id), await store.live_runs(workspace_id)]
        seen += [await store.run(workspace_id, run_id) for run_id in RUNS]
        seen += [await store.message(workspace_id, message_id) for message_id in MESSAGES]
        seen += [await store.search(workspace_id, query, 2) for query in QUERIES]
        seen += [await store.asks(workspace_id), await store.grants(workspace_id)]
        seen += [await store.ask(workspace_id, ask_id) for ask_id in ASKS]
        for session_id in SESSIONS:
            seen += [await store.file_versions(workspace_id, session_id, run_id) for run_id in (None, *RUNS)]
    for session_id in SESSIONS:
        seen += [await store.lane(session_id), await store.messages(session_id, None, 2)]
        seen += [await store.runs(session_id, 2)]
        seen += [await store.session_asks(session_id), await store.runs_with_files(session_id)]
        seen += [await answer(store.messages(session_id, "m1", 2))]
    return seen


async def same(plan: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        stores: list[Store] = [MemoryStore(), SqliteStore(Path(directory))]
        for store in stores:
            await store.open()
            await with_workspace(store, *WORKSPACES)
        try:
            for step in plan:
                if isinstance(step, Write):
                    results = [await answer(store.append(step)) for store in stores]
                else:
                    results = [await answer(store.trim(*step)) for store in stores]
                assert results[0] == results[1]
            assert await observed(stores[0]) == await observed(stores[1])
        finally:
            for store in stores:
                await store.close()


@settings(max_examples=40, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(plan=st.lists(steps, max_size=15))
def test_the_same_writes_give_the_same_state_in_every_store(plan: list[Any]) -> None:
    asyncio.run(same(plan))
