"""The contract of `kedge.store.base`, for every store: Asks, grants and file versions."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from kedge.core.events import Asked, AskSettled
from kedge.errors import StoreDamaged, VersionConflict
from kedge.store.base import Store, Write
from tests.store.conftest import StoreData
from tests.store.samples import BASE, S, W, ask, events, file_version, grant, session, with_workspace

ALLOWED = ask(state="answered", answer="allow", answered_by="client-1", answered_at=5)
DENIED = ask(state="answered", answer="deny", message="not today", answered_by="client-2", answered_at=5)

# --- Asks ------------------------------------------------------------------------------------------------------------


async def test_ask_round_trips(store: Store) -> None:
    await with_workspace(store, "w1", "w2")
    full = ask(
        "a~1",
        kind="question",
        asked_at=2**53,
        description='say "which" 🤔\0',
        params='{"options": ["a", "ü"]}',
        action="execute",
        path="/home/ü",
        grant="bash(ls)",
        binding="digest",
        state="answered",
        answer="answered",
        message="the\nsecond",
        answered_by="client",
        answered_at=2**53 + 1,
    )
    await store.append(Write(W, asks=(full,)))
    assert await store.ask(W, "a~1") == full
    assert await store.ask("w2", "a~1") is None
    assert await store.ask(W, "a") is None


async def test_pending_asks_are_listed_in_insertion_order(store: Store) -> None:
    """They are not sorted by time: the clock may have been set in between."""
    await with_workspace(store, "w1", "w2")
    pending = (ask("d", asked_at=7), ask("c", "s2", asked_at=5), ask("b", asked_at=5), ask("a", asked_at=6))
    await store.append(Write(W, asks=pending))
    await store.append(Write(W, asks=(ask("e", asked_at=5), ask("f", asked_at=1, state="withdrawn"))))
    await store.append(Write("w2", asks=(ask("x", "s3", "w2", asked_at=0),)))
    assert [row.id for row in await store.asks(W)] == ["d", "c", "b", "a", "e"]
    assert [row.id for row in await store.session_asks(S)] == ["d", "b", "a", "e"]
    assert [row.id for row in await store.session_asks("s2")] == ["c"]
    assert [row.id for row in await store.session_asks(S, settled=True)] == ["d", "b", "a", "e", "f"]
    assert [row.id for row in await store.asks("w2")] == ["x"]
    assert await store.asks("w9") == []
    assert await store.session_asks("s9") == []
    # A pending Ask that is rewritten keeps its position; a settled one is not listed.
    await store.append(Write(W, asks=(replace(pending[2], message="changed"), replace(pending[3], state="answered"))))
    assert [row.id for row in await store.asks(W)] == ["d", "c", "b", "e"]
    assert (await store.asks(W))[2].message == "changed"
    assert await store.ask(W, "a") == replace(pending[3], state="answered")


@pytest.mark.parametrize("other", [DENIED, ask(state="withdrawn"), ask(), replace(ALLOWED, answered_at=6)])
async def test_first_answer_wins(store: Store, other: object) -> None:
    assert isinstance(other, type(ALLOWED))
    await with_workspace(store)
    await store.append(events(Asked("r1", "a1"), asks=(ask(),)))
    await store.append(events(AskSettled("r1", "a1"), asks=(ALLOWED,)))
    with pytest.raises(VersionConflict, match="Ask a1 is already settled; the first answer counts"):
        await store.append(events(AskSettled("r1", "a1"), asks=(other,), grants=(grant(),)))
    assert await store.ask(W, "a1") == ALLOWED
    assert await store.asks(W) == []
    assert await store.grants(W) == []
    assert await store.bounds(W) == (BASE, BASE + 2)


async def test_one_of_several_concurrent_answers_wins(store: Store) -> None:
    await with_workspace(store)
    await store.append(Write(W, asks=(ask(),)))
    answers = [replace(ALLOWED, answered_by=f"client-{i}") for i in range(20)]
    results = await asyncio.gather(
        *(store.append(Write(W, asks=(answer,))) for answer in answers), return_exceptions=True
    )
    assert results[0] == BASE
    assert all(isinstance(result, VersionConflict) for result in results[1:])
    assert await store.ask(W, "a1") == answers[0]


async def test_repeating_the_same_answer_is_harmless(data: StoreData) -> None:
    first = await data.open()
    await with_workspace(first)
    await first.append(Write(W, asks=(ask(), ALLOWED, ALLOWED)))
    await first.append(events(AskSettled("r1", "a1"), asks=(ALLOWED,)))
    await first.close()
    second = await data.open()
    assert await second.append(events(AskSettled("r1", "a1"), asks=(ALLOWED,))) == BASE + 2
    assert await second.ask(W, "a1") == ALLOWED
    with pytest.raises(VersionConflict):
        await second.append(Write(W, asks=(DENIED,)))


# --- Grants ----------------------------------------------------------------------------------------------------------


async def test_grants_are_listed_in_order_until_deleted(store: Store) -> None:
    await with_workspace(store, "w1", "w2")
    always = grant("b", "", rule='bash(git "status") 🧰', created_at=9, given_by="client")
    await store.append(Write(W, grants=(always, grant("a"), grant("c", "s2"))))
    await store.append(Write("w2", grants=(grant("x", "", "w2"),)))
    assert await store.grants(W) == [always, grant("a"), grant("c", "s2")]
    await store.append(Write(W, grants=(grant("a", rule="view"),)))
    assert await store.grants(W) == [always, grant("a", rule="view"), grant("c", "s2")]
    # Grants of another workspace stay; unknown ids are ignored.
    await store.append(Write(W, deleted_grants=("x", "a", "nothing", "a")))
    assert await store.grants(W) == [always, grant("c", "s2")]
    assert await store.grants("w2") == [grant("x", "", "w2")]
    # Deletions are applied last. The id can be reused.
    await store.append(Write(W, grants=(grant("d"),), deleted_grants=("d",)))
    await store.append(Write(W, grants=(grant("a", "s3"),)))
    assert await store.grants(W) == [always, grant("c", "s2"), grant("a", "s3")]
    assert await store.grants("w9") == []


# --- File versions ---------------------------------------------------------------------------------------------------

CONTENTS = {
    "empty": b"",
    "binary": bytes(range(256)),
    "NULs": b"\0\0",
    "large": b"\xff\xfe" * 2_500_000,
}


@pytest.mark.parametrize("what", CONTENTS)
async def test_file_version_round_trips(data: StoreData, what: str) -> None:
    first = await data.open()
    await with_workspace(first, "w1", "w2")
    version = file_version(path="/home/ü 🗂/\n", after=("", "a"), created_at=2**53)
    await first.append(Write(W, files=(version,), originals={version.id: CONTENTS[what], "unknown": b"x"}))
    await first.close()
    second = await data.open()
    assert await second.file_versions(W, S, "r1") == [version]
    assert await second.file_version(W, version.id) == version
    assert await second.file_version("w2", version.id) is None
    assert await second.file_version(W, "unknown") is None
    # A rewrite replaces the version, but not its content.
    for changed in (replace(version, undone=True), replace(version, before="")):
        await second.append(Write(W, files=(changed,), originals={version.id: b"other"}))
        assert await second.file_version(W, version.id) == changed
    content = await second.original(W, version.id)
    assert (type(content), content) == (bytes, CONTENTS[what])
    for workspace_id, version_id in (("w2", version.id), (W, "unknown")):
        with pytest.raises(StoreDamaged, match=f"{version_id} of workspace {workspace_id} has no content"):
            await second.original(workspace_id, version_id)


async def test_file_versions_keep_insertion_order(store: Store) -> None:
    await with_workspace(store, "w1", "w2")
    b, a, c = file_version("b", run_id="r2"), file_version("a", created_at=0), file_version("c", run_id="r2")
    await store.append(Write(W, files=(b, a, file_version("x", "s2", run_id="r2"))))
    await store.append(Write(W, files=(c, replace(b, undone=True))))
    assert await store.file_versions(W, S, None) == [replace(b, undone=True), a, c]
    assert await store.file_versions(W, S, "r2") == [replace(b, undone=True), c]
    assert await store.file_versions(W, S, "r1") == [a]
    assert await store.file_versions(W, S, "") == []
    assert await store.file_versions("w2", S, None) == []
    assert await store.file_versions(W, "s9", None) == []


# --- Deletion --------------------------------------------------------------------------------------------------------


async def test_deleting_a_session_deletes_asks_grants_and_versions(store: Store) -> None:
    await with_workspace(store, "w1", "w2")
    for session_id in ("s1", "s2"):
        await store.append(
            Write(
                W,
                sessions=(session(session_id),),
                asks=(ask(f"a-{session_id}", session_id), ask(f"z-{session_id}", session_id, state="withdrawn")),
                grants=(grant(f"g-{session_id}", session_id), grant(f"always-{session_id}", "")),
                files=(file_version(f"f-{session_id}", session_id),),
                originals={f"f-{session_id}": b"first"},
            )
        )
    await store.append(Write("w2", deleted_sessions=("s1",)))
    assert len(await store.asks(W)) == 2, "a session is not deleted through another workspace"
    assert len(await store.grants(W)) == 4
    assert len(await store.file_versions(W, "s1", None)) == 1
    # Other records of the session in the same Write are deleted too.
    await store.append(Write(W, asks=(ask("late"),), grants=(grant("late"),), deleted_sessions=("s1",)))
    assert [row.id for row in await store.asks(W)] == ["a-s2"]
    assert await store.session_asks("s1") == []
    assert [await store.ask(W, ask_id) for ask_id in ("a-s1", "z-s1", "late")] == [None] * 3
    assert [row.id for row in await store.grants(W)] == ["always-s1", "g-s2", "always-s2"]
    assert await store.file_versions(W, "s1", None) == []
    assert await store.file_versions(W, "s2", None) == [file_version("f-s2", "s2")]
    assert await store.file_version(W, "f-s1") is None
    assert await store.original(W, "f-s2") == b"first"
    # The ids can be reused, and no old data returns.
    again = (ask("z-s1", "s3"), grant("g-s1", "s3"), file_version("f-s1", "s3", before=""))
    await store.append(Write(W, asks=again[:1], grants=again[1:2], files=again[2:]))
    assert await store.session_asks("s3") == [again[0]]
    assert await store.file_versions(W, "s3", None) == [again[2]]
    with pytest.raises(StoreDamaged):
        await store.original(W, "f-s1")
