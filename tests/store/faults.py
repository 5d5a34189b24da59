"""One operation of the disk fails, or all from one on: a story is told to a real store all the same.

Each trial is a number. `python -m tests.store.faults NUMBER` does that one again, and says what it did and found.
"""

from __future__ import annotations

import asyncio
import itertools
import shutil
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import NamedTuple

import apsw

from kedge.errors import KedgeError, StoreUnavailable
from kedge.store.sqlite import SqliteStore
from kedge.store.sqlite_connect import has_page_checksums
from tests.store.story import CHECKPOINT_PAGES, Step, memory_directory, standing, story, tell

_numbers = itertools.count()

#: Steps of the story: each kind of operation of a disk happens in it, a checkpoint and a second open included.
STEPS = 8
#: Calls of the store that one failed operation may make fail. After that it must have got over it.
FAILED_CALLS_MAX = 2
#: A call that takes longer hangs. Seconds; generous, for machines that are busy.
_HANG_S = 30

#: What each kind of operation fails with, in turn.
ERRORS: dict[str, tuple[type[apsw.Error], ...]] = {
    "open": (apsw.CantOpenError, apsw.IOError),
    "read": (apsw.IOError,),
    "write": (apsw.IOError, apsw.FullError, apsw.ReadOnlyError),
    "sync": (apsw.IOError,),
    "truncate": (apsw.IOError,),
    "delete": (apsw.IOError,),
    "lock": (apsw.IOError,),
    "size": (apsw.IOError,),
    "look": (apsw.IOError,),
}


def error_of(kind: str, which: int) -> type[apsw.Error]:
    return ERRORS[kind][which % len(ERRORS[kind])]


