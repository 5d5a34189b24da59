"""Copies between real databases: everything that a store returns is the same, and a part of a copy is never served."""

from __future__ import annotations

import asyncio
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from random import Random
from typing import Any

import apsw
import pytest

from kedge.core.audit import AuditEntry
from kedge.core.transcript import AttachedFile, Text
from kedge.core.users import UserRecord
from kedge.errors import BadConfig, StoreDamaged, StoreError, StoreLocked, StoreUnavailable
from kedge.store import postgres_transfer, sqlite_transfer, transfer
from kedge.store.base import Store, Write
from kedge.store.leases import NodeInfo, NodeLoad
from kedge.store.locations import check, copy
from kedge.store.postgres import PostgresStore
from kedge.store.sqlite import SqliteStore
from kedge.store.sqlite_connect import has_page_checksums
from kedge.store.transfer import CopyReport, StoreRows, TransferProgress
from tests.source import ROOT
from tests.store.conftest import sql
from tests.store.samples import (
    W,
    content,
    copy_all,
    file_version,
    grant,
    lane,
    message,
    run,
    session,
    tail,
    with_workspace,
    workspace,
)
from tests.store.workload import apply_step, workload

#: Steps of a workload: enough for each kind of step, in a second.
STEPS = 250
EVE = UserRecord("eve", "spectator", "e" * 64, 5)
WORDS = ("some", "whole", "nul", "hidden", "wor")


def ignore(_: TransferProgress) -> None:
    pass


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Store]:
    is_sqlite = url.startswith("sqlite:")
    store: Store = SqliteStore(Path(url.removeprefix("sqlite://"))) if is_sqlite else PostgresStore(url)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def fill(store: SqliteStore, seed: int) -> None:
    """Apply a workload, and add what needs care: hidden rows, odd texts, large contents."""
    for step in workload(Random(seed), STEPS):
        if step.name != "reopen":
            await apply_step(store, step)
    await with_workspace(store, "hidden", "removed")
    long = tuple(message(f"c{number}", f"long {number} " * 20_000, "s-cut") for number in range(12))
    shown = message("shown", parts=(AttachedFile("a", "", 1, content(b"only hidden").digest),), session_id="s-hidden")
    hidden = run("r-hidden", "s-hidden", "hidden", state="ended", ended_at=3)
    odd = message("nul", "nul \0 and \1 and é", "s-cut", parts=(Text("nul \0 \1 é"),), is_summary=True)
    await store.append(
        Write(
            "hidden",
            sessions=(session("s-hidden", "hidden"), session("s-cut", "hidden", title="\0\1")),
            runs=(hidden, run("r-cut", "s-cut", "hidden", seq=9)),
            messages=(shown, odd, *long),
            tails=(tail("tail \0", "nul", session_id="s-cut"), tail("more", "nul", part=0, session_id="s-cut")),
            attachments=(content(b"only hidden"), content(b"x" * 3_000_000)),
            files=(file_version("f-large", "s-cut", "hidden"),),
            originals={"f-large": b"y" * 2_000_000},
        )
    )
    await copy_all(store, "s-cut", "s-copy", "c3", "hidden")  # and never completed
    await store.append(Write("hidden", cuts=(("s-cut", "c9"),), deleted_sessions=("s-hidden",)))
    await store.append(Write("w1", grants=(grant("g-all", "", "w1"), grant("g-other", "", "w1"))))
    await store.users.add(EVE, AuditEntry(5, "", "add_user", detail="eve"))
    await store.append(Write("removed", audit=(AuditEntry(6, "eve", "submit", "removed", detail="\0"),)))
    await store.append(Write("removed", sessions=(session("s-removed", "removed"),)))
    await store.remove_workspace("removed")


async def everything(store: Store) -> list[Any]:
    """Return all that the reads of a store return."""
    seen: list[Any] = [await store.workspaces(), await store.live_workspaces(), await store.known_workspaces("", 99)]
    seen += [await store.run_facts(0, 10_000, 0, 2**60), await store.users.all(), await store.users.audit(1000)]
    for record in await store.workspaces():
        owner = record.id
        entries = await store.read(owner, 0, 100_000)
        seen += [await store.bounds(owner), await store.verify(owner), entries, await store.sessions(owner)]
        seen += [await store.live_runs(owner), await store.asks(owner), await store.grants(owner)]
        seen += [await store.search(owner, word, 100) for word in WORDS]
        for session_id in sorted({entry.session_id for entry in entries} | {"s-cut", "s-hidden", "s-copy"}):
            runs = await store.runs(session_id, 10_000)
            files = await store.file_versions(owner, session_id, None)
            messages = await store.messages(session_id, None, 10_000)
            seen += [await store.lane(session_id), runs, messages, files]
            seen += [await store.session_asks(session_id, settled=True)]
            seen += [await store.run(owner, one.run_id) for one in runs]
            seen += [await store.original(owner, file.id) for file in files if file.before]
            digests = {file.digest for one in runs for file in one.prompt.attachments if one.workspace_id == owner}
            seen += [await store.attachment(owner, digest) for digest in sorted(digests)]
    return seen


