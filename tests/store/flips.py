"""Damage to a killed store: bits flip, bytes change, sectors are zeroed, ends are cut off, frames swap places.

Pages of the database that swap places are not among it: each is whole, and says nothing of where it belongs. The log's
chain finds that out, for records nothing does (`test_bit_flips.py` has what is promised).

Each damage is a number. `python -m tests.store.flips NUMBER` does that one again, and says what it did and found.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import apsw

from kedge.errors import KedgeError, StoreDamaged, VersionConflict
from kedge.store.sqlite import SqliteStore
from kedge.store.sqlite_threads import store_error
from tests.store.power import DATABASE, NOTE, SECTOR_BYTES, WAL
from tests.store.samples import accepted, ended, events
from tests.store.story import held, memory_directory, put, query, story, tell

#: Damages done to one store, before another one is made.
DAMAGES_EACH = 500
#: Stories that are told until there is one in which a Run has ended: in one of a hundred none has.
STORIES_MAX = 5
#: Steps that are in the database, and those that are in the WAL alone.
_STEPS_OLD, _STEPS_NEW = 40, 8
#: The beginnings of the files say how to read the rest, so more than their share of the damage is done there. Bytes.
_HEADER_BYTES = 100
PAGE_BYTES, _WAL_HEADER_BYTES, _FRAME_BYTES = 4096, 32, 4120
_RUN_BYTES_MAX = 64

Look = Callable[[apsw.Connection], Any]


@dataclass(slots=True)
class Victim:
    """A store as a kill left it; what there is to ask of it, and the right answers."""

    image: dict[str, bytes]
    looks: dict[str, Look]
    truth: dict[str, Any]
    #: (workspace, session, Run) of those that have ended; and the heads of the logs.
    ended: list[tuple[str, str, str]]
    heads: dict[str, int]


async def victim(number: int) -> Victim:
    """One in which a Run has ended: that it does not end twice is tried on it."""
    for again in range(STORIES_MAX):
        made = await _victim(Random(f"victim {number}" + " again" * again))
        if made.ended:
            return made
    raise AssertionError(f"no Run of victim {number} has ended, in {STORIES_MAX} stories")


async def _victim(choose: Random) -> Victim:
    place = memory_directory()
    store = SqliteStore(place / "data")
    try:
        await store.open()
        steps = [step for step in story(choose, _STEPS_OLD + _STEPS_NEW) if step.name != "reopen"]
        for step in steps[:_STEPS_OLD]:
            await tell(store, step)
        await store.close()
        store = SqliteStore(place / "data")
        await store.open()
        for step in steps[_STEPS_OLD:]:
            await tell(store, step)
        looks = await _looks(store)
        truth = await answers(store, looks)
        runs = [run for name in truth if name.startswith("runs of") for run in truth[name]]
        over = [(run.workspace_id, run.session_id, run.run_id) for run in runs if run.state == "ended"]
        heads = {record.id: (await store.bounds(record.id))[1] for record in await store.workspaces()}
        image = held(place / "data")
        assert len(image[WAL]) > 10 * _FRAME_BYTES
        return Victim(image, looks, truth, over, heads)
    finally:
        await store.close()
        shutil.rmtree(place)


async def _looks(store: SqliteStore) -> dict[str, Look]:
    """Every question that the store answers, for all that is in it."""
    looks: dict[str, Look] = {}

    def add(name: str, method: str, *arguments: Any) -> None:
        looks[name] = lambda db: query(store, method, db, *arguments)

    add("workspaces", "workspaces")

    for record in await store.workspaces():
        w = record.id
        add(f"log of {w}", "read", w, 0, 10_000)
        add(f"bounds of {w}", "bounds", w)
        add(f"live runs of {w}", "live_runs", w)
        add(f"sessions of {w}", "sessions", w)
        add(f"asks of {w}", "asks", w)
        add(f"grants of {w}", "grants", w)
        add(f"search in {w}", "search", w, "the who", 100)
        for session in await store.sessions(w):
            s = session.id
            add(f"session {s}", "session", w, s)
            add(f"lane of {s}", "lane", s)
            add(f"runs of {s}", "runs", s, 1_000)
            add(f"messages of {s}", "messages", s, None, 1_000)
            add(f"last messages of {s}", "last_messages", s, 3)
            add(f"asks of {s}", "session_asks", s)
            add(f"files of {s}", "file_versions", w, s, None)
            add(f"runs with files of {s}", "runs_with_files", s)
            for run in await store.runs(s, 1_000):
                add(f"run {run.run_id}", "run", w, run.run_id)
            for message in await store.messages(s, None, 1_000):
                add(f"message {message.id}", "message", w, message.id)
    return looks


async def answers(store: SqliteStore, looks: dict[str, Look]) -> dict[str, Any]:
    """What the store says to each, or the error; all in one go, since there are many."""
    assert store._reader is not None

    def look(db: apsw.Connection) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, ask in looks.items():
            try:
                found[name] = ask(db)
            except Exception as error:
                found[name] = store_error(error, db.filename, name)
        return found

    return await store._reader.ask(look)


# --- Doing damage ----------------------------------------------------------------------------------------------------

KINDS = ("bit", "bit", "bit", "bytes", "sector", "end", "swap")


@dataclass(frozen=True, slots=True)
class Damage:
    kind: str
    name: str
    content: bytes
    where: int


def damage(image: dict[str, bytes], choose: Random) -> Damage:
    """Until something is different: a sector may have been zeros before."""
    while True:
        done = _damage(image, choose)
        if done.content != image[done.name]:
            return done


def _damage(image: dict[str, bytes], choose: Random) -> Damage:
    kind = choose.choice(KINDS)
    name = choose.choices((DATABASE, WAL, NOTE), (10, 10, 1))[0]
    if name != WAL and kind == "swap":
        kind = "bit"
    content = bytearray(image[name])
    at = choose.randrange(min(_HEADER_BYTES, len(content)) if choose.random() < 0.15 else len(content))
    match kind:
        case "bit":
            content[at] ^= 1 << choose.randrange(8)
        case "bytes":
            run = content[at : at + choose.randint(1, _RUN_BYTES_MAX)]
            content[at : at + len(run)] = choose.randbytes(len(run))
        case "sector":
            at -= at % SECTOR_BYTES
            content[at : at + SECTOR_BYTES] = bytes(len(content[at : at + SECTOR_BYTES]))
        case "end":
            at -= at % SECTOR_BYTES if choose.random() < 0.5 else 0
            del content[at:]
        case "swap":
            at = swap(content, _WAL_HEADER_BYTES, _FRAME_BYTES, choose)
    return Damage(kind, name, bytes(content), at)


def swap(content: bytearray, first: int, size: int, choose: Random) -> int:
    """Two pieces of this size, which begin at `first`, take each other's place; where one of them was."""
    at, other = choose.sample(range(first, len(content) - size + 1, size), 2)
    one, two = content[at : at + size], content[other : other + size]
    content[at : at + size], content[other : other + size] = two, one
    return at


