"""Power cuts: a workload runs once on a real store and a recording disk; then the power is cut at any point of it.

Each cut is a number. `python -m tests.store.power_cuts NUMBER` repeats that one and prints the result.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from msgspec.structs import replace

from kedge.errors import KedgeError
from kedge.store.sqlite import SqliteStore
from tests.store.recording_disk import DATABASE, Change, DiskState, Image, Key, LossMode, RecordingDisk, loss_mode
from tests.store.samples import accepted, events, workspace
from tests.store.workload import (
    CHECKPOINT_PAGES,
    Step,
    apply_step,
    memory_directory,
    read_files,
    state_digest,
    workload,
    write_files,
)

#: Cuts of one recording: enough for images to recur, few enough for many recordings.
CUTS_EACH = 5_000
#: Steps of one workload: all kinds, several checkpoints, and a database that is still small.
STEPS = 60
#: For every 16th image the store is also written to, closed, and opened a second time.
THOROUGH_EACH = 16
#: Every 100th cut is checked even if its image has the key of an earlier one.
CHECKED_EACH = 100


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of the store after a Write: the change it is visible from, and the change it is acknowledged at."""

    digest: bytes
    visible_from: int
    acknowledged: int
    durable: bool


@dataclass(slots=True)
class Recording:
    changes: list[Change]
    snapshots: list[Snapshot]
    #: Changes that set up the initial image: no cut comes earlier.
    setup_changes: int
    _acknowledged: list[int] = field(default_factory=list)
    _promised: list[tuple[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._acknowledged = [snapshot.acknowledged for snapshot in self.snapshots]
        self._promised = [(snapshot.acknowledged, i) for i, snapshot in enumerate(self.snapshots) if snapshot.durable]

    def allowed(self, reached: int, mode: LossMode) -> dict[bytes, int]:
        """Digest -> number of each state that is allowed after a cut that follows the first `reached` changes."""
        if mode == "killed":
            first = bisect_right(self._acknowledged, reached) - 1
        else:
            first = self._promised[bisect_right(self._promised, (reached, len(self.snapshots))) - 1][1]
        return {
            snapshot.digest: number
            for number, snapshot in enumerate(self.snapshots[first:], first)
            if number == first or snapshot.visible_from <= reached
        }


async def record(number: int, *, ignored_syncs: Iterable[str] = (), all_durable: bool = False) -> Recording:
    """Record the workload of this number on a new directory, an existing one, or the image that another cut left.

    `promises_all`: nothing is written as durable, but all of it is required to survive."""
    rng = Random(f"story {number}")
    base = memory_directory()
    try:
        match number % 3:
            case 0:
                return await _record(base, None, workload(rng, STEPS), ignored_syncs, all_durable)
            case 1:
                await _record(base, None, workload(rng, STEPS // 4), (), False)
                image = read_files(base / "deep" / "data")
            case _:
                before = await _record(base, None, workload(rng, STEPS // 4), (), False)
                remaining = disk_at(before, rng.randrange(len(before.changes))).after_loss(loss_mode(rng), rng)
                image = remaining or {}
        return await _record(base, image, workload(rng, STEPS, "b"), ignored_syncs, all_durable)
    finally:
        shutil.rmtree(base)


async def _record(
    base: Path, image: Image, steps: Iterable[Step], ignored_syncs: Iterable[str], all_durable: bool
) -> Recording:
    directory = base / "deep" / "data"
    shutil.rmtree(directory.parent, ignore_errors=True)
    disk = RecordingDisk(directory, ignored_syncs)
    if image is not None:
        directory.parent.mkdir()
        write_files(directory, image)
        disk.start_with(image)
    setup_changes = len(disk.changes)
    store = await _opened(disk)
    snapshots = [Snapshot(await state_digest(store), 0, 0, True)]
    for step in steps:
        visible_from = len(disk.changes)
        if step.name == "reopen":
            await store.close()
            store = await _opened(disk)
            continue
        await apply_step(store, _not_durable(step) if all_durable else step)
        disk.scan()
        acknowledged = len(disk.changes)
        snapshots.append(Snapshot(await state_digest(store), visible_from, acknowledged, step.durable))
    await store.close()
    disk.scan()
    return Recording(disk.changes, snapshots, setup_changes)


def _not_durable(step: Step) -> Step:
    return replace(step, writes=tuple(replace(write, durable=False) for write in step.writes))


async def _opened(disk: RecordingDisk) -> SqliteStore:
    store = SqliteStore(disk.path, vfs=disk.name)
    store._directory = disk.directory()
    await store.open()
    assert store._writer is not None
    store._writer.checkpoint_pages = CHECKPOINT_PAGES
    return store


def disk_at(recording: Recording, reached: int) -> DiskState:
    disk = DiskState()
    for change in recording.changes[:reached]:
        disk.apply(change)
    return disk


# --- Cutting ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PowerCut:
    number: int
    reached: int
    mode: LossMode
    rng: Random


def plan_cuts(recording: Recording, numbers: Iterable[int]) -> list[PowerCut]:
    """The cuts in the order of the recording."""
    cuts = []
    for number in numbers:
        rng = Random(f"cut {number}")
        reached = rng.randint(recording.setup_changes, len(recording.changes))
        cuts.append(PowerCut(number, reached, loss_mode(rng), rng))
    return sorted(cuts, key=lambda cut: cut.reached)


@dataclass(slots=True)
class Tally:
    cuts: int = 0
    distinct: int = 0
    checked: int = 0
    modes: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)


async def check_cuts(recording: Recording, numbers: Iterable[int]) -> Tally:
    """Cut the power at each number and open a store on the remaining image. Equal images are opened once."""
    tally, base, disk = Tally(), memory_directory(), DiskState()
    results: dict[Key, Reopened] = {}
    try:
        for cut in plan_cuts(recording, numbers):
            while disk.reached < cut.reached:
                disk.apply(recording.changes[disk.reached])
            image = disk.after_loss(cut.mode, cut.rng)
            key = disk.key(image)
            if key not in results:
                results[key] = await check_image(base / "data", image, thorough=len(results) % THOROUGH_EACH == 0)
            elif cut.number % CHECKED_EACH == 0:
                # Images with equal keys must give equal results.
                tally.checked += 1
                assert await check_image(base / "data", image, thorough=False) == results[key], replay(cut.number)
            tally.cuts += 1
            tally.modes[cut.mode] += 1
            if failure := results[key].failure or _mismatch(recording, cut, results[key]):
                tally.failures.append(f"{failure} ({cut.mode} at {cut.reached}); replay: {replay(cut.number)}")
        tally.distinct = len(results)
        return tally
    finally:
        shutil.rmtree(base)


def replay(number: int) -> str:
    return f".venv/bin/python -m tests.store.power_cuts {number}"


def _mismatch(recording: Recording, cut: PowerCut, result: Reopened) -> str:
    allowed = recording.allowed(cut.reached, cut.mode)
    if result.digest in allowed:
        return ""
    numbers = {snapshot.digest: number for number, snapshot in enumerate(recording.snapshots)}
    actual = numbers.get(result.digest)
    if actual is None:
        return "the store is in a state that it never had"
    return f"the store is in state {actual}, allowed are {sorted(allowed.values())}"


@dataclass(frozen=True, slots=True)
class Reopened:
    """The state of the store when it was opened, or the failure."""

    digest: bytes
    failure: str = ""


async def check_image(directory: Path, image: Image, *, thorough: bool) -> Reopened:
    """Open the image that a cut left, as any start would; read all of it, and write to it."""
    write_files(directory, image)
    store, second = SqliteStore(directory), SqliteStore(directory)
    record = workspace("after")
    try:
        await store.open()
        digest = await state_digest(store)
        await store.workspace(record.path, record)
        if thorough:
            position = await store.append(events(accepted("next"), workspace_id=record.id))
            assert position == record.base + 1, "the log continues at the wrong position"
            after = await state_digest(store)
        await store.close()
        if thorough:
            await second.open()
            assert await state_digest(second) == after, "the append after the cut is missing"
    except (KedgeError, AssertionError) as error:
        return Reopened(b"", f"{type(error).__name__}: {error}")
    finally:
        await store.close()
        await second.close()
    with (directory / DATABASE).open("rb") as file:
        if file.read(21)[20] != 8:
            return Reopened(digest, "the database has lost its page checksums")
    return Reopened(digest)


async def main(number: int) -> None:
    recording = await record(number // CUTS_EACH)
    (cut,) = plan_cuts(recording, [number])
    last = "; ".join(f"{change.kind} {change.name}" for change in recording.changes[cut.reached - 3 : cut.reached])
    print(f"cut {number}: {cut.mode}, after change {cut.reached} of {len(recording.changes)} (... {last})")
    image = disk_at(recording, cut.reached).after_loss(cut.mode, cut.rng)
    print("image:", {name: len(content) for name, content in image.items()} if image is not None else "no directory")
    tally = await check_cuts(recording, [number])
    print(tally.failures[0] if tally.failures else "as promised")
    sys.exit(bool(tally.failures))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
