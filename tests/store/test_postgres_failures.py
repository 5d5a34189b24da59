"""The PostgreSQL store when connections break, statements hang, and the server stops."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Iterator

import asyncpg
import pytest

from kedge.errors import StoreUnavailable
from kedge.store import postgres_write
from kedge.store.base import Write
from kedge.store.postgres import PostgresStore
from kedge.store.postgres_connect import PostgresConnection
from tests.postgres_server import PostgresServer
from tests.store.conftest import sql
from tests.store.samples import BASE, W, accepted, ended, events, file_version, with_workspace
from tests.store.small_disks import mounted
from tests.store.tcp_proxy import TcpProxy
from tests.store.test_postgres import opened


@pytest.fixture(scope="module")
def module_server() -> Iterator[PostgresServer]:
    server = PostgresServer()
    yield server
    server.close()


@pytest.fixture
def server(module_server: PostgresServer) -> Iterator[PostgresServer]:
    """A server of this module, which a test may stop."""
    module_server.start()
    yield module_server
    asyncio.run(sql(module_server.url, "DROP SCHEMA IF EXISTS kedge CASCADE"))
    module_server.stop()


@pytest.fixture
def short_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kedge.store.postgres_connect.STATEMENT_S", 0.4)
    monkeypatch.setattr("kedge.store.postgres_connect.ANSWER_S", 0.1)
    monkeypatch.setattr("kedge.store.postgres_connect.LOCK_S", 0.2)
    monkeypatch.setattr("kedge.store.postgres_connect.CONNECT_S", 2.0)


async def appended_again(store: PostgresStore, count: int) -> None:
    """Append until the store has a connection again; check the whole log."""
    for number in range(count):
        await store.append(events(accepted(f"again {number}")))
    floor, head = await store.bounds(W)
    assert await store.verify(W) == head - floor


@pytest.mark.parametrize("how", ["request lost", "answer lost", "half closed"])
async def test_connection_is_cut_in_the_middle_of_an_append(server: PostgresServer, how: str) -> None:
    async with TcpProxy(server.port) as proxy, opened(server.tcp_url(proxy.port)) as store:
        await with_workspace(store)
        await store.append(events(accepted()))
        (proxy.to_server if how == "request lost" else proxy.from_server).clear()
        appends = [asyncio.create_task(store.append(events(accepted(f"r{number}")))) for number in range(5)]
        await proxy.is_holding.wait()
        if how == "half closed":
            proxy.half_close()
        else:
            proxy.cut()
        results = await asyncio.gather(*appends, return_exceptions=True)
        assert all(isinstance(result, StoreUnavailable) for result in results), results
        assert "s3cret" not in str(results[0])
        proxy.to_server.set()
        proxy.from_server.set()
        await appended_again(store, 3)
        entries = [entry.event for entry in await store.read(W, 0, 99)]
        assert entries[-3:] == [accepted(f"again {number}") for number in range(3)]
        # The transaction that was cut has happened as a whole, or not at all.
        assert entries[1:-3] in ([], [accepted(f"r{number}") for number in range(5)])


@pytest.mark.usefixtures("short_limits")
async def test_silent_connection_is_given_up(server: PostgresServer) -> None:
    async with TcpProxy(server.port) as proxy, opened(server.tcp_url(proxy.port)) as store:
        await with_workspace(store)
        await store.append(events(accepted()))
        proxy.from_server.clear()
        for call in (store.append(events(accepted("r2"))), store.bounds(W)):
            with pytest.raises(StoreUnavailable, match="does not answer"):
                await call
        proxy.from_server.set()
        await appended_again(store, 2)


async def test_cancelled_callers_leave_no_transaction_open(server: PostgresServer) -> None:
    async with TcpProxy(server.port) as proxy, opened(server.tcp_url(proxy.port)) as store:
        await with_workspace(store)
        await store.append(events(accepted()))
        proxy.from_server.clear()
        calls = [asyncio.create_task(store.append(events(accepted(f"r{number}")))) for number in range(5)]
        calls += [asyncio.create_task(store.verify(W)) for _ in range(5)]
        await proxy.is_holding.wait()
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        proxy.from_server.set()
        await appended_again(store, 1)
        assert await store.verify(W) == 7, "a Write is completed even if its caller was cancelled"
        query = "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1 AND state <> 'idle'"
        while await sql(server.url, query, "kedge") != [(0,)]:  # the cancelled reads may not have ended yet
            pass


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT])
async def test_server_is_stopped_and_started(server: PostgresServer, how: signal.Signals) -> None:
    woken: asyncio.Queue[frozenset[str]] = asyncio.Queue()
    async with opened(server.tcp_url()) as store:
        await with_workspace(store)
        await asyncio.gather(*(store.append(events(accepted(f"r{number}"))) for number in range(20)))
        store.listen(woken.put_nowait)
        await woken.get()
        server.stop(how)
        for call in (store.append(events(ended("r1"))), store.bounds(W), store.trim(W, 3)):
            with pytest.raises(StoreUnavailable, match="check that PostgreSQL runs"):
                await call
        server.start()
        assert await store.bounds(W) == (BASE, BASE + 20)
        await appended_again(store, 2)
        while await woken.get() != frozenset():  # after the new connection: changes may have been missed
            pass


async def test_full_disk_loses_no_acknowledged_write(server: PostgresServer) -> None:
    with mounted(server.directory / "small", f"size=24m,uid={server.directory.stat().st_uid}") as disk:
        await sql(server.url, f"CREATE TABLESPACE small LOCATION '{disk}'")
        await sql(server.url, "ALTER DATABASE postgres SET default_tablespace = small")
        ballast = disk / "ballast"
        ballast.write_bytes(bytes(4_000_000))
        try:
            async with opened(server.url) as store:
                await with_workspace(store)
                count = await appended_until_full(store)
                for call in (store.append(large_write("more")), store.append(large_write("other"))):
                    with pytest.raises(StoreUnavailable, match="its disk is full; free some space"):
                        await call
                assert await store.verify(W) == count, "the store can still be read"
                ballast.unlink()
                await store.append(large_write("more"))
                assert await store.verify(W) == count + 1
        finally:
            await sql(server.url, "DROP SCHEMA IF EXISTS kedge CASCADE")
            await sql(server.url, "ALTER DATABASE postgres RESET default_tablespace")
            await sql(server.url, "DROP TABLESPACE small")


def large_write(name: str) -> Write:
    """Return a Write with 100 kB that do not compress."""
    version = file_version(name)
    return events(accepted(name), files=(version,), originals={version.id: random.Random(name).randbytes(100_000)})


async def appended_until_full(store: PostgresStore) -> int:
    """Append until the disk is full; return the number of acknowledged Writes."""
    count = 0

    async def append_forever() -> None:
        nonlocal count
        while True:
            await store.append(large_write(f"r{count}"))
            count += 1

    with pytest.raises(StoreUnavailable, match="its disk is full; free some space"):
        await append_forever()
    assert count > 0, "the disk was full before anything was acknowledged"
    return count


@pytest.mark.usefixtures("short_limits")
async def test_statement_that_waits_too_long_is_ended(server: PostgresServer) -> None:
    async with opened(server.url) as store:
        await with_workspace(store)
        other = await asyncpg.connect(server.url, server_settings={"search_path": "kedge"})
        async with other.transaction():
            await other.execute("LOCK TABLE log, sessions, workspaces IN ACCESS EXCLUSIVE MODE")
            for call in (store.append(events(accepted())), store.trim(W, 0), store.read(W, 0, 1)):
                with pytest.raises(StoreUnavailable, match="try again"):
                    await call
        await appended_again(store, 1)
        # Also a statement that works for too long, not only one that waits for a lock.
        with pytest.raises(StoreUnavailable, match="a statement took too long"):
            await store.database.read(lambda db: db.fetchval("SELECT pg_sleep(9)"))
        await other.close()


async def test_process_that_stops_inside_a_transaction_loses_its_locks(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kedge.store.postgres_connect.PAUSE_S", 0.3)
    async with opened(server.url) as paused, opened(server.url) as other:
        await with_workspace(other)
        is_locked, is_free = asyncio.Event(), asyncio.Event()

        async def stop_inside(db: PostgresConnection) -> None:
            await postgres_write.lock(db, (W,))
            is_locked.set()
            await is_free.wait()
            await db.execute("UPDATE workspaces SET head = 0")

        stopped = asyncio.create_task(paused.database.change(stop_inside))
        await is_locked.wait()
        await other.append(events(accepted()))
        is_free.set()
        with pytest.raises(StoreUnavailable):
            await stopped
        await appended_again(other, 1)
