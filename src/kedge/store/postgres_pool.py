"""The connections of the PostgreSQL store, and the requests that wait for them.

A request runs in a task of its own: it is completed even if its caller is cancelled, so no connection is left inside a
transaction. After an error of the database its connection is closed, and the next request opens another one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from kedge.errors import KedgeError, StoreUnavailable
from kedge.store.postgres_connect import REFUSED, DatabaseUrl, PostgresConnection, store_error

T = TypeVar("T")

#: Requests that wait or run. They are held in memory, and a database with such a backlog does not catch up. Items.
PENDING_REQUESTS_MAX = 10_000


class Tasks:
    """The tasks of all requests of a store."""

    def __init__(self, target: DatabaseUrl) -> None:
        self.target = target
        self._tasks: set[asyncio.Task[None]] = set()
        self._pending = 0
        self._closed = False

    def new_future(self) -> asyncio.Future[Any]:
        """Return the future of a new request."""
        if self._closed:
            raise StoreUnavailable("the store is closed; open it again")
        if self._pending >= PENDING_REQUESTS_MAX:
            raise StoreUnavailable(f"{PENDING_REQUESTS_MAX} requests are waiting for the database; try again later")
        self._pending += 1
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        future.add_done_callback(self._settled)
        return future

    def _settled(self, _: asyncio.Future[Any]) -> None:
        self._pending -= 1

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run the work in a task, and return its result."""
        future = self.new_future()
        self.start(self._settle(work, future))
        result: T = await future
        return result

    async def _settle(self, work: Callable[[], Awaitable[Any]], future: asyncio.Future[Any]) -> None:
        try:
            value = await work()
        except Exception as error:  # must reach this caller, and no other
            self.fail(future, error)
        else:
            if not future.done():  # the caller was cancelled otherwise
                future.set_result(value)

    def fail(self, future: asyncio.Future[Any], error: Exception) -> None:
        if not future.done():
            future.set_exception(store_error(error, self.target))

    async def close(self) -> None:
        """Refuse new requests, and wait for the earlier ones."""
        self._closed = True
        while self._tasks:
            await asyncio.wait(list(self._tasks))


class Connections:
    """Up to `size` connections, opened when they are needed."""

    def __init__(self, connect: Callable[[], Awaitable[PostgresConnection]], size: int) -> None:
        self._connect = connect
        self._free: list[PostgresConnection] = []
        self._slots = asyncio.Semaphore(size)

    @contextlib.asynccontextmanager
    async def use(self) -> AsyncIterator[PostgresConnection]:
        async with self._slots:
            while self._free and not self._free[-1].is_usable:
                self._free.pop()
            db = self._free.pop() if self._free else await self._connect()
            try:
                yield db
            except (KedgeError, *REFUSED):
                self._put_back(db)
                raise
            except BaseException:
                db.end()
                raise
            self._put_back(db)

    def _put_back(self, db: PostgresConnection) -> None:
        if db.is_usable:
            self._free.append(db)
        else:
            db.end()

    async def close(self) -> None:
        """Close the connections; no request uses them any more."""
        free, self._free = self._free, []
        await asyncio.gather(*(db.close() for db in free))
