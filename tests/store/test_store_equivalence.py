"""All stores return the same data after the same writes."""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from kedge.core.audit import AuditEntry
from kedge.core.events import MessageChanged
from kedge.core.records import Prompt, RunSpan
from kedge.core.transcript import AttachedFile, Message, Reasoning, Text
from kedge.errors import KedgeError
from kedge.store.base import Store, Write
from kedge.store.memory import MemoryStore
from kedge.store.postgres import PostgresStore
from kedge.store.sqlite import SqliteStore
from tests.store.conftest import empty
from tests.store.samples import (
    accepted,
    ask,
    attachment,
    content,
    copy_all,
    ended,
    file_version,
    grant,
    lane,
    reclaim_all,
    run,
    session,
    started,
    tail,
    with_workspace,
)

WORKSPACES, SESSIONS, DIGITS = ("w1", "w2"), ("s1", "s2", "s3"), "1234"
RUNS, MESSAGES, ASKS, VERSIONS = (tuple(f"{kind}{digit}" for digit in DIGITS) for kind in "rmaf")
#: Session -> its workspace, and the digits of the ids that belong to it.
HOMES = {"s1": ("w1", "12"), "s2": ("w1", "3"), "s3": ("w2", "4")}
FILES = (b"", b"a", b"ab" * 20)
QUERIES = ("a", "ab b", "É", "_", "0")
#: Minimum shares of the generated Writes, in per cent. A consistent Write is refused only because of earlier ones: a
#: Run ends once, an Ask is settled once, and no record changes its session.
ACCEPTED_MIN, REFUSED_MIN = 35, 10

texts = st.text(st.sampled_from("aAbB é_É0 ß\0\n🙂\"*'"), max_size=12)


def log_events(run_ids: st.SearchStrategy[str], message_ids: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.builds(accepted, run_ids, st.integers(1, 5)),
        st.builds(started, run_ids),
        st.builds(ended, run_ids),
        st.builds(MessageChanged, message_ids, st.sampled_from(["created", "updated", "deleted"])),
    )


def messages(message_ids: st.SearchStrategy[str], session_ids: st.SearchStrategy[str]) -> st.SearchStrategy[Message]:
    files = st.sampled_from(FILES[:2]).map(lambda data: AttachedFile("a.txt", "", 1, content(data).digest))
    streamed = st.lists(st.one_of(st.builds(Text, texts), st.builds(Reasoning, texts)), max_size=2)
    # A tail adds to the first part, which is therefore not a file.
    parts = st.builds(lambda first, more: (*first, *more) if first else (), streamed, st.lists(files, max_size=1))
    role = st.sampled_from(["user", "assistant"])
    run_ids = st.sampled_from(["", "r1"])
    return st.builds(Message, message_ids, session_ids, role, parts, st.integers(0, 9), st.integers(0, 9), run_ids)


