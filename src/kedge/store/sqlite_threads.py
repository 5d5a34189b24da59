"""The two threads of the SQLite store: one reads, the other writes, with group commit.

SQLite allows one writer at a time, and a durable commit waits for the disk. Therefore one connection writes, and
it puts all waiting Writes into one transaction: the more callers, the more Writes share one sync. Each Write has a
savepoint, so that a refused Write does not affect the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

import apsw

from kedge.errors import KedgeError, StoreDamaged, StoreUnavailable
from kedge.store import codec
from kedge.store.head_file import HeadFile

T = TypeVar("T")

#: Writes in one transaction. More would gain nothing, since hundreds share the sync, and delay the first of them.
BATCH_WRITES_MAX = 256
#: Requests waiting for a thread. They are held in memory, and a disk with such a backlog does not catch up.
PENDING_REQUESTS_MAX = 10_000


@dataclass(slots=True, eq=False)
class ThreadRequest:
    work: Callable[[apsw.Connection], Any]
    future: asyncio.Future[Any]
    subject: str
    durable: bool


@dataclass(slots=True, eq=False)
class ThreadResult:
    future: asyncio.Future[Any]
    value: Any = None
    error: Exception | None = None


def _settle(results: list[ThreadResult]) -> None:
    for result in results:
        if result.future.done():
            continue  # the caller was cancelled
        if result.error is not None:
            result.future.set_exception(result.error)
        else:
            result.future.set_result(result.value)


class StoreThread:
    """One thread with one connection. It serves requests in the order of arrival."""

    name = "kedge-store"
    batch_max = 1

    def __init__(self, db: apsw.Connection, loop: asyncio.AbstractEventLoop, at_end: Callable[[], None]) -> None:
        self.db = db
        self._loop = loop
        self._at_end = at_end
        self._requests: SimpleQueue[ThreadRequest | None] = SimpleQueue()
        self._stopped = False
        # A daemon thread does not keep a process alive that failed to close its store.
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
        self._thread.start()

    async def ask(self, work: Callable[[apsw.Connection], T], subject: str = "", *, durable: bool = False) -> T:
        """Run `work` in the thread and return its result. The work is done even if the caller is cancelled.

        `subject` names what is read or written, such as "workspace w1", in an error about damage."""
        if self._stopped:
            raise StoreUnavailable("the store is closed; open it again")
        if self._requests.qsize() >= PENDING_REQUESTS_MAX:
            raise StoreUnavailable(f"{PENDING_REQUESTS_MAX} requests are waiting for the disk; try again later")
        future: asyncio.Future[T] = self._loop.create_future()
        self._requests.put(ThreadRequest(work, future, subject, durable))
        return await future

    def stop(self) -> None:
        """Serve the requests made so far, then end."""
        if not self._stopped:
            self._stopped = True
            self._requests.put(None)

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        has_more = True
        while has_more:
            batch, has_more = self._take()
            try:
                results = self._serve(batch)
            except Exception as error:  # an unexpected error must still reach the callers
                results = [self._failed(request, error) for request in batch]
            if results:
                self._deliver(results)
        self._at_end()

    def _take(self) -> tuple[list[ThreadRequest], bool]:
        """Wait for a request; return all that are waiting, and False if the thread has to stop after them."""
        batch: list[ThreadRequest] = []
        request = self._requests.get()
        while request is not None:
            batch.append(request)
            if len(batch) == self.batch_max:
                return batch, True
            try:
                request = self._requests.get_nowait()
            except Empty:
                return batch, True
        return batch, False

    def _deliver(self, results: list[ThreadResult]) -> None:
        # Raised if the loop is closed: no caller waits any more.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(_settle, results)

    def _failed(self, request: ThreadRequest, error: Exception) -> ThreadResult:
        return ThreadResult(request.future, error=store_error(error, self.db.filename, request.subject))

    def _serve(self, batch: list[ThreadRequest]) -> list[ThreadResult]:
        raise NotImplementedError


class ReadThread(StoreThread):
    name = "kedge-store-reader"

    def _serve(self, batch: list[ThreadRequest]) -> list[ThreadResult]:
        return [self._result(request) for request in batch]

    def _result(self, request: ThreadRequest) -> ThreadResult:
        try:
            # In one transaction, all queries of a request see the same state.
            self.db.execute("BEGIN")
            try:
                return ThreadResult(request.future, request.work(self.db))
            finally:
                if self.db.in_transaction:
                    self.db.execute("ROLLBACK")
        except Exception as error:  # must reach this caller, and no other
            return self._failed(request, error)


class WriteThread(StoreThread):
    name = "kedge-store-writer"
    batch_max = BATCH_WRITES_MAX

    def __init__(
        self, db: apsw.Connection, loop: asyncio.AbstractEventLoop, at_end: Callable[[], None], head_file: HeadFile
    ) -> None:
        #: Committed transactions, and the synced ones among them.
        self.commits = 0
        self.durable_commits = 0
        self._durable: bool | None = None
        self.head_file = head_file
        super().__init__(db, loop, at_end)

    def _serve(self, batch: list[ThreadRequest]) -> list[ThreadResult]:
        if not batch:
            return []
        try:
            durable = self._set_durable(any(request.durable for request in batch))
            self.db.execute("BEGIN IMMEDIATE")
            before = self.db.total_changes()
            results = [self._attempt(request) for request in batch]
            committed = self._count() if self.db.total_changes() > before else None
            self.db.execute("COMMIT")
        except apsw.Error as error:
            self._roll_back()
            if len(batch) > 1 and isinstance(store_error(error, self.db.filename), StoreDamaged):
                # One request met the damage. The others may belong to undamaged workspaces: try each alone.
                return [result for request in batch for result in self._serve([request])]
            # Including refused requests: the reason may be a Write of this batch, which is rolled back now.
            return [self._failed(request, error) for request in batch]
        self.commits += 1
        self.durable_commits += durable
        if committed is not None:
            # Before the results are delivered. If it fails, the head file is out of date, which is safe.
            with contextlib.suppress(OSError):
                self.head_file.write(committed, durable=durable)
        return results

    def _count(self) -> int:
        update = "UPDATE transactions SET committed = committed + 1 RETURNING committed"
        ((committed,),) = self.db.execute(update).fetchall()
        assert isinstance(committed, int)
        return committed

    def _set_durable(self, durable: bool) -> bool:
        """Select FULL, which syncs at each commit, or NORMAL, which leaves it to the next checkpoint or FULL commit."""
        if durable != self._durable:
            self._durable = None
            self.db.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            self._durable = durable
        return durable

    def _attempt(self, request: ThreadRequest) -> ThreadResult:
        """Do the work of one request, or roll it back. A database error is raised: it concerns the whole batch."""
        self.db.execute("SAVEPOINT one")
        try:
            result = ThreadResult(request.future, request.work(self.db))
        except apsw.ConstraintError as error:
            result = self._failed(request, error)
        except apsw.Error:
            raise
        except Exception as error:  # must reach this caller, and no other
            result = self._failed(request, error)
        if result.error is not None:
            self.db.execute("ROLLBACK TO one")
        self.db.execute("RELEASE one")
        return result

    def _roll_back(self) -> None:
        # Raised if SQLite has rolled back automatically.
        with contextlib.suppress(apsw.Error):
            if self.db.in_transaction:
                self.db.execute("ROLLBACK")


def store_error(error: Exception, database: str, subject: str = "") -> Exception:
    """Convert an exception of apsw to an error that states what happened and what to do."""
    converted = _converted(error, database)
    if isinstance(converted, StoreDamaged) and subject not in str(converted):
        return StoreDamaged(f"{converted.damage}; found while reading {subject}", converted.remedy)
    return converted


def _converted(error: Exception, database: str) -> Exception:
    match error:
        case KedgeError():
            return error
        case UnicodeEncodeError():
            return codec.not_unicode(error)
        case apsw.CorruptError() | apsw.NotADBError() | UnicodeDecodeError():
            return codec.damaged_database(database, str(error))
        case apsw.IOError() if _extended_code(error) == apsw.SQLITE_IOERR_DATA:
            return codec.damaged_database(database, "a page does not match its checksum")
        case apsw.IOError() if _extended_code(error) == apsw.SQLITE_IOERR_CORRUPTFS:
            return codec.damaged_database(database, "the disk cannot read a part of it")
        case apsw.FullError():
            remedy = "the disk is full; free some space"
        case apsw.BusyError() | apsw.LockedError():
            remedy = "another program holds its lock; stop that program"
        case apsw.ReadOnlyError() | apsw.PermissionsError() | apsw.CantOpenError() | apsw.AuthError():
            remedy = "it is not writable; check the permissions of the data directory and the mount options of its disk"
        case apsw.IOError():
            remedy = "a disk operation failed; check the disk and the system log"
        case apsw.Error():
            remedy = "try again, and report the error if it persists"
        case _:
            return error  # a bug: report it unchanged
    return StoreUnavailable(f"the database {database} failed ({error}): {remedy}")


def _extended_code(error: apsw.Error) -> int:
    # An instance attribute that the type stubs of apsw lack.
    return int(getattr(error, "extendedresult", 0))