async def copied(source: str, target: str) -> CopyReport:
    return await copy(source, target, ignore)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("filled") / "data"

    async def fill_store() -> None:
        async with opened(f"sqlite://{directory}") as store:
            assert isinstance(store, SqliteStore)
            await fill(store, 7)

    asyncio.run(fill_store())
    return directory


@pytest.fixture
def source(filled: Path, tmp_path: Path) -> str:
    """The URL of a SQLite store with some content."""
    shutil.copytree(filled, tmp_path / "source")
    return f"sqlite://{tmp_path}/source"


async def test_copies_return_the_same_everywhere(source: str, tmp_path: Path, new_database: str) -> None:
    async with opened(source) as store:
        expected = await everything(store)
    back = f"sqlite://{tmp_path}/back"
    there, returned = await copied(source, new_database), await copied(new_database, back)
    assert there.tables == returned.tables
    assert [name for name, table in there.tables.items() if not table.rows] == []
    for url in (new_database, back):
        async with opened(url) as store:
            assert await everything(store) == expected
            # Nothing is left to remove, and ids of rows that were left out are free.
            assert not await store.purge()
            again = message("c9", session_id="s-hidden")
            await store.append(Write("hidden", sessions=(session("s-hidden", "hidden"),), messages=(again,)))
    report = await check(back, ignore)
    assert (report.workspaces, report.damage) == (3, [])
    assert report.rows["attachments"] >= 2


async def test_copies_of_one_kind(source: str, tmp_path: Path, new_database: str, database: str) -> None:
    async with opened(source) as store:
        expected = await everything(store)
    await copied(source, f"sqlite://{tmp_path}/other")
    await copied(f"sqlite://{tmp_path}/other", database)
    await copied(database, new_database)
    async with opened(new_database) as store:
        assert await everything(store) == expected


async def test_copy_takes_further_writes(source: str, new_database: str) -> None:
    await copied(source, new_database)
    async with opened(source) as first, opened(new_database) as second:
        for store in (first, second):
            bounds = await store.bounds("w1")
            write = Write("w1", lane=lane(1, 0, "new"), messages=(message("new", "some new words", "new"),))
            await store.append(write)
            assert await store.bounds("w1") == bounds
            hits = await store.search("w1", "some new words", 9)
            assert [hit.message_id for hit in hits] == ["new"]


async def test_target_must_be_empty(source: str, tmp_path: Path, database: str) -> None:
    for target in (database, f"sqlite://{tmp_path}/target"):
        async with opened(target) as store:
            await with_workspace(store, "other")
        with pytest.raises(StoreError, match="is not empty: it has 1 workspaces"):
            await copied(source, target)
        async with opened(target) as store:
            assert await store.workspaces() == [workspace("other")]
            await store.remove_workspace("other")
            await store.users.add(EVE, AuditEntry(5, "", "add_user"))
        with pytest.raises(StoreError, match="it has 1 users"):
            await copied(source, target)
        async with opened(target) as store:
            assert await store.users.all() == [EVE]
            await store.users.remove("eve", AuditEntry(6, "", "revoke_user"))
        await copied(source, target)
        async with opened(target) as store:
            assert len(await store.workspaces()) == 3


async def test_same_store_is_refused(source: str, tmp_path: Path, database: str) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "source")
    for first, second in ((source, f"sqlite://{tmp_path}/link"), (database, database)):
        with pytest.raises(BadConfig, match="FROM and TO are the same store"):
            await copied(first, second)
    async with opened(database):
        pass
    with pytest.raises(StoreError, match="is in use by a server or another `kedge store copy`"):
        await copied(database, f"{database}&application_name=other")


async def test_urls_without_a_store_are_refused(source: str, tmp_path: Path, new_database: str) -> None:
    for url in ("memory:", "/tmp/data", "mysql://user:secret@host/db"):
        with pytest.raises(BadConfig) as error:
            await check(url, ignore)
        assert "secret" not in error.value.message
    for missing in (f"sqlite://{tmp_path}/none", new_database):
        for work in (check(missing, ignore), copied(missing, f"sqlite://{tmp_path}/target")):
            with pytest.raises(StoreError, match="has no store"):
                await work
    assert not (tmp_path / "none").exists()
    assert not (tmp_path / "target").exists()


