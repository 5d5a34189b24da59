"""A data directory of an older kedge is brought up to date, with all that is in it."""

from __future__ import annotations

import signal
from pathlib import Path

import apsw
import pytest

from kedge.core.events import MessageChanged, RunAccepted, RunEnded, RunStarted
from kedge.core.records import Attachment, LaneRecord, Prompt, RunOptions, RunRecord, SessionRecord, Usage
from kedge.core.transcript import Finish, Message, Reasoning, Text, ToolCall, ToolResult
from kedge.errors import StoreDamaged
from kedge.store.base import Store, Write
from kedge.store.migrations import migrate, shipped, version_of
from kedge.store.sqlite import SqliteStore, page_checksums
from kedge.store.witness import Witness
from tests.store.samples import BASE, S, W, ask, ended, events, file_version, grant
from tests.store.test_sqlite import opened, python

ROWS = Path(__file__).parent / "written_by_0001.sql"
TRANSACTIONS = 4

ENDED = RunRecord(
    *("r1", S, W, 1, Prompt("List the files"), RunOptions("m", 5, 1.5, 0.25, "cancel")),
    content="7707600ff48c5e433f6c675f9f91766d6a37021a5fea07ce27b37580e9a5e130",
    accepted_at=10,
    position=BASE + 1,
    state="ended",
    accepted_state="active",
    queue_order=1,
    steps=2,
    outcome="completed",
    started_at=11,
    ended_at=12,
    message_id="m2",
    text="There are two.",
    usage=Usage(100, 20, 0.5),
)
QUEUED = RunRecord(
    *("r2", S, W, 2, Prompt("And now?", (Attachment("/a/b.png", "b.png", "image/png", "aGk="),)), RunOptions()),
    content="c4dbdf0a04e0c142fe1918446ce9fb7a42d69853e3034c606269f58884234d23",
    accepted_at=20,
    position=BASE + 5,
    queue_order=2,
)
SAID = (
    *(Reasoning("hm", "sig", 1, 2), ToolCall("c1", "ls", "{}", True)),
    *(Text("There are two. Or three."), Finish("end_turn", 12)),
)


def older(directory: Path) -> Path:
    """A data directory as the first schema had it, with page checksums and the note of the last transaction."""
    assert page_checksums()
    directory.mkdir(mode=0o700, exist_ok=True)
    path = directory / "kedge.db"
    db = apsw.Connection(str(path), vfs="cksmvfs")
    db.reserve_bytes(reserve=8)
    db.pragma("journal_mode", "wal")
    migrate(db, shipped()[:1])
    db.execute(ROWS.read_text("utf-8")).fetchall()
    assert version_of(db) == 1
    db.close()
    witness = Witness(directory / "kedge.head")
    witness.note(TRANSACTIONS, durable=True)
    witness.close()
    return path


async def check_all_is_there(store: Store) -> None:
    assert await store.verify(W) == 5
    assert [entry.event for entry in await store.read(W, 0, 10)] == [
        *(RunAccepted("r1", 1, False, 10), RunStarted("r1", 11), MessageChanged("m1", "created")),
        *(RunEnded("r1", "completed", "", 12), RunAccepted("r2", 2, False, 20)),
    ]
    # Equal as a whole: what these records did not have then is as if nobody had said anything about it.
    assert await store.sessions(W) == [
        SessionRecord(S, W, "Files", 1, 12, message_count=3, usage=Usage(100, 20, 0.5)),
    ]
    assert await store.lane(S) == (LaneRecord(S, 4, 3, 0), [QUEUED])
    assert await store.runs(S, 10) == [ENDED, QUEUED]
    assert await store.messages(S, None, 10) == [
        Message("m1", S, "user", (Text("List the files"),), 10, 10, "r1"),
        Message("m2", S, "assistant", SAID, 11, 12, "r1", "m", "p"),
        Message("m3", S, "tool", (ToolResult("c1", "ls", "a b"),), 11, 11, "r1"),
    ]
    assert [hit.message_id for hit in await store.search(W, "the", 10)] == ["m2", "m1"]
    assert (await store.asks(W), await store.grants(W), await store.file_versions(W, S, None)) == ([], [], [])


async def test_a_directory_of_the_first_schema_is_brought_up_to_date(tmp_path: Path) -> None:
    path = older(tmp_path)
    async with opened(tmp_path) as store:
        await check_all_is_there(store)
    async with opened(tmp_path) as store:
        await check_all_is_there(store)
        await store.append(events(ended("r2"), asks=(ask(),), grants=(grant(),), files=(file_version(),)))
        assert await store.asks(W) == [ask()]
        assert await store.verify(W) == 6
        await store.append(Write(W, deleted_sessions=(S,)))
        assert (await store.asks(W), await store.grants(W), await store.runs_with_files(S)) == ([], [], [])
    db = apsw.Connection(str(path), vfs="cksmvfs")
    assert version_of(db) == len(shipped())
    assert db.pragma("integrity_check") == "ok"
    db.close()


async def test_an_older_directory_that_lost_its_end_is_refused_as_well(tmp_path: Path) -> None:
    older(tmp_path)
    witness = Witness(tmp_path / "kedge.head")
    witness.note(TRANSACTIONS + 1, durable=True)
    witness.close()
    with pytest.raises(StoreDamaged, match="lost what was acknowledged"):
        await SqliteStore(tmp_path).open()


MIGRATE_AND_DIE = """
import os, signal, sys, apsw
from kedge.store.migrations import Migration, migrate, shipped
from kedge.store.sqlite import page_checksums
assert page_checksums()
db = apsw.Connection(sys.argv[1], vfs="cksmvfs")
db.create_scalar_function("die", lambda: os.kill(os.getpid(), signal.SIGKILL))
migrate(db, [*shipped(), Migration(len(shipped()) + 1, "deadly", "DELETE FROM runs; SELECT die()")])
"""


async def test_an_older_directory_killed_in_the_middle_of_its_migration_is_as_it_was(tmp_path: Path) -> None:
    path = older(tmp_path)
    process = python(MIGRATE_AND_DIE, path)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    db = apsw.Connection(str(path), vfs="cksmvfs")
    assert version_of(db) == 1
    assert db.execute("SELECT 1 FROM sqlite_schema WHERE name = 'asks'").fetchall() == []
    db.close()
    async with opened(tmp_path) as store:
        await check_all_is_there(store)
