"""Power cuts: a story is told once to a real store on a recording disk; then the power is cut anywhere in it.

Each cut is a number. `python -m tests.store.cuts NUMBER` does that one again, and says what it did and found.
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
from tests.store.power import DATABASE, Change, Image, Key, Manner, Platter, RecordingDisk, manner
from tests.store.samples import accepted, events, workspace
from tests.store.story import CHECKPOINT_PAGES, Step, held, memory_directory, put, standing, story, tell

#: Cuts of one recording: enough that the same images come again, few enough that every story gets its share.
CUTS_EACH = 5_000
#: Steps of one story: all kinds of them, several checkpoints, and a database that is still small.
STEPS = 60
#: With each so many-th image the store also goes on for a while, is closed, and opened a second time.
THOROUGH_EACH = 16
#: Each so many-th cut is looked at even if its image is taken for one that was seen before.
CHECKED_EACH = 100


@dataclass(frozen=True, slots=True)
class Moment:
    """How the store stands after a Write: from which change on this can be seen, and from which on it was promised."""

    digest: bytes
    begun: int
    acknowledged: int
    durable: bool


@dataclass(slots=True)
class Recording:
    changes: list[Change]
    moments: list[Moment]
    #: The first changes are how it all was before: no cut comes earlier.
    prelude: int
    _acknowledged: list[int] = field(default_factory=list)
    _promised: list[tuple[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._acknowledged = [moment.acknowledged for moment in self.moments]
        self._promised = [(moment.acknowledged, i) for i, moment in enumerate(self.moments) if moment.durable]

    def allowed(self, reached: int, manner: Manner) -> dict[bytes, int]:
        """Digest -> number of each moment that may be found after a cut behind the first `reached` changes."""
        if manner == "killed":
            first = bisect_right(self._acknowledged, reached) - 1
        else:
            first = self._promised[bisect_right(self._promised, (reached, len(self.moments))) - 1][1]
        return {
            moment.digest: number
            for number, moment in enumerate(self.moments[first:], first)
            if number == first or moment.begun <= reached
        }


async def record(number: int, *, deaf_to: Iterable[str] = (), promises_all: bool = False) -> Recording:
    """The story of this number: on a new directory, an existing one, or what another cut has left.

    `promises_all`: nothing is written as durable, and yet all of it is held to be."""
    choose = Random(f"story {number}")
    place = memory_directory()
    try:
        match number % 3:
            case 0:
                return await _told(place, None, story(choose, STEPS), deaf_to, promises_all)
            case 1:
                await _told(place, None, story(choose, STEPS // 4), (), False)
                image = held(place / "deep" / "data")
            case _:
                before = await _told(place, None, story(choose, STEPS // 4), (), False)
                left = platter_at(before, choose.randrange(len(before.changes))).cut(manner(choose), choose)
                image = left or {}
        return await _told(place, image, story(choose, STEPS, "b"), deaf_to, promises_all)
    finally:
        shutil.rmtree(place)


async def _told(
    place: Path, image: Image, steps: Iterable[Step], deaf_to: Iterable[str], promises_all: bool
) -> Recording:
    directory = place / "deep" / "data"
    shutil.rmtree(directory.parent, ignore_errors=True)
    disk = RecordingDisk(directory, deaf_to)
    if image is not None:
        directory.parent.mkdir()
        put(directory, image)
        disk.begin_with(image)
    prelude = len(disk.changes)
    store = await _opened(disk)
    moments = [Moment(await standing(store), 0, 0, True)]
    for step in steps:
        begun = len(disk.changes)
        if step.name == "reopen":
            await store.close()
            store = await _opened(disk)
            continue
        await tell(store, _not_durable(step) if promises_all else step)
        disk.look()
        acknowledged = len(disk.changes)
        moments.append(Moment(await standing(store), begun, acknowledged, step.durable))
    await store.close()
    disk.look()
    return Recording(disk.changes, moments, prelude)


def _not_durable(step: Step) -> Step:
    return replace(step, writes=tuple(replace(write, durable=False) for write in step.writes))


async def _opened(disk: RecordingDisk) -> SqliteStore:
    store = SqliteStore(disk.path, vfs=disk.name)
    store._directory = disk.directory()
    await store.open()
    assert store._writer is not None
    store._writer.db.wal_autocheckpoint(CHECKPOINT_PAGES)
    return store


def platter_at(recording: Recording, reached: int) -> Platter:
    platter = Platter()
    for change in recording.changes[:reached]:
        platter.take(change)
    return platter


# --- Cutting ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cut:
    number: int
    reached: int
    manner: Manner
    choose: Random


def planned(recording: Recording, numbers: Iterable[int]) -> list[Cut]:
    """In the order in which they come in the story."""
    cuts = []
    for number in numbers:
        choose = Random(f"cut {number}")
        reached = choose.randint(recording.prelude, len(recording.changes))
        cuts.append(Cut(number, reached, manner(choose), choose))
    return sorted(cuts, key=lambda cut: cut.reached)


@dataclass(slots=True)
class Tally:
    cuts: int = 0
    distinct: int = 0
    checked: int = 0
    manners: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


async def cut(recording: Recording, numbers: Iterable[int]) -> Tally:
    """Cut the power at each of these, and see what a store makes of what is left. Equal images are opened once."""
    tally, place, platter = Tally(), memory_directory(), Platter()
    found: dict[Key, Found] = {}
    try:
        for one in planned(recording, numbers):
            while platter.reached < one.reached:
                platter.take(recording.changes[platter.reached])
            image = platter.cut(one.manner, one.choose)
            key = platter.key(image)
            if key not in found:
                found[key] = await look(place / "data", image, thorough=len(found) % THOROUGH_EACH == 0)
            elif one.number % CHECKED_EACH == 0:
                # What is taken for the same must be the same.
                tally.checked += 1
                assert await look(place / "data", image, thorough=False) == found[key], replay(one.number)
            tally.cuts += 1
            tally.manners[one.manner] += 1
            if wrong := found[key].wrong or _misses(recording, one, found[key]):
                tally.wrong.append(f"{wrong} ({one.manner} at {one.reached}); again: {replay(one.number)}")
        tally.distinct = len(found)
        return tally
    finally:
        shutil.rmtree(place)


def replay(number: int) -> str:
    return f".venv/bin/python -m tests.store.cuts {number}"


def _misses(recording: Recording, cut: Cut, found: Found) -> str:
    allowed = recording.allowed(cut.reached, cut.manner)
    if found.digest in allowed:
        return ""
    known = {moment.digest: number for number, moment in enumerate(recording.moments)}
    there = known.get(found.digest)
    if there is None:
        return "the store holds something that it never held"
    return f"the store is at moment {there}, not at one of {sorted(allowed.values())}"


@dataclass(frozen=True, slots=True)
class Found:
    """How the store stood when it was opened, or what went wrong."""

    digest: bytes
    wrong: str = ""


async def look(directory: Path, image: Image, *, thorough: bool) -> Found:
    """Open what a cut has left, as any start would; look at everything, and go on with it."""
    put(directory, image)
    store, again = SqliteStore(directory), SqliteStore(directory)
    record = workspace("after")
    try:
        await store.open()
        digest = await standing(store)
        await store.workspace(record.path, record)
        if thorough:
            position = await store.append(events(accepted("next"), workspace_id=record.id))
            assert position == record.base + 1, "the log goes on at the wrong place"
            after = await standing(store)
        await store.close()
        if thorough:
            await again.open()
            assert await standing(again) == after, "what was appended after the cut is not there"
    except (KedgeError, AssertionError) as error:
        return Found(b"", f"{type(error).__name__}: {error}")
    finally:
        await store.close()
        await again.close()
    with (directory / DATABASE).open("rb") as file:
        if file.read(21)[20] != 8:
            return Found(digest, "the database has lost its page checksums")
    return Found(digest)


async def main(number: int) -> None:
    recording = await record(number // CUTS_EACH)
    (one,) = planned(recording, [number])
    around = "; ".join(f"{change.kind} {change.name}" for change in recording.changes[one.reached - 3 : one.reached])
    print(f"cut {number}: {one.manner}, behind change {one.reached} of {len(recording.changes)} (... {around})")
    image = platter_at(recording, one.reached).cut(one.manner, one.choose)
    print("left:", {name: len(content) for name, content in image.items()} if image is not None else "no directory")
    tally = await cut(recording, [number])
    print(tally.wrong[0] if tally.wrong else "as promised")
    sys.exit(bool(tally.wrong))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
