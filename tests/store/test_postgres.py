"""The PostgreSQL store: several processes on one database, and refused databases."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from kedge.errors import BadConfig, KedgeError, StoreError, StoreLocked, StoreUnavailable, VersionConflict
from kedge.store.base import Write
from kedge.store.data_directory import DataDirectory
from kedge.store.leases import NodeInfo
from kedge.store.postgres import PostgresStore
from kedge.store.postgres_connect import parse_url, store_error
from kedge.store.postgres_listen import PAYLOAD_BYTES_MAX, payload
from tests.store.conftest import sql
from tests.store.samples import (
    BASE,
    S,
    W,
    accepted,
    copy_all,
    ended,
    events,
    message,
    reclaim_all,
    run,
    session,
    started,
    with_workspace,
)


@contextlib.asynccontextmanager
async def opened(url: str, **options: Any) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(url, **options)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


# --- Several processes -----------------------------------------------------------------------------------------------


async def test_two_stores_append_to_one_log_without_a_hole(database: str) -> None:
    async with opened(database) as one, opened(database) as two:
        await with_workspace(one)
        followed: list[int] = []

        async def follow() -> None:
            """Read the log as a stream does, while it grows."""
            while len(followed) < 600:
                entries = await two.read(W, followed[-1] if followed else 0, 50)
                followed.extend(entry.position for entry in entries)

        following = asyncio.create_task(follow())
        writes = [events(accepted(f"r{number}"), started(f"r{number}")) for number in range(300)]
        heads = await asyncio.gather(*((one, two)[number % 2].append(write) for number, write in enumerate(writes)))
        await following
        assert followed == list(range(BASE + 1, BASE + 601))
        assert sorted(heads) == list(range(BASE + 2, BASE + 601, 2))
        assert await one.verify(W) == 600


async def test_run_ends_once_in_all_processes(database: str) -> None:
    async with opened(database) as one, opened(database) as two:
        await with_workspace(one)
        await one.append(events(*(accepted(f"r{number}") for number in range(20))))
        ends = [store.append(events(ended(f"r{number}"))) for number in range(20) for store in (one, two)]
        results = await asyncio.gather(*ends, return_exceptions=True)
        assert sum(isinstance(result, int) for result in results) == 20
        assert sum(isinstance(result, VersionConflict) for result in results) == 20
        assert await two.bounds(W) == (BASE, BASE + 40)


async def test_concurrent_writes_share_a_transaction(database: str) -> None:
    async with opened(database) as store:
        await with_workspace(store, "w1", "w2")
        writes = []
        for number in range(100):
            owner = f"w{number % 2 + 1}"
            made = run(f"r{number}", f"s{number}", owner)
            writes.append(events(accepted(made.run_id), workspace_id=owner, runs=(made,)))
        await asyncio.gather(*map(store.append, writes))
        assert store.database.appends.commits <= 3
        assert len(await store.live_runs("w1")) == 50


async def test_locked_workspace_does_not_delay_the_others(database: str) -> None:
    async with opened(database) as store:
        await with_workspace(store, "w1", "w2")
        url = parse_url(database)
        other = await asyncpg.connect(url.dsn, server_settings={"search_path": url.schema})
        transaction = other.transaction()
        await transaction.start()
        await other.execute("SELECT 1 FROM workspaces WHERE id = 'w1' FOR UPDATE")
        waiting = [asyncio.create_task(store.append(events(accepted(f"r{number}")))) for number in range(3)]
        for number in range(3):
            assert await store.append(events(accepted(), workspace_id="w2")) == BASE + number + 1
        assert not any(task.done() for task in waiting)
        await transaction.rollback()
        await other.close()
        assert await asyncio.gather(*waiting) == [BASE + 1, BASE + 2, BASE + 3]


async def test_database_is_created_once_by_many_processes(new_database: str) -> None:
    stores = [PostgresStore(new_database) for _ in range(4)]
    await asyncio.gather(*(store.open() for store in stores))
    await with_workspace(stores[0])
    assert [len(await store.workspaces()) for store in stores] == [1, 1, 1, 1]
    for store in stores:
        await store.close()


async def test_copy_of_a_living_process_is_kept_by_the_others(database: str) -> None:
    async with opened(database) as one, opened(database) as two:
        await with_workspace(one)
        await one.append(Write(W, sessions=(session(),), messages=tuple(message(f"m{number}") for number in range(9))))
        assert len(await copy_all(one, S, "s2", "m8")) == 8
        async with opened(database) as three:
            assert await reclaim_all(two) + await reclaim_all(three) == 0
        await one.append(Write(W, sessions=(session("s2"),)))
        assert len(await two.messages("s2", None, 99)) == 8


async def test_copy_of_an_ended_process_is_removed_by_another(database: str) -> None:
    async with opened(database) as two:
        async with opened(database) as one:
            await with_workspace(one)
            await one.append(Write(W, sessions=(session(),), messages=(message(), message("m2"))))
            await copy_all(one, S, "s2", "m2")
        assert await reclaim_all(two) > 0
        await two.append(Write(W, sessions=(session("s2"),)))
        assert await two.messages("s2", None, 9) == []
        assert await sql(database, "SELECT 1 FROM messages WHERE session_id = $1", "s2") == []


async def test_copy_that_others_gave_up_cannot_be_completed(database: str) -> None:
    """Otherwise a rewind would cut the messages whose copies are gone."""
    async with opened(database) as store:
        await with_workspace(store)
        await store.append(Write(W, sessions=(session(),), messages=(message(), message("m2"), message("m3"))))
        await store.copy_messages(W, S, "s2", "", "m3", ["c1"])
        await sql(database, "UPDATE hidden_sessions SET writer = '' WHERE session_id = $1 RETURNING 1", "s2")
        with pytest.raises(VersionConflict, match="given up"):
            await store.copy_messages(W, S, "s2", "m1", "m3", ["c2"])
        for _ in range(2):
            with pytest.raises(VersionConflict, match="given up"):
                await store.append(Write(W, sessions=(session("s2"),), cuts=((S, "m2"),)))
            await reclaim_all(store)
        assert len(await store.messages(S, None, 9)) == 3
        await store.append(Write(W, deleted_sessions=("s2",)))
        await store.append(Write(W, sessions=(session("s2"),)))


async def test_removed_workspace_is_purged_by_two_processes(database: str) -> None:
    async with opened(database) as one, opened(database) as two:
        await with_workspace(one)
        messages = tuple(message(f"m{number}") for number in range(500))
        await one.append(events(accepted(), sessions=(session(),), messages=messages))
        await one.remove_workspace(W)

        async def purge(store: PostgresStore) -> None:
            while await store.purge():
                pass

        await asyncio.gather(purge(one), purge(two))
        while await one.purge():
            pass
        for table in ("messages", "log", "sessions", "hidden_sessions", "message_tokens", "removed_workspaces"):
            assert await sql(database, f"SELECT 1 FROM {table} WHERE $1 LIMIT 1", True) == []


# --- Wake-ups --------------------------------------------------------------------------------------------------------


async def test_releases_wake_up_the_other_processes(database: str) -> None:
    woken: asyncio.Queue[frozenset[str]] = asyncio.Queue()
    async with opened(database) as one, opened(database) as two:
        await with_workspace(one, "w1", "w2")
        two.listen(woken.put_nowait)
        assert await woken.get() == frozenset()
        await one.register(NodeInfo("one", "", (), one.incarnation, "host"))
        await one.claim("w1")
        await one.claim("w2")
        await one.release("w2")
        assert await woken.get() == {"w2"}
        terminate = (
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND query LIKE $1"
        )
        await sql(database, terminate, f"%{parse_url(database).schema}%")
        assert await woken.get() == frozenset(), "after each new connection"
        await one.unregister()
        assert await woken.get() == {"w1"}


def test_long_list_of_changes_means_all() -> None:
    assert payload({"w2", "w1"}) == "w1\nw2"
    assert payload(f"workspace {number}" for number in range(2_000)) == ""
    assert len(payload({"w" * PAYLOAD_BYTES_MAX})) == PAYLOAD_BYTES_MAX


# --- Refused databases -----------------------------------------------------------------------------------------------


async def refusal(url: str, **options: Any) -> str:
    store = PostgresStore(url, **options)
    with pytest.raises(KedgeError) as raised:
        await store.open()
    await store.close()
    assert "\n" not in str(raised.value)
    return str(raised.value)


async def test_newer_schema_is_refused(new_database: str) -> None:
    async with opened(new_database):
        pass
    await sql(new_database, "UPDATE kedge_schema SET version = $1 RETURNING 1", 99)
    assert "was written by a newer kedge (schema 99" in await refusal(new_database)


async def test_schema_of_another_program_is_refused(new_database: str) -> None:
    schema = parse_url(new_database).schema
    await sql(new_database, f"CREATE SCHEMA {schema}; CREATE TABLE {schema}.accounts (id INTEGER)")
    assert "has tables of another program" in await refusal(new_database)
    assert len(await sql(new_database, "SELECT * FROM pg_class WHERE relnamespace = to_regnamespace($1)", schema)) == 1


async def test_database_of_another_cluster_is_refused(new_database: str) -> None:
    async with opened(new_database):
        pass
    async with opened(new_database, cluster_id="one"), opened(new_database, cluster_id="one"):
        pass
    for other in ("two", ""):
        assert "this database belongs to another cluster" in await refusal(new_database, cluster_id=other)


async def test_errors_never_contain_the_password(postgres_url: str) -> None:
    address = parse_url(postgres_url).dsn
    port = address.rpartition("port=")[2] if "port=" in address else "5432"
    for url, part in (
        (f"postgresql://kedge:s3cret%21@127.0.0.1:{port}/postgres?sslmode=disable", "check the user and the password"),
        ("postgresql://kedge:s3cret%21@127.0.0.1:1/postgres", "check that PostgreSQL runs"),
        ("postgresql://kedge:s3cret%21@127.0.0.1/postgres?sslmode=maybe", "correct the URL of the store"),
    ):
        text = await refusal(url)
        assert part in text
        assert "s3cret" not in text
        assert "s3cret" not in repr(parse_url(url))
    quoting = asyncpg.PostgresError("could not use postgresql://kedge:s3cret%21@h/x, password s3cret!")
    assert "s3cret" not in str(store_error(quoting, parse_url("postgresql://kedge:s3cret%21@h/x")))
    for wrong in ("postgresql://kedge:s3cret@h:port/x", "postgresql://kedge:s3cret@[/x", "mysql://kedge:s3cret@h/x"):
        with pytest.raises(BadConfig) as raised:
            PostgresStore(wrong)
        assert "s3cret" not in str(raised.value)


def test_errors_of_the_database_have_a_remedy() -> None:
    url = parse_url("postgresql://kedge:s3cret@db.example/kedge")
    for error, remedy in (
        (asyncpg.DiskFullError("could not extend file"), "its disk is full; free some space"),
        (asyncpg.ReadOnlySQLTransactionError("cannot execute"), "connect to the primary server"),
        (asyncpg.TooManyConnectionsError("too many clients"), "raise max_connections"),
        (ConnectionRefusedError(111, "Connection refused"), "check that PostgreSQL runs"),
    ):
        converted = store_error(error, url)
        assert isinstance(converted, StoreUnavailable)
        assert "the database kedge at db.example failed" in str(converted)
        assert remedy in str(converted)


# --- The server ------------------------------------------------------------------------------------------------------


async def test_data_directory_is_locked_while_the_store_is_open(database: str, tmp_path: Path) -> None:
    async with opened(database, directory=DataDirectory(tmp_path / "data")) as store:
        await with_workspace(store)
        other = PostgresStore(database, DataDirectory(tmp_path / "data"))
        with pytest.raises(StoreLocked):
            await other.open()
        (tmp_path / "data" / "kedge.lock").unlink()
        with pytest.raises(StoreUnavailable, match="was removed or replaced"):
            await store.append(events(accepted()))
    async with opened(database, directory=DataDirectory(tmp_path / "data")):
        pass


async def test_store_opens_once(database: str) -> None:
    async with opened(database) as store:
        with pytest.raises(StoreError):
            await store.open()


def test_missing_driver_is_reported_in_one_line(tmp_path: Path) -> None:
    program = (
        "import sys\nsys.modules['asyncpg'] = None\nfrom kedge.server.startup import serve\n"
        "sys.exit(serve(store='postgresql://kedge:s3cret@127.0.0.1/kedge', data_dir=sys.argv[1]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "data")], capture_output=True, text=True, timeout=50, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith("kedge: The store in PostgreSQL needs the extra: pip install 'kedge[postgres]'")
    assert len(done.stderr.splitlines()) == 1