@dataclass(slots=True)
class Tally:
    damages: int = 0
    #: By what came of it, and by kind and file.
    outcomes: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


async def damage_all(victim: Victim, numbers: Iterable[int]) -> Tally:
    tally, place = Tally(), memory_directory()
    try:
        for number in numbers:
            done = damage(victim.image, Random(f"damage {number}"))
            tally.damages += 1
            tally.kinds[f"{done.kind} in {done.name}"] += 1
            outcome, wrong = await meet(place / "data", victim, {**victim.image, done.name: done.content})
            tally.outcomes[outcome] += 1
            if wrong:
                tally.wrong.append(f"{wrong} ({done.kind} in {done.name} at {done.where}); again: {replay(number)}")
        return tally
    finally:
        shutil.rmtree(place)


def replay(number: int) -> str:
    return f".venv/bin/python -m tests.store.flips {number}"


async def meet(directory: Path, victim: Victim, image: dict[str, bytes]) -> tuple[str, str]:
    """(What came of it, what is wrong with that) when a store is opened on this."""
    put(directory, image)
    store = SqliteStore(directory)
    try:
        await store.open()
        found = await answers(store, victim.looks)
        errors = [error for error in found.values() if isinstance(error, Exception)]
        for name, error in ((name, error) for name, error in found.items() if isinstance(error, Exception)):
            if not isinstance(error, StoreDamaged):
                return "wrong", f"{name}: {type(error).__name__}: {error}"
        for name, right in victim.truth.items():
            if found[name] != right and not isinstance(found[name], Exception):
                return "wrong", f"{name}: a wrong answer"
        wrong, refused = await _go_on(store, victim)
        if wrong:
            return "wrong", wrong
        return ("seen when it was read" if errors else "seen when written" if refused else "harmless"), ""
    except StoreDamaged as error:
        if str(directory / DATABASE) not in str(error):
            return "wrong", f"it is not said what is damaged: {error}"
        return "seen at the start", ""
    except KedgeError as error:
        return "wrong", f"{type(error).__name__}: {error}"
    finally:
        await store.close()


async def _go_on(store: SqliteStore, victim: Victim) -> tuple[str, bool]:
    """(What is wrong with it, whether damage was seen) when the store is written to."""
    refused = False
    workspace_id, session_id, run_id = victim.ended[0]
    try:
        await store.append(events(ended(run_id), session_id=session_id, workspace_id=workspace_id))
        return "a Run ended twice", False
    except StoreDamaged:
        refused = True
    except VersionConflict:
        pass
    for workspace_id, head in victim.heads.items():
        try:
            position = await store.append(events(accepted("next"), session_id="sx", workspace_id=workspace_id))
            if position != head + 1:
                return f"the log of {workspace_id} goes on at {position}, not {head + 1}", False
        except StoreDamaged:
            refused = True
    return "", refused


async def main(number: int) -> None:
    struck = await victim(number // DAMAGES_EACH)
    done = damage(struck.image, Random(f"damage {number}"))
    print(f"damage {number}: {done.kind} in {done.name} at {done.where} of {len(done.content)} bytes")
    tally = await damage_all(struck, [number])
    print(*tally.outcomes)
    print(*tally.wrong or ["seen or harmless"])
    sys.exit(bool(tally.wrong))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
