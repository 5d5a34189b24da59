"""The open database of a PostgreSQL store: its connections, and the three ways to use them."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from typing import TypeVar

from kedge.errors import StoreError, StoreUnavailable
from kedge.store import migrations, postgres_reclaim
from kedge.store.base import Write
from kedge.store.data_directory import DataDirectory
from kedge.store.postgres_appends import Appends
from kedge.store.postgres_connect import PostgresConnection, connect, parse_url
from kedge.store.postgres_fence import Fence
from kedge.store.postgres_listen import WakeupListener, Wakeups
from kedge.store.postgres_migrations import migrate, share
from kedge.store.postgres_pool import Connections, Tasks

T = TypeVar("T")

#: Connections for groups of short Writes, for other changes, for leases and wake-ups, and for reads. Long reads never
#: take the last one, and no other work delays the renewal of a lease. Items.
_SHORT, _OTHER, _LEASES, _READERS = 1, 3, 1, 3


class PostgresDatabase:
    """`append` shares transactions, `change` has one of its own, `read` changes nothing."""

    def __init__(
        self, url: str, directory: DataDirectory | None = None, cluster_id: str = "", *, read_only: bool = False
    ) -> None:
        """`read_only`: use the tables as they are, of any cluster, and refuse changes."""
        self.url = parse_url(url)
        self.fence = Fence(secrets.token_hex(16))
        self._directory = directory
        self._cluster_id = cluster_id
        self._is_read_only = read_only
        self._tasks = Tasks(self.url)
        self._state = "new"
        sizes = (_SHORT, _OTHER, _LEASES, _READERS)
        self._short, self._other, self._leases, self._readers = (Connections(self._connect, size) for size in sizes)
        self._long_reads = asyncio.Semaphore(_READERS - 1)
        self._wakeups = Wakeups(self._tasks, self._leases, self.url.schema)
        self._listener = WakeupListener(self._connect, self.url.schema)
        self.appends = Appends(self._tasks, self.fence, self._short, self._other)

    async def open(self) -> None:
        if self._state != "new":
            raise StoreError("this store is open or was closed; create another one")
        if self._directory is not None:
            self._directory.claim()
            self._directory.watch()
        try:
            await self._tasks.run(self._prepare)
        except BaseException:
            await self._close()
            raise
        self._state = "open"

    async def _prepare(self) -> None:
        if self._is_read_only:
            return
        async with self._short.use() as db:
            await migrate(db, self.url, migrations.shipped("postgres_sql"), self._cluster_id)
            async with db.transaction():
                await postgres_reclaim.give_up_copies(db, self.fence)

    async def close(self) -> None:
        """Finish the requests made so far, and close the connections."""
        if self._state == "open":
            await self._close()

    async def _close(self) -> None:
        self._state = "closed"
        await self._listener.close()
        await self._tasks.close()
        for connections in (self._short, self._other, self._leases, self._readers):
            await connections.close()
        if self._directory is not None:
            self._directory.release()

    async def _connect(self) -> PostgresConnection:
        db = await connect(self.url)
        if self._is_read_only:
            return db
        try:
            await share(db, self.url)
            # The other processes recognise by this lock that the process lives, and its copies are not given up.
            await db.execute("SELECT pg_advisory_lock_shared(hashtextextended($1, 0))", self.fence.incarnation)
        except BaseException:
            db.end()
            raise
        return db

    def _check_open(self) -> None:
        if self._state != "open":
            raise StoreUnavailable("the store is closed or not open yet")

    def _check_writable(self) -> None:
        self._check_open()
        if self._is_read_only:
            raise StoreError(f"{self.url} was opened for reading only")
        if self._directory is not None:
            self._directory.check()

    async def append(self, write: Write) -> int:
        self._check_writable()
        return await self.appends.append(write)

    async def read(self, work: Callable[[PostgresConnection], Awaitable[T]], *, is_long: bool = False) -> T:
        self._check_open()

        async def read() -> T:
            async with self._readers.use() as db:
                return await work(db)

        async def read_long() -> T:
            async with self._long_reads:
                return await read()

        return await self._tasks.run(read_long if is_long else read)

    async def change(
        self, work: Callable[[PostgresConnection], Awaitable[T]], *, durable: bool = True, is_lease: bool = False
    ) -> T:
        """Do the work in a transaction of its own."""
        self._check_writable()

        async def change() -> T:
            async with (self._leases if is_lease else self._other).use() as db, db.transaction():
                if not durable:
                    await db.execute("SET LOCAL synchronous_commit = off")
                return await work(db)

        return await self._tasks.run(change)

    def notify(self, workspace_id: str) -> None:
        """Wake up the listeners of all processes."""
        self._wakeups.add((workspace_id,))

    def listen(self, callback: Callable[[frozenset[str]], None]) -> None:
        self._check_open()
        self._listener.start(callback)
