"""Disk faults: a workload runs on a real store while one disk operation fails, or that one and all later ones.

Each trial is a number. `python -m tests.store.disk_faults NUMBER` repeats that one and prints the result.
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
from tests.store.workload import CHECKPOINT_PAGES, Step, apply_step, memory_directory, state_digest, workload

_numbers = itertools.count()

#: Steps of the workload: it includes each kind of disk operation, a checkpoint and a reopen.
STEPS = 8
#: Store calls that one failed disk operation may fail. After that the store must work again.
FAILED_CALLS_MAX = 2
#: A call that takes longer counts as hung. Seconds; generous, for busy machines.
_CALL_S_MAX = 30

#: The errors of each kind of operation.
ERRORS: dict[str, tuple[type[apsw.Error], ...]] = {
    "open": (apsw.CantOpenError, apsw.IOError),
    "read": (apsw.IOError,),
    "write": (apsw.IOError, apsw.FullError, apsw.ReadOnlyError),
    "sync": (apsw.IOError,),
    "truncate": (apsw.IOError,),
    "delete": (apsw.IOError,),
    "lock": (apsw.IOError,),
    "size": (apsw.IOError,),
    "access": (apsw.IOError,),
}


def error_of(kind: str, error_index: int) -> type[apsw.Error]:
    return ERRORS[kind][error_index % len(ERRORS[kind])]


class FaultyDisk(apsw.VFS):
    """Record each operation, and fail the operation `fails_at`; also all later ones if `permanent`."""

    def __init__(self, fails_at: int | None = None, *, permanent: bool = False, error_index: int = 0) -> None:
        self.name = f"faulty-disk-{next(_numbers)}"
        #: The kind of each operation, in order.
        self.kinds: list[str] = []
        self.failed: list[str] = []
        self.fails_at = fails_at
        self._permanent = permanent
        self._error_index = error_index
        self._lock = threading.Lock()
        assert has_page_checksums()
        super().__init__(self.name, "cksmvfs")

    def operation(self, kind: str) -> None:
        with self._lock:
            number = len(self.kinds)
            self.kinds.append(kind)
            if self.fails_at is None or number < self.fails_at or (number > self.fails_at and not self._permanent):
                return
            error = error_of(kind, self._error_index)
            self.failed.append(f"{kind} ({error.__name__})")
        raise error("injected disk fault")

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:  # noqa: N802
        self.operation("open")
        return _File(self, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802
        self.operation("delete")
        super().xDelete(filename, syncdir)

    def xAccess(self, pathname: str, flags: int) -> bool:  # noqa: N802
        self.operation("access")
        return super().xAccess(pathname, flags)


class _File(apsw.VFSFile):
    def __init__(self, disk: FaultyDisk, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        self._disk = disk
        super().__init__("cksmvfs", name, flags)

    def xRead(self, amount: int, offset: int) -> bytes:  # noqa: N802
        self._disk.operation("read")
        return super().xRead(amount, offset)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        self._disk.operation("write")
        super().xWrite(data, offset)

    def xTruncate(self, newsize: int) -> None:  # noqa: N802
        self._disk.operation("truncate")
        super().xTruncate(newsize)

    def xSync(self, flags: int) -> None:  # noqa: N802
        self._disk.operation("sync")
        super().xSync(flags)

    def xLock(self, level: int) -> None:  # noqa: N802
        self._disk.operation("lock")
        super().xLock(level)

    def xFileSize(self) -> int:  # noqa: N802
        self._disk.operation("size")
        return super().xFileSize()


# --- The workload on a faulty disk -----------------------------------------------------------------------------------


@dataclass(slots=True)
class Baseline:
    """Steps of one Write each, the state of the store after each step, and the kinds of the disk operations."""

    steps: list[Step]
    digests: list[bytes]
    kinds: list[str]

    @property
    def operations(self) -> int:
        return len(self.kinds)


async def record_baseline() -> Baseline:
    steps = [
        Step(step.name, (write,) if write else (), step.workspace_id)
        for step in workload(Random("faults"), STEPS)
        for write in (step.writes or (None,))
    ]
    steps.insert(len(steps) // 2, Step("reopen"))
    steps.append(Step("trim", workspace_id="w1"))
    base = memory_directory()
    try:
        first = Trial(base / "first", FaultyDisk())
        await first.open()
        digests = [await first.digest()]
        for step in steps:
            await first.apply(step)
            digests.append(await first.digest())
        await first.close()
        disk = FaultyDisk()
        baseline = Baseline(steps, digests, disk.kinds)
        assert await Trial(base / "second", disk).run_steps(baseline) == ""
        return baseline
    finally:
        shutil.rmtree(base)


@dataclass(slots=True)
class Trial:
    directory: Path
    disk: FaultyDisk
    store: SqliteStore | None = None
    #: The messages of the calls that failed.
    errors: list[str] = field(default_factory=list)

    async def open(self) -> None:
        store = SqliteStore(self.directory, vfs=self.disk.name)
        await store.open()
        self.store = store
        assert store._writer is not None
        # Inside the commit, not after it as in the product: a trial needs the operations in the order of the baseline.
        store._writer.db.wal_autocheckpoint(CHECKPOINT_PAGES)

    async def digest(self) -> bytes:
        assert self.store is not None
        return await state_digest(self.store)

    async def apply(self, step: Step) -> None:
        if step.name == "reopen":
            await self.close()
        if self.store is None:
            await self.open()
        assert self.store is not None
        await apply_step(self.store, step)

    async def close(self) -> None:
        if self.store is not None:
            await self.store.close()
            self.store = None

    async def run_steps(self, baseline: Baseline) -> str:
        """Run all steps; return the failure, or an empty string."""
        at, is_state_known = 0, True
        while at < len(baseline.steps):
            try:
                async with asyncio.timeout(_CALL_S_MAX):
                    if not is_state_known:
                        digest = await self.digest()
                        if digest not in baseline.digests[at : at + 2]:
                            return f"after step {at} failed, the store is in another state"
                        is_state_known = True
                        # A step may leave the state unchanged: then it is repeated.
                        at += digest != baseline.digests[at]
                        continue
                    await self.apply(baseline.steps[at])
                    at += 1
                    if await self.digest() != baseline.digests[at]:
                        return f"after step {at} the store is in another state"
            except StoreUnavailable as error:
                self.errors.append(str(error))
                is_state_known = self.store is None
                if len(self.errors) > FAILED_CALLS_MAX:
                    break
            except TimeoutError:
                return f"step {at} hangs"
            except KedgeError as error:
                return f"step {at} fails with {type(error).__name__}: {error}"
        await self.close()
        return await self._check_on_healthy_disk(baseline, at)

    async def _check_on_healthy_disk(self, baseline: Baseline, at: int) -> str:
        """Check on a healthy disk that all acknowledged Writes are there and that the database is intact."""
        store = SqliteStore(self.directory)
        try:
            await store.open()
            digest = await state_digest(store)
            assert store._reader is not None
            checked = await store._reader.ask(lambda db: str(db.pragma("integrity_check")))
        except KedgeError as error:
            return f"on a healthy disk: {type(error).__name__}: {error}"
        finally:
            await store.close()
        if digest not in baseline.digests[at : at + 2] or checked != "ok":
            return f"on a healthy disk the store is in another state ({checked})"
        return ""


#: Operations between the faults of two consecutive trials, so that a few trials are spread over the workload. It is
#: prime, so that enough trials cover each operation.
_STRIDE = 103


class Fault(NamedTuple):
    """The operation that fails, its kind, whether all later ones fail too, and the index of its error."""

    fails_at: int
    kind: str
    permanent: bool
    error_index: int

    @property
    def error(self) -> type[apsw.Error]:
        return error_of(self.kind, self.error_index)


def planned_fault(number: int, baseline: Baseline) -> Fault:
    nth, permanent = divmod(number, 2)
    error_index, nth = divmod(nth, baseline.operations)
    assert baseline.operations % _STRIDE
    fails_at = nth * _STRIDE % baseline.operations
    return Fault(fails_at, baseline.kinds[fails_at], bool(permanent), error_index)


def replay(number: int) -> str:
    return f".venv/bin/python -m tests.store.disk_faults {number}"


async def run_trial(number: int, baseline: Baseline, base: Path) -> tuple[str, FaultyDisk, list[str]]:
    directory = base / "data"
    shutil.rmtree(directory, ignore_errors=True)
    fault = planned_fault(number, baseline)
    disk = FaultyDisk(fault.fails_at, permanent=fault.permanent, error_index=fault.error_index)
    trial = Trial(directory, disk)
    failure = await trial.run_steps(baseline)
    if not failure and not fault.permanent and len(trial.errors) > FAILED_CALLS_MAX:
        failure = "one failed operation made too many calls fail"
    # The workload must run identically each time, or it is unknown which operations were tried.
    if not failure and disk.failed[:1] != [f"{fault.kind} ({fault.error.__name__})"]:
        failure = f"operation {fault.fails_at} is no longer a {fault.kind}, or does not exist any more"
    if failure:
        failure = f"{failure} ({disk.failed[:1]}{' for good' * fault.permanent}); replay: {replay(number)}"
    return failure, disk, trial.errors


async def main(number: int) -> None:
    base = memory_directory()
    try:
        failure, disk, errors = await run_trial(number, await record_baseline(), base)
    finally:
        shutil.rmtree(base)
    print(f"failed: {', '.join(disk.failed[:3])}{' ...' * (len(disk.failed) > 3)}")
    print("errors:", *errors, sep="\n  ")
    print(failure or "correct")
    sys.exit(bool(failure))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