async def test_stores_in_use_are_refused(source: str, tmp_path: Path, database: str) -> None:
    async with opened(source), opened(database) as store:
        for work in (check(source, ignore), copied(source, f"sqlite://{tmp_path}/a"), copied(database, source)):
            with pytest.raises((StoreLocked, StoreError), match="is in use by"):
                await work
        with pytest.raises(StoreError, match="in use by a server"):
            await copied(database, f"sqlite://{tmp_path}/a")
        # A check of a database changes nothing.
        assert (await check(database, ignore)).damage == []
        assert isinstance(store, PostgresStore)
        await store.register(NodeInfo("a", "", ("/",), store.incarnation, "h"))
        with pytest.raises(StoreError, match="in use by node a; stop all servers"):
            await copied(database, f"sqlite://{tmp_path}/a")
        await store.heartbeat(NodeLoad())


async def test_no_server_can_start_during_a_copy(source: str, tmp_path: Path, new_database: str) -> None:
    """The stores are locked while they are open for a copy."""
    target = await postgres_transfer.open_target(new_database)
    try:
        with pytest.raises(StoreUnavailable, match="is being copied by `kedge store copy`"):
            await open_and_close(PostgresStore(new_database))
    finally:
        await target.close()
    empty = await sqlite_transfer.open_target(tmp_path / "target")
    with pytest.raises(StoreLocked):
        await open_and_close(SqliteStore(tmp_path / "target"))
    await empty.close()
    await open_and_close(PostgresStore(new_database))
    await open_and_close(SqliteStore(tmp_path / "target"))


async def open_and_close(store: Store) -> None:
    await store.open()
    await store.close()


# --- Failures --------------------------------------------------------------------------------------------------------

#: A copy in a process that is killed when it has copied this table.
KILLED = """
import asyncio, os, signal, sys
from kedge.store.locations import copy

def report(progress):
    if (progress.step, progress.table) == (sys.argv[3], sys.argv[4]):
        os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(copy(sys.argv[1], sys.argv[2], report))
"""


@pytest.mark.parametrize(("step", "table"), [("copy", "messages"), ("compare", "run_facts")])
async def test_killed_copy_is_not_served(source: str, tmp_path: Path, new_database: str, step: str, table: str) -> None:
    directory = f"sqlite://{tmp_path}/target"
    for target in (new_database, directory):
        command = [sys.executable, "-c", KILLED, source, target, step, table]
        done = await asyncio.to_thread(subprocess.run, command, cwd=ROOT, env={"PYTHONPATH": "src"})
        assert done.returncode == -signal.SIGKILL
    with pytest.raises(StoreError, match="part of a copy that was interrupted; repeat `kedge store copy`"):
        await open_and_close(PostgresStore(new_database))
    for work in (check(new_database, ignore), copied(new_database, f"sqlite://{tmp_path}/other")):
        with pytest.raises(StoreError, match="interrupted"):
            await work
    with pytest.raises(StoreError, match="has no store"):
        await check(directory, ignore)
    for target in (new_database, directory):
        await copied(source, target)
        async with opened(source) as first, opened(target) as second:
            assert await everything(second) == await everything(first)
    assert sorted(path.name for path in (tmp_path / "target").iterdir()) == ["kedge.db", "kedge.head", "kedge.lock"]


async def test_failed_copy_leaves_an_empty_store(source: str, tmp_path: Path, new_database: str) -> None:
    with past_the_store(tmp_path / "source") as db:
        db.execute("UPDATE messages SET parts = x'00' WHERE id = 'nul'")
    directory = f"sqlite://{tmp_path}/target"
    for target in (new_database, directory):
        with pytest.raises(StoreDamaged, match="cannot decode message nul"):
            await copied(source, target)
        async with opened(target) as store:
            assert await store.workspaces() == []


async def test_copy_that_differs_is_refused(source: str, tmp_path: Path, new_database: str) -> None:
    """The comparison finds a row that changed on the way."""
    rows: StoreRows = await sqlite_transfer.open_rows(tmp_path / "source")
    target = await postgres_transfer.open_target(new_database)

    is_changed = False

    def change(progress: TransferProgress) -> None:
        nonlocal is_changed
        if progress.step == "compare" and not is_changed:
            is_changed = True
            statement = "UPDATE grants SET record = record || ' ' WHERE id = (SELECT min(id) FROM grants)"
            subprocess.run([sys.executable, "-c", CHANGE, new_database, statement], check=True, cwd=ROOT)

    with pytest.raises(StoreError, match="differs from .* in the table grants"):
        await transfer.copy_store(rows, target, change)
    await target.close()
    await rows.close()


