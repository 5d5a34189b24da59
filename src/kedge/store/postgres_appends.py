"""Group commit: concurrent Writes of one process share a transaction of the PostgreSQL database.

The Writes that wait are applied together, with one statement for each table (`postgres_write`). If one of them is
refused, the transaction is rolled back and they are applied again one by one, each in a savepoint, so that a refused
Write does not affect the others.

A workspace that another transaction has locked does not delay the others: its Writes leave the group, and wait for the
lock on a connection of their own.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import asyncpg

from kedge.errors import KedgeError
from kedge.store import codec, postgres_write
from kedge.store.base import Write
from kedge.store.postgres_connect import REFUSED, PostgresConnection
from kedge.store.postgres_fence import Fence
from kedge.store.postgres_pool import Connections, Tasks

#: Writes in one transaction. More would gain nothing, since hundreds share the commit, and delay the first one. Items.
BATCH_WRITES_MAX = 256
#: Content of the Writes in one transaction, after which no more join: some milliseconds of work. Bytes.
BATCH_BYTES_MAX = 1024 * 1024
#: A Write with more content shares its transaction with no other: these would wait for all of its work. Bytes.
SHORT_WRITE_BYTES_MAX = 128 * 1024
#: Attempts to commit, if other processes hold locks in another order. Items.
ATTEMPTS_MAX = 3


@dataclass(slots=True, eq=False)
class AppendRequest:
    write: Write
    size_bytes: int
    future: asyncio.Future[Any]


class Appends:
    """The Writes that wait, and the transaction that commits some of them."""

    def __init__(
        self,
        tasks: Tasks,
        fence: Fence,
        short: Connections,
        other: Connections,
    ) -> None:
        """`short` has the connection of the groups."""
        self._tasks, self._fence, self._short, self._other = tasks, fence, short, other
        self._queue: deque[AppendRequest] = deque()
        self._is_running = False
        #: The requests that wait for the lock of a workspace, which one task serves.
        self._contended: dict[str, deque[AppendRequest]] = {}
        #: Committed transactions, and the durable ones among them.
        self.commits = 0
        self.durable_commits = 0

    async def append(self, write: Write) -> int:
        request = AppendRequest(write, codec.content_bytes(write), self._tasks.new_future())
        waiting = self._contended.get(write.workspace_id)
        if waiting is not None:
            waiting.append(request)
        elif request.size_bytes > SHORT_WRITE_BYTES_MAX:
            self._tasks.start(self._serve_alone(request))
        else:
            self._queue.append(request)
            if not self._is_running:
                self._is_running = True
                self._tasks.start(self._run())
        head: int = await request.future
        return head

    async def _run(self) -> None:
        while self._queue:
            for request in await self._serve(_batch(self._queue), self._short, skip=True):
                workspace_id = request.write.workspace_id
                if workspace_id not in self._contended:
                    self._contended[workspace_id] = deque()
                    self._tasks.start(self._run_contended(workspace_id))
                self._contended[workspace_id].append(request)
        self._is_running = False

    async def _serve_alone(self, request: AppendRequest) -> None:
        await self._serve([request], self._other)

    async def _run_contended(self, workspace_id: str) -> None:
        waiting = self._contended[workspace_id]
        while waiting:
            await self._serve(_batch(waiting), self._other)
        del self._contended[workspace_id]

    async def _serve(
        self, batch: list[AppendRequest], connections: Connections, *, skip: bool = False
    ) -> list[AppendRequest]:
        """Commit the batch. With `skip`, return the requests whose workspaces are unknown, or locked by others."""
        try:
            results = await self._commit(batch, connections, skip)
        except Exception as error:  # must reach all callers
            for request in batch:
                self._tasks.fail(request.future, error)
            return []
        skipped: list[AppendRequest] = []
        for request, result in zip(batch, results, strict=True):
            if result is None:
                skipped.append(request)
            elif isinstance(result, Exception):
                self._tasks.fail(request.future, result)
            else:
                self._fence.written(request.write)
                if not request.future.done():  # the caller was cancelled otherwise
                    request.future.set_result(result)
        return skipped

    async def _commit(
        self, batch: list[AppendRequest], connections: Connections, skip: bool
    ) -> list[int | Exception | None]:
        writes = [request.write for request in batch]
        attempt = 1
        is_careful = False
        while True:
            try:
                async with connections.use() as db:
                    return await self._transaction(db, writes, skip=skip, careful=is_careful)
            except (KedgeError, *REFUSED):
                if is_careful:
                    raise
                is_careful = True
            except (asyncpg.DeadlockDetectedError, asyncpg.SerializationError):
                # Rolled back: nothing has happened.
                if attempt == ATTEMPTS_MAX:
                    raise
                attempt += 1

    async def _transaction(
        self, db: PostgresConnection, writes: Sequence[Write], *, skip: bool, careful: bool
    ) -> list[int | Exception | None]:
        """Commit the Writes; return the result of each. Careful: one by one, otherwise all of them or none."""
        durable = any(write.durable for write in writes)
        await db.execute("BEGIN" if durable else "BEGIN; SET LOCAL synchronous_commit = off")
        try:
            codec.check_texts(write.workspace_id for write in writes)
            workspaces = await postgres_write.lock(db, (write.workspace_id for write in writes), skip=skip)
            ready = [write for write in writes if not skip or write.workspace_id in workspaces]
            heads: list[int | Exception] = []
            if careful:
                for write in ready:
                    heads.append(await self._attempt(db, workspaces, write))
            else:
                for group in postgres_write.grouped(ready):
                    is_single = len(group) == 1 and postgres_write.has_repeated_ids(group[0])
                    heads += await postgres_write.apply(db, self._fence, workspaces, group, careful=is_single)
        except (KedgeError, *REFUSED):
            await db.execute("ROLLBACK")
            raise
        await db.execute("COMMIT")
        self.commits += 1
        self.durable_commits += durable
        results = iter(heads)
        return [next(results) if not skip or write.workspace_id in workspaces else None for write in writes]

    async def _attempt(
        self, db: PostgresConnection, workspaces: dict[str, postgres_write.LockedWorkspace], write: Write
    ) -> int | Exception:
        """Apply one Write, or roll it back and return the error."""
        before = workspaces.get(write.workspace_id)
        if before is not None:
            workspaces[write.workspace_id] = replace(before)
        await db.execute("SAVEPOINT one")
        try:
            (head,) = await postgres_write.apply(db, self._fence, workspaces, [write], careful=True)
        except (KedgeError, *REFUSED) as error:
            await db.execute("ROLLBACK TO one; RELEASE one")
            if before is not None:
                workspaces[write.workspace_id] = before
            return error
        await db.execute("RELEASE one")
        return head


def _batch(queue: deque[AppendRequest]) -> list[AppendRequest]:
    batch: list[AppendRequest] = []
    size_bytes = 0
    while queue and len(batch) < BATCH_WRITES_MAX and size_bytes < BATCH_BYTES_MAX:
        batch.append(queue.popleft())
        size_bytes += batch[-1].size_bytes
    return batch
