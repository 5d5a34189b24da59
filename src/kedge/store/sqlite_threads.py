"""The two threads of the SQLite store: one that reads, and one that writes, with group commit.

SQLite takes one writer at a time, and a durable commit waits for the disk. So there is one writing connection, and it
takes all Writes that wait into one transaction: the more callers, the more Writes share one wait for the disk. Each
Write has a savepoint, so that one that is refused takes no other with it.
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

from kedge.errors import RESTORE_BACKUP, KedgeError, StoreDamaged, StoreUnavailable
from kedge.store import codec
from kedge.store.witness import Witness

T = TypeVar("T")

#: Writes that share one transaction. More gain nothing (the disk's wait is shared by hundreds already) and make the
#: first of them wait for the last.
BATCH_WRITES_MAX = 256
#: Requests that wait for a thread. Each is held in memory, and a disk that is this far behind is not catching up.
PENDING_REQUESTS_MAX = 10_000


@dataclass(slots=True, eq=False)
class Request:
    work: Callable[[apsw.Connection], Any]
    future: asyncio.Future[Any]
    about: str
    durable: bool


@dataclass(slots=True, eq=False)
class Answer:
    future: asyncio.Future[Any]
    result: Any = None
    error: Exception | None = None


def _settle(answers: list[Answer]) -> None:
    for answer in answers:
        if answer.future.done():
            continue  # whoever asked was cancelled
        if answer.error is not None:
            answer.future.set_exception(answer.error)
        else:
            answer.future.set_result(answer.result)


class Worker:
    """One thread with one connection. Requests are served in the order in which they came."""

    name = "kedge-store"
    batch_max = 1

    def __init__(self, db: apsw.Connection, loop: asyncio.AbstractEventLoop, at_end: Callable[[], None]) -> None:
        self.db = db
        self._loop = loop
        self._at_end = at_end
        self._requests: SimpleQueue[Request | None] = SimpleQueue()
        self._stopped = False
        # A daemon: a process that forgets to close its store must still be able to end.
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
        self._thread.start()

    async def ask(self, work: Callable[[apsw.Connection], T], about: str = "", *, durable: bool = False) -> T:
        """What `work` returns, or raises. If the caller is cancelled meanwhile, the work is done all the same.

        `about` says what is asked for, such as "workspace w1": damage that is met on the way is told to be there."""
        if self._stopped:
            raise StoreUnavailable("the store is closed; open it again")
        if self._requests.qsize() >= PENDING_REQUESTS_MAX:
            raise StoreUnavailable(f"{PENDING_REQUESTS_MAX} requests wait for the disk already; try again later")
        future: asyncio.Future[T] = self._loop.create_future()
        self._requests.put(Request(work, future, about, durable))
        return await future

    def stop(self) -> None:
        """Serve what was asked so far, then end."""
        if not self._stopped:
            self._stopped = True
            self._requests.put(None)

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        going = True
        while going:
            batch, going = self._take()
            try:
                answers = self._serve(batch)
            except Exception as error:  # the last resort: whatever it is, it must reach those who wait
                answers = [self._refused(request, error) for request in batch]
            if answers:
                self._deliver(answers)
        self._at_end()

    def _take(self) -> tuple[list[Request], bool]:
        """What waits, at least one; and whether there will be more."""
        batch: list[Request] = []
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

    def _deliver(self, answers: list[Answer]) -> None:
        # It refuses when the loop is closed: nobody waits any more.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(_settle, answers)

    def _refused(self, request: Request, error: Exception) -> Answer:
        return Answer(request.future, error=fault(error, self.db.filename, request.about))

    def _serve(self, batch: list[Request]) -> list[Answer]:
        raise NotImplementedError


class Reader(Worker):
    name = "kedge-store-reader"

    def _serve(self, batch: list[Request]) -> list[Answer]:
        return [self._answer(request) for request in batch]

    def _answer(self, request: Request) -> Answer:
        try:
            # One transaction: whatever the request looks at is of one moment.
            self.db.execute("BEGIN")
            try:
                return Answer(request.future, request.work(self.db))
            finally:
                if self.db.in_transaction:
                    self.db.execute("ROLLBACK")
        except Exception as error:  # it must reach the one who asked, and only that one
            return self._refused(request, error)


class Writer(Worker):
    name = "kedge-store-writer"
    batch_max = BATCH_WRITES_MAX

    def __init__(
        self, db: apsw.Connection, loop: asyncio.AbstractEventLoop, at_end: Callable[[], None], witness: Witness
    ) -> None:
        #: Transactions committed; and those of them that waited for the disk.
        self.commits = 0
        self.durable_commits = 0
        self._durable: bool | None = None
        self.witness = witness
        super().__init__(db, loop, at_end)

    def _serve(self, batch: list[Request]) -> list[Answer]:
        if not batch:
            return []
        try:
            durable = self._set_durable(any(request.durable for request in batch))
            self.db.execute("BEGIN IMMEDIATE")
            before = self.db.total_changes()
            answers = [self._attempt(request) for request in batch]
            number = self._count() if self.db.total_changes() > before else None
            self.db.execute("COMMIT")
        except apsw.Error as error:
            self._roll_back()
            if len(batch) > 1 and isinstance(fault(error, self.db.filename), StoreDamaged):
                # One of them has met the damage. The others may be of workspaces that are whole.
                return [answer for request in batch for answer in self._serve([request])]
            # The refused ones too: they may have been refused for what another one did, which is undone now.
            return [self._refused(request, error) for request in batch]
        self.commits += 1
        self.durable_commits += durable
        if number is not None:
            # Before anybody is told. If it fails, the note stays behind, where it says less but nothing wrong.
            with contextlib.suppress(OSError):
                self.witness.note(number, durable=durable)
        return answers

    def _count(self) -> int:
        ((number,),) = self.db.execute("UPDATE transactions SET number = number + 1 RETURNING number").fetchall()
        assert isinstance(number, int)
        return number

    def _set_durable(self, durable: bool) -> bool:
        """FULL waits for the disk at each commit; NORMAL leaves that to the next checkpoint or FULL commit."""
        if durable != self._durable:
            self._durable = None
            self.db.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            self._durable = durable
        return durable

    def _attempt(self, request: Request) -> Answer:
        """Do this one, or leave no trace of it. A fault of the database is not caught: it is a matter of the batch."""
        self.db.execute("SAVEPOINT one")
        try:
            answer = Answer(request.future, request.work(self.db))
        except apsw.ConstraintError as error:
            answer = self._refused(request, error)
        except apsw.Error:
            raise
        except Exception as error:  # it must reach the one who asked, and only that one
            answer = self._refused(request, error)
        if answer.error is not None:
            self.db.execute("ROLLBACK TO one")
        self.db.execute("RELEASE one")
        return answer

    def _roll_back(self) -> None:
        # It fails when SQLite has rolled back by itself.
        with contextlib.suppress(apsw.Error):
            if self.db.in_transaction:
                self.db.execute("ROLLBACK")


def fault(error: Exception, database: str, about: str = "") -> Exception:
    """What the one who asked is told: what happened, and what to do about it."""
    told = _fault(error, database)
    if isinstance(told, StoreDamaged) and about not in str(told):
        return StoreDamaged(f"{told.damage}; found while reading {about}", told.remedy)
    return told


def _fault(error: Exception, database: str) -> Exception:
    match error:
        case KedgeError():
            return error
        case UnicodeEncodeError():
            return codec.not_unicode(error)
        case apsw.CorruptError() | apsw.NotADBError() | UnicodeDecodeError():
            return _damaged(str(error), database)
        case apsw.IOError() if _extended_code(error) == apsw.SQLITE_IOERR_DATA:
            return _damaged("a page does not fit its checksum", database)
        case apsw.IOError() if _extended_code(error) == apsw.SQLITE_IOERR_CORRUPTFS:
            return _damaged("the disk cannot read a part of it", database)
        case apsw.FullError():
            way_out = "the disk is full; free some space, nothing else is needed"
        case apsw.BusyError() | apsw.LockedError():
            way_out = "another program holds its lock; end that program"
        case apsw.ReadOnlyError() | apsw.PermissionsError() | apsw.CantOpenError() | apsw.AuthError():
            way_out = "it cannot be written; check the rights of the data directory and how its disk is mounted"
        case apsw.IOError():
            way_out = "the disk failed to read or write; check the disk and the system's log"
        case apsw.Error():
            way_out = "try again, and report it if it stays"
        case _:
            return error  # a fault of ours; it must be seen as what it is
    return StoreUnavailable(f"the database {database} failed ({error}): {way_out}")


def _extended_code(error: apsw.Error) -> int:
    # Set on each instance; missing in apsw's type stubs.
    return int(getattr(error, "extendedresult", 0))


def _damaged(how: str, database: str) -> StoreDamaged:
    return StoreDamaged(f"the database {database} is damaged ({how})", RESTORE_BACKUP)