CHANGE = """
import asyncio, sys
from tests.store.conftest import sql
asyncio.run(sql(*sys.argv[1:]))
"""


# --- Checks ----------------------------------------------------------------------------------------------------------


@contextmanager
def past_the_store(directory: Path) -> Iterator[apsw.Connection]:
    """Open the database past the store. The checksums of its pages are maintained."""
    db = apsw.Connection(str(directory / "kedge.db"), vfs="cksmvfs" if has_page_checksums() else None)
    try:
        yield db
    finally:
        db.close()


#: A statement for both databases with the value of $1, the workspace that it damages, and the report.
DAMAGE: dict[str, tuple[str, Any, str, str]] = {
    "log": ("UPDATE log SET payload = $1 WHERE workspace_id = 'w1'", b"x", "w1", "hash of the entry"),
    "sessions": ("UPDATE sessions SET record = $1 WHERE id = 's-cut'", b"{}", "hidden", "record of a session"),
    "columns": ("UPDATE runs SET seq = $1 WHERE run_id = 'r-cut'", 77, "hidden", "columns of Run r-cut"),
    "prompts": ("UPDATE {prompts} SET prompt = $1 WHERE run_id = 'r-cut'", b"{", "hidden", "Run r-cut: cannot decode"),
    "messages": ("UPDATE messages SET parts = $1 WHERE id = 'nul'", b"[", "hidden", "message nul"),
    "contents": ("UPDATE {contents} SET content = $1", b"z", "hidden", "does not match its digest"),
    "missing": ("DELETE FROM attachments WHERE workspace_id = $1", "w2", "w2", "is missing"),
    "grants": ("UPDATE grants SET record = $1 WHERE workspace_id = 'w1'", b"x", "w1", "record of a grant"),
    "facts": ("UPDATE run_facts SET facts = $1 WHERE workspace_id = 'w2'", b"[]", "w2", "facts of a Run"),
    "roles": ("UPDATE users SET role = $1", "chief", "", "cannot read user eve"),
    "audit": ("UPDATE audit SET entry = $1 WHERE author = 'eve'", b"{", "removed", "an audit entry"),
    "authors": ("UPDATE audit SET author = $1 WHERE author = 'eve'", "bob", "removed", "columns of an audit entry"),
}


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
@pytest.mark.parametrize("damage", DAMAGE)
async def test_check_reports_damage(source: str, tmp_path: Path, database: str, kind: str, damage: str) -> None:
    statement, value, workspace_id, reason = DAMAGE[damage]
    url = source
    if kind == "sqlite":
        with past_the_store(tmp_path / "source") as db:
            db.execute(statement.format(contents="attachment_contents", prompts="prompts"), (value,))
    else:
        url = database
        await copied(source, url)
        await sql(url, statement.format(contents="attachments", prompts="runs"), value)
    report = await check(url, ignore)
    messages = {one.workspace_id: one.message for one in report.damage}
    assert reason in messages[workspace_id]
    assert damage == "contents" or list(messages) == [workspace_id]
    with pytest.raises(StoreError):
        await copied(url, f"sqlite://{tmp_path}/target")


async def test_check_continues_after_a_damaged_page(source: str, tmp_path: Path) -> None:
    """A page that cannot be read is reported, and the other tables are still checked."""
    with past_the_store(tmp_path / "source") as db:
        ((page,),) = db.execute("SELECT pageno FROM dbstat WHERE name = 'grants' ORDER BY pageno LIMIT 1").fetchall()
        db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    with (tmp_path / "source" / "kedge.db").open("r+b") as file:
        file.seek((int(str(page)) - 1) * 4096 + 2_000)
        file.write(b"\xff" * 64)
    report = await check(source, ignore)
    assert [one.workspace_id for one in report.damage] == [""]
    assert "checksum" in report.damage[0].message
    assert report.rows["file_versions"] > 0


async def test_check_of_a_database_in_use(database: str) -> None:
    async with opened(database) as store:
        await with_workspace(store, W, "w2")
        await store.append(Write(W, sessions=(session(),), runs=(run(),), messages=(message(),)))
        report = await check(database, ignore)
        assert (report.workspaces, report.rows["runs"], report.damage) == (2, 1, [])