class FaultyDisk(apsw.VFS):
    """Notes what it is asked, and lets the operation `fails_at` fail; those behind it too, if it fails `for_good`."""

    def __init__(self, fails_at: int | None = None, *, for_good: bool = False, which: int = 0) -> None:
        self.name = f"faulty-disk-{next(_numbers)}"
        #: The kind of each operation, in order.
        self.asked: list[str] = []
        self.failed: list[str] = []
        self.fails_at = fails_at
        self._for_good = for_good
        self._which = which
        self._lock = threading.Lock()
        assert has_page_checksums()
        super().__init__(self.name, "cksmvfs")

    def ask(self, kind: str) -> None:
        with self._lock:
            number = len(self.asked)
            self.asked.append(kind)
            if self.fails_at is None or number < self.fails_at or (number > self.fails_at and not self._for_good):
                return
            error = error_of(kind, self._which)
            self.failed.append(f"{kind} ({error.__name__})")
        raise error("the disk was told to fail")

    def heal(self) -> None:
        self.fails_at = None

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:  # noqa: N802
        self.ask("open")
        return _File(self, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802
        self.ask("delete")
        super().xDelete(filename, syncdir)

    def xAccess(self, pathname: str, flags: int) -> bool:  # noqa: N802
        self.ask("look")
        return super().xAccess(pathname, flags)


class _File(apsw.VFSFile):
    def __init__(self, disk: FaultyDisk, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        self._disk = disk
        super().__init__("cksmvfs", name, flags)

    def xRead(self, amount: int, offset: int) -> bytes:  # noqa: N802
        self._disk.ask("read")
        return super().xRead(amount, offset)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        self._disk.ask("write")
        super().xWrite(data, offset)

    def xTruncate(self, newsize: int) -> None:  # noqa: N802
        self._disk.ask("truncate")
        super().xTruncate(newsize)

    def xSync(self, flags: int) -> None:  # noqa: N802
        self._disk.ask("sync")
        super().xSync(flags)

    def xLock(self, level: int) -> None:  # noqa: N802
        self._disk.ask("lock")
        super().xLock(level)

    def xFileSize(self) -> int:  # noqa: N802
        self._disk.ask("size")
        return super().xFileSize()


# --- The story, told to a disk that fails ----------------------------------------------------------------------------


@dataclass(slots=True)
class Plot:
    """Steps of one Write each, how the store stands after each of them, and the operations it takes, by their kind."""

    steps: list[Step]
    standings: list[bytes]
    asked: list[str]

    @property
    def operations(self) -> int:
        return len(self.asked)


async def plot() -> Plot:
    steps = [
        Step(step.name, (write,) if write else (), step.workspace_id)
        for step in story(Random("faults"), STEPS)
        for write in (step.writes or (None,))
    ]
    steps.insert(len(steps) // 2, Step("reopen"))
    steps.append(Step("trim", workspace_id="w1"))
    place = memory_directory()
    try:
        first = Trial(place / "first", FaultyDisk())
        await first.open()
        found = [await first.look()]
        for step in steps:
            await first.tell(step)
            found.append(await first.look())
        await first.close()
        disk = FaultyDisk()
        told = Plot(steps, found, disk.asked)
        assert await Trial(place / "second", disk).go(told) == ""
        return told
    finally:
        shutil.rmtree(place)


@dataclass(slots=True)
class Trial:
    directory: Path
    disk: FaultyDisk
    store: SqliteStore | None = None
    #: What the calls that failed said.
    told: list[str] = field(default_factory=list)

    async def open(self) -> None:
        store = SqliteStore(self.directory, vfs=self.disk.name)
        await store.open()
        self.store = store
        assert store._writer is not None
        store._writer.db.wal_autocheckpoint(CHECKPOINT_PAGES)

    async def look(self) -> bytes:
        assert self.store is not None
        return await standing(self.store)

    async def tell(self, step: Step) -> None:
        if step.name == "reopen":
            await self.close()
        if self.store is None:
            await self.open()
        assert self.store is not None
        await tell(self.store, step)

    async def close(self) -> None:
        if self.store is not None:
            await self.store.close()
            self.store = None

    async def go(self, plot: Plot) -> str:
        """What is wrong, if anything."""
        at, looked_after = 0, True
        while at < len(plot.steps):
            try:
                async with asyncio.timeout(_HANG_S):
                    if not looked_after:
                        found = await self.look()
                        if found not in plot.standings[at : at + 2]:
                            return f"after step {at} failed, the store holds something else"
                        looked_after = True
                        # The same step may leave all as it is: then it is simply done again.
                        at += found != plot.standings[at]
                        continue
                    await self.tell(plot.steps[at])
                    at += 1
                    if await self.look() != plot.standings[at]:
                        return f"after step {at} the store holds something else"
            except StoreUnavailable as error:
                self.told.append(str(error))
                looked_after = self.store is None
                if len(self.told) > FAILED_CALLS_MAX:
                    break
            except TimeoutError:
                return f"step {at} hangs"
            except KedgeError as error:
                return f"step {at} fails with {type(error).__name__}: {error}"
        await self.close()
        return await self._afterwards(plot, at)

    async def _afterwards(self, plot: Plot, at: int) -> str:
        """The disk is well again: all that was acknowledged is there, and the store is whole."""
        store = SqliteStore(self.directory)
        try:
            await store.open()
            found = await standing(store)
            assert store._reader is not None
            checked = await store._reader.ask(lambda db: str(db.pragma("integrity_check")))
        except KedgeError as error:
            return f"when the disk is well again: {type(error).__name__}: {error}"
        finally:
            await store.close()
        if found not in plot.standings[at : at + 2] or checked != "ok":
            return f"when the disk is well again, the store holds something else ({checked})"
        return ""


#: From one trial to the next it is not the next operation that fails, so that a few trials are all over the story. It
#: is prime, so that with enough of them each operation has its trial.
_STRIDE = 101


class Aim(NamedTuple):
    """Which operation fails, its kind, whether for good, and with which of its errors."""

    fails_at: int
    kind: str
    for_good: bool
    which: int

    @property
    def error(self) -> type[apsw.Error]:
        return error_of(self.kind, self.which)


def aim(number: int, plot: Plot) -> Aim:
    """At what the trial of this number aims."""
    nth, for_good = divmod(number, 2)
    which, nth = divmod(nth, plot.operations)
    assert plot.operations % _STRIDE
    fails_at = nth * _STRIDE % plot.operations
    return Aim(fails_at, plot.asked[fails_at], bool(for_good), which)


def replay(number: int) -> str:
    return f".venv/bin/python -m tests.store.faults {number}"


async def attempt(number: int, plot: Plot, place: Path) -> tuple[str, FaultyDisk, list[str]]:
    directory = place / "data"
    shutil.rmtree(directory, ignore_errors=True)
    aimed = aim(number, plot)
    disk = FaultyDisk(aimed.fails_at, for_good=aimed.for_good, which=aimed.which)
    going = Trial(directory, disk)
    wrong = await going.go(plot)
    if not wrong and not aimed.for_good and len(going.told) > FAILED_CALLS_MAX:
        wrong = "one failed operation made too many calls fail"
    # Or it would not be known what has had its trial: the story is to be told in the same way each time.
    if not wrong and disk.failed[:1] != [f"{aimed.kind} ({aimed.error.__name__})"]:
        wrong = f"operation {aimed.fails_at} is no longer a {aimed.kind}, or there is none any more"
    if wrong:
        wrong = f"{wrong} ({disk.failed[:1]}{' for good' * aimed.for_good}); again: {replay(number)}"
    return wrong, disk, going.told


async def main(number: int) -> None:
    place = memory_directory()
    try:
        wrong, disk, told = await attempt(number, await plot(), place)
    finally:
        shutil.rmtree(place)
    print(f"failed: {', '.join(disk.failed[:3])}{' ...' * (len(disk.failed) > 3)}")
    print("told:", *told, sep="\n  ")
    print(wrong or "right")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