@st.composite
def writes(draw: st.DrawFn, *, consistent: bool) -> Write:
    """A consistent Write, or one whose records belong to arbitrary sessions."""
    home = draw(st.sampled_from(SESSIONS))
    workspace_id, digits = (
        HOMES[home] if consistent else (draw(st.sampled_from((*WORKSPACES, "w1", "w1", "nowhere"))), DIGITS)
    )
    session_ids = st.just(home) if consistent else st.sampled_from(SESSIONS)
    run_ids, message_ids, ask_ids, grant_ids, file_ids = (
        st.sampled_from([f"{kind}{digit}" for digit in digits]) for kind in "rmagf"
    )
    states = st.sampled_from(["queued", "active", "ended"])
    ask_states = st.sampled_from(["pending", "pending", "pending", "answered", "withdrawn"])

    def few(strategy: st.SearchStrategy[Any]) -> tuple[Any, ...]:
        return tuple(draw(st.lists(strategy, max_size=2)))

    versions, no_session = st.integers(0, 2), st.nothing() if consistent else st.just("")
    put = few(messages(message_ids, session_ids))
    if consistent:  # a tail has its message
        message_ids = st.sampled_from([message.id for message in put]) if put else st.nothing()
    return Write(
        workspace_id,
        few(st.tuples(session_ids, log_events(run_ids, message_ids))),
        draw(st.none() | st.builds(lane, versions, versions, session_ids)),
        few(st.builds(lambda s, at: session(s, workspace_id, updated_at=at), session_ids, st.integers(0, 9))),
        few(
            st.builds(
                lambda r, s, q, x, files: run(
                    r, s, workspace_id, seq=q, state=x, prompt=Prompt("Hello", tuple(map(attachment, files)))
                ),
                run_ids,
                session_ids,
                versions,
                states,
                st.lists(st.sampled_from(FILES), max_size=1),
            )
        ),
        put,
        few(st.builds(lambda text, m, s: tail(text, m, 0, session_id=s), texts, message_ids, session_ids)),
        draw(st.just(()) | st.just(()) | st.lists(session_ids, max_size=1).map(tuple)),
        asks=few(
            st.builds(
                lambda a, s, at, x, why: ask(a, s, workspace_id, asked_at=at, state=x, message=why),
                ask_ids,
                session_ids,
                versions,
                ask_states,
                texts,
            )
        ),
        grants=few(
            st.builds(
                lambda g, s, rule: grant(g, s, workspace_id, rule=rule), grant_ids, session_ids | no_session, texts
            )
        ),
        deleted_grants=few(grant_ids),
        files=few(
            st.builds(
                lambda f, s, r, old, undone: file_version(f, s, workspace_id, run_id=r, before=old, undone=undone),
                file_ids,
                session_ids,
                run_ids,
                st.sampled_from(("", "old")),
                st.booleans(),
            )
        ),
        originals=draw(st.dictionaries(file_ids, st.binary(max_size=3), max_size=2)),
        attachments=tuple(map(content, FILES)) if consistent else few(st.sampled_from(FILES).map(content)),
        audit=few(st.builds(AuditEntry, versions, texts, st.just("submit"), st.just(workspace_id))),
        durable=draw(st.booleans()),
    )


@dataclass(frozen=True, slots=True)
class ConsistentWrite:
    """A Write that expects the current version of its Lane."""

    write: Write

    async def on_current_lane(self, store: Store) -> Write:
        if self.write.lane is None:
            return self.write
        session_id = self.write.lane.lane.session_id
        version = (await store.lane(session_id))[0].version
        return replace(self.write, lane=lane(version + 1, version, session_id))


# Three strategies: Hypothesis removes duplicates of one.
consistent_writes = [writes(consistent=True).map(ConsistentWrite) for _ in range(3)]
#: A trim, a copy of the messages before this one, the session that completes the copy, a cut, or slices of removals.
others = st.one_of(
    st.tuples(st.just("trim"), st.sampled_from(WORKSPACES), st.integers(0, 4)),
    st.tuples(st.just("copy"), st.sampled_from(SESSIONS), st.sampled_from(MESSAGES)),
    st.just(("complete",)),
    st.tuples(st.just("cut"), st.sampled_from(SESSIONS), st.sampled_from(MESSAGES)),
    st.tuples(st.just("reclaim"), st.integers(1, 3)),
)
steps = st.one_of(*consistent_writes, writes(consistent=False), others)
#: The session of copies.
COPY = "copy"


async def do_other(store: Store, step: tuple[Any, ...]) -> Any:
    match step:
        case ("trim", workspace_id, keep):
            return await store.trim(workspace_id, keep)
        case ("copy", session_id, until):
            await store.append(Write("w1", deleted_sessions=(COPY,)))
            await reclaim_all(store)
            return await copy_all(store, session_id, COPY, until)
        case ("complete",):
            return await store.append(Write("w1", sessions=(session(COPY),)))
        case ("cut", session_id, first):
            return await store.append(Write(HOMES[session_id][0], cuts=((session_id, first),)))
        case ("reclaim", slices):
            for _ in range(slices):  # their number depends on the store
                await store.reclaim()
    return None


