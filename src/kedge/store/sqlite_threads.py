"""The threads of the SQLite store: one writes, with group commit, and up to three read.

SQLite allows one writer at a time, and a durable commit waits for the disk. Therefore one connection writes, and
it puts all waiting Writes into one transaction: the more callers, the more Writes share one sync. Each Write has a
savepoint, so that a refused Write does not affect the others.

Long work does not delay short work. Long requests (a large Write, a slice of a copy, a page of messages) have their own
queue. The writer alternates: the waiting short requests, then one long one. The readers serve short requests first, and
long ones never occupy the last of them. A caller awaits each request before the next one that depends on it, so the two
queues change no order that matters.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import apsw

from kedge.disk_space import full_disk
from kedge.errors import KedgeError, StoreDamaged, StoreUnavailable
from kedge.store import codec
from kedge.store.head_file import HeadFile

T = TypeVar("T")

#: Writes in one transaction. More would gain nothing, since hundreds share the sync, and delay the first one. Items.
BATCH_WRITES_MAX = 256
#: Content of the Writes in one transaction, after which no more join: some milliseconds of work. Bytes.
BATCH_BYTES_MAX = 1024 * 1024
#: A Write with more content is long work. Bytes.
SHORT_WRITE_BYTES_MAX = 128 * 1024
#: Requests waiting for a thread. They are held in memory, and a disk with such a backlog does not catch up. Items.
PENDING_REQUESTS_MAX = 10_000
#: Reading threads, started when they are needed. Long requests use all but one of them. Each has a connection with a
#: cache of up to 2 MB. Items.
READ_THREADS_MAX = 3
#: Pages in the WAL that start a checkpoint: 4 MB, some milliseconds of work. Items.
CHECKPOINT_PAGES = 1_000


@dataclass(slots=True, eq=False)
class ThreadRequest:
    work: Callable[[apsw.Connection], Any]
    future: asyncio.Future[Any]
    subject: str
    durable: bool
    size_bytes: int


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
    """The requests of one or more threads. Those of one kind are served in the order of arrival."""

    name = "kedge-store"

    def __init__(self, db: apsw.Connection, loop: asyncio.AbstractEventLoop) -> None:
        self.db = db
        #: Not read from the connection: another thread may be using that, and apsw then raises an error.
        self._filename = db.filename
        self._loop = loop
        #: Guards the fields below.
        self._changed = threading.Condition()
        self._short: deque[ThreadRequest] = deque()
        self._long: deque[ThreadRequest] = deque()
        self._stopped = False
        self._threads: list[threading.Thread] = []
        self._start_thread()

    async def ask(
        self,
        work: Callable[[apsw.Connection], T],
        subject: str = "",
        *,
        durable: bool = False,
        is_long: bool = False,
        size_bytes: int = 0,
    ) -> T:
        """Run `work` in a thread and return its result. The work is done even if the caller is cancelled.

        `subject` names what is read or written, such as "workspace w1", in an error about damage."""
        future: asyncio.Future[T] = self._loop.create_future()
        with self._changed:
            if self._stopped:
                raise StoreUnavailable("the store is closed; open it again")
            if len(self._short) + len(self._long) >= PENDING_REQUESTS_MAX:
                raise StoreUnavailable(f"{PENDING_REQUESTS_MAX} requests are waiting for the disk; try again later")
            (self._long if is_long else self._short).append(ThreadRequest(work, future, subject, durable, size_bytes))
            self._added()
        return await future

    def stop(self) -> None:
        """Serve the requests made so far, then end."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def join(self) -> None:
        for thread in list(self._threads):
            thread.join()

    def _start_thread(self) -> None:
        # A daemon thread does not keep a process alive that failed to close its store.
        thread = threading.Thread(target=self._run, name=self.name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _added(self) -> None:
        """Called with the lock held after each new request."""
        self._changed.notify()

    def _run(self) -> None:
        raise NotImplementedError

    def _deliver(self, results: list[ThreadResult]) -> None:
        # Raised if the loop is closed: no caller waits any more.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(_settle, results)

    def _failed(self, request: ThreadRequest, error: Exception) -> ThreadResult:
        return ThreadResult(request.future, error=store_error(error, self._filename, request.subject))


class ReadThreads(StoreThread):
    """`db` is the connection of the first thread; `connect` opens one for each further thread."""

    name = "kedge-store-reader"

    def __init__(
        self,
        db: apsw.Connection,
        loop: asyncio.AbstractEventLoop,
        connect: Callable[[], apsw.Connection],
        close: Callable[[apsw.Connection], None],
    ) -> None:
        self._connect, self._close = connect, close
        self._unused: apsw.Connection | None = db
        self._running = self._long_running = 0
        super().__init__(db, loop)

    def _added(self) -> None:
        idle = len(self._threads) - self._running
        if len(self._short) + len(self._long) > idle and len(self._threads) < READ_THREADS_MAX:
            self._start_thread()
        self._changed.notify()

    def _run(self) -> None:
        db = self._take_connection()
        if db is None:
            return
        while self._serve_next(db):
            pass
        self._close(db)

    def _serve_next(self, db: apsw.Connection) -> bool:
        """Serve a request; return False if the thread has to end. A waiting thread keeps no reference to a result."""
        taken = self._take()
        if taken is None:
            return False
        request, is_long = taken
        result = self._result(db, request)
        with self._changed:  # before the result is delivered: the caller's next request finds this thread idle
            self._running -= 1
            self._long_running -= is_long
        self._deliver([result])
        return True

    def _take_connection(self) -> apsw.Connection | None:
        with self._changed:
            db, self._unused = self._unused, None
        try:
            return db or self._connect()
        except (apsw.Error, OSError, KedgeError):
            # For example too many open files, or damage. The other threads serve the request; a later one tries again.
            with self._changed:
                self._threads.remove(threading.current_thread())
            return None

    def _take(self) -> tuple[ThreadRequest, bool] | None:
        """Wait for a request; return it and whether it is long, or None if the thread has to end."""
        with self._changed:
            while True:
                is_long = not self._short
                if self._short or (self._long and self._long_running < READ_THREADS_MAX - 1):
                    self._running += 1
                    self._long_running += is_long
                    return (self._long if is_long else self._short).popleft(), is_long
                if self._stopped:
                    return None  # long requests that are left: for the threads that serve long ones now
                self._changed.wait()

    def _result(self, db: apsw.Connection, request: ThreadRequest) -> ThreadResult:
        try:
            # In one transaction, all queries of a request see the same state.
            db.execute("BEGIN")
            try:
                return ThreadResult(request.future, request.work(db))
            finally:
                if db.in_transaction:
                    db.execute("ROLLBACK")
        except Exception as error:  # must reach this caller, and no other
            return self._failed(request, error)


class WriteThread(StoreThread):
    name = "kedge-store-writer"

    def __init__(
        self,
        db: apsw.Connection,
        loop: asyncio.AbstractEventLoop,
        at_end: Callable[[], None],
        head_file: HeadFile,
        check: Callable[[], None],
    ) -> None:
        """`check` raises if the files are no longer those of the data directory; nothing is written then."""
        self._check = check
        #: Committed transactions, and the synced ones among them.
        self.commits = 0
        self.durable_commits = 0
        self._durable: bool | None = None
        self._is_long_next = False
        self.checkpoint_pages = CHECKPOINT_PAGES
        self._wal_pages = 0
        # Replaces the automatic checkpoint inside a commit, for which the callers of that commit would wait.
        db.set_wal_hook(self._committed)
        self._at_end = at_end
        self.head_file = head_file
        super().__init__(db, loop)

    def _run(self) -> None:
        while self._serve_next():
            pass
        self._at_end()

    def _serve_next(self) -> bool:
        """Serve some requests; return False if the thread has to end."""
        batch = self._take()
        if not batch:
            return False
        try:
            results = self._serve(batch)
        except Exception as error:  # an unexpected error must still reach the callers
            results = [self._failed(request, error) for request in batch]
        self._deliver(results)
        if self._wal_pages >= self.checkpoint_pages:
            self._checkpoint()
        return True

    def _checkpoint(self) -> None:
        self._wal_pages = 0
        # After an error the WAL grows, and the next commit leads to another checkpoint.
        with contextlib.suppress(apsw.Error):
            self.db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)

    def _committed(self, _: apsw.Connection, __: str, wal_pages: int) -> int:
        self._wal_pages = wal_pages
        return apsw.SQLITE_OK

    def _take(self) -> list[ThreadRequest]:
        """Wait for requests; return some short ones, or one long one; none if the thread has to end.

        A long request shares its transaction with no other: these would wait for all of its work."""
        with self._changed:
            while not (self._short or self._long or self._stopped):
                self._changed.wait()
            if self._long and (self._is_long_next or not self._short):
                self._is_long_next = False
                return [self._long.popleft()]
            self._is_long_next = True
            batch: list[ThreadRequest] = []
            size_bytes = 0
            while self._short and len(batch) < BATCH_WRITES_MAX and size_bytes < BATCH_BYTES_MAX:
                batch.append(self._short.popleft())
                size_bytes += batch[-1].size_bytes
            return batch

    def _serve(self, batch: list[ThreadRequest]) -> list[ThreadResult]:
        try:
            self._check()
        except StoreUnavailable as error:
            return [self._failed(request, error) for request in batch]
        try:
            durable = self._set_durable(any(request.durable for request in batch))
            self.db.execute("BEGIN IMMEDIATE")
            before = self.db.total_changes()
            results = [self._attempt(request) for request in batch]
            committed = self._count() if self.db.total_changes() > before else None
            self.db.execute("COMMIT")
        except apsw.Error as error:
            self._roll_back()
            if len(batch) > 1 and isinstance(store_error(error, self._filename), StoreDamaged):
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
        case apsw.FullError() | apsw.IOError() | apsw.CantOpenError() if full := full_disk(Path(database).parent):
            # Also for an error that SQLite reports as "disk I/O error": it may fail to extend a file that it maps.
            remedy = full
        case apsw.FullError():
            remedy = "the disk, or the quota of this user, is full; free some space"
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