async def answer(call: Any) -> Any:
    try:
        return await call
    except KedgeError as error:
        return type(error), error.message


async def observed(store: Store) -> list[Any]:
    seen: list[Any] = [await store.workspaces(), await store.run_facts(0, 9, 3, 9)]
    facts, after = await store.run_facts(0, 3, 0, 9)
    seen += [facts, bool(after), (await store.run_facts(after, 9, 3, 9))[0]]
    seen += [(await store.users.audit(9))[0], (await store.users.audit(9, author="a"))[0]]
    for workspace_id in WORKSPACES:
        seen += [await store.bounds(workspace_id), await store.verify(workspace_id)]
        seen += [await store.read(workspace_id, 0, 100), await store.read(workspace_id, 1_002, 2)]
        seen += [await store.sessions(workspace_id), await store.live_runs(workspace_id)]
        seen += [await store.run(workspace_id, run_id) for run_id in RUNS]
        seen += [await store.message(workspace_id, message_id) for message_id in MESSAGES]
        seen += [await store.search(workspace_id, query, 2) for query in QUERIES]
        seen += [await store.asks(workspace_id), await store.grants(workspace_id)]
        seen += [await store.ask(workspace_id, ask_id) for ask_id in ASKS]
        seen += [await answer(store.attachment(workspace_id, content(data).digest)) for data in FILES]
        seen += [await store.file_version(workspace_id, file_id) for file_id in VERSIONS]
        seen += [await answer(store.original(workspace_id, file_id)) for file_id in VERSIONS]
        for session_id in SESSIONS:
            seen += [await store.file_versions(workspace_id, session_id, run_id) for run_id in (None, *RUNS)]
    for session_id in (*SESSIONS, COPY):
        seen += [await store.lane(session_id), await store.messages(session_id, None, 2)]
        seen += [await store.runs(session_id, 2), await store.runs(session_id, 9, None, RunSpan(2, 0, 3))]
        seen += [await store.messages(session_id, None, 9, run_id="r1")]
        seen += [await store.session_asks(session_id)]
        seen += [await answer(store.messages(session_id, "m1", 2)), await answer(store.message_runs(session_id, "m1"))]
    return seen


async def compare_stores(plan: list[Any], counts: Counter[str], database: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        stores: list[Store] = [MemoryStore(), SqliteStore(Path(directory)), PostgresStore(database)]
        for store in stores:
            await store.open()
            await with_workspace(store, *WORKSPACES)
        try:
            for step in plan:
                if isinstance(step, tuple):
                    results = [await answer(do_other(store, step)) for store in stores]
                else:
                    write = await step.on_current_lane(stores[0]) if isinstance(step, ConsistentWrite) else step
                    results = [await answer(store.append(write)) for store in stores]
                    counts["accepted" if isinstance(results[0], int) else "refused"] += 1
                assert results[0] == results[1]
                assert results[0] == results[2]
            expected = await observed(stores[0])
            for store in stores[1:]:
                assert await observed(store) == expected
        finally:
            for store in stores:
                await store.close()
            await empty(database)


@pytest.mark.proof  # fuzzing, 10 s of CPU time
@pytest.mark.timeout(400)  # Hypothesis shrinks a failing plan for up to 300 s
def test_same_writes_give_the_same_state_in_every_store(database: str) -> None:
    counts: Counter[str] = Counter()

    @settings(max_examples=40, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(plan=st.lists(steps, min_size=5, max_size=15))
    def compare(plan: list[Any]) -> None:
        asyncio.run(compare_stores(plan, counts, database))

    compare()
    # Stores that refuse everything are equal too, and so are stores that accept everything.
    assert 100 * counts["accepted"] > ACCEPTED_MIN * counts.total(), counts
    assert 100 * counts["refused"] > REFUSED_MIN * counts.total(), counts
