"""Damage to the files of a killed store: flipped bits, changed bytes, zeroed sectors, truncation, swapped WAL frames.

Swapped database pages are not included: each page is valid and does not hold its own number. The hash chain of the log
detects them; nothing does for records (`test_bit_flips.py` tests the promise).

Each damage is a number. `python -m tests.store.damage NUMBER` repeats that one and prints the result.
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
from tests.store.recording_disk import DATABASE, HEAD_FILE, SECTOR_BYTES, WAL
from tests.store.samples import accepted, ended, events
from tests.store.workload import apply_step, call_read, memory_directory, read_files, workload, write_files

#: Damages done to one store before the next one is created.
DAMAGES_EACH = 500
#: Attempts to create a store in which a Run has ended: about one in a hundred has none.
ATTEMPTS_MAX = 5
#: Steps in the database, and steps that are only in the WAL.
_STEPS_OLD, _STEPS_NEW = 40, 8
#: File headers decide how the rest is read, so they get more than their share of the damage. Bytes.
_HEADER_BYTES = 100
PAGE_BYTES, _WAL_HEADER_BYTES, _FRAME_BYTES = 4096, 32, 4120
_RUN_BYTES_MAX = 64

Query = Callable[[apsw.Connection], Any]


@dataclass(slots=True)
class KilledStore:
    """The files of a killed store, the queries it must answer, and the correct answers."""

    image: dict[str, bytes]
    queries: dict[str, Query]
    truth: dict[str, Any]
    #: (workspace, session, Run) of ended Runs.
    ended: list[tuple[str, str, str]]
    #: Workspace -> head of its log.
    heads: dict[str, int]


async def killed_store(number: int) -> KilledStore:
    """A store with an ended Run, which must not end a second time."""
    for attempt in range(ATTEMPTS_MAX):
        store_files = await _killed_store(Random(f"victim {number}" + " again" * attempt))
        if store_files.ended:
            return store_files
    raise AssertionError(f"no Run of store {number} has ended in {ATTEMPTS_MAX} attempts")


async def _killed_store(rng: Random) -> KilledStore:
    base = memory_directory()
    store = SqliteStore(base / "data")
    try:
        await store.open()
        steps = [step for step in workload(rng, _STEPS_OLD + _STEPS_NEW) if step.name != "reopen"]
        for step in steps[:_STEPS_OLD]:
            await apply_step(store, step)
        await store.close()
        store = SqliteStore(base / "data")
        await store.open()
        for step in steps[_STEPS_OLD:]:
            await apply_step(store, step)
        queries = await _queries(store)
        truth = await answers(store, queries)
        runs = [run for name in truth if name.startswith("runs of") for run in truth[name]]
        ended = [(run.workspace_id, run.session_id, run.run_id) for run in runs if run.state == "ended"]
        heads = {record.id: (await store.bounds(record.id))[1] for record in await store.workspaces()}
        image = read_files(base / "data")
        assert len(image[WAL]) > 10 * _FRAME_BYTES
        return KilledStore(image, queries, truth, ended, heads)
    finally:
        await store.close()
        shutil.rmtree(base)


async def _queries(store: SqliteStore) -> dict[str, Query]:
    """Every read of the store, for every record in it."""
    queries: dict[str, Query] = {}

    def add(name: str, method: str, *arguments: Any) -> None:
        queries[name] = lambda db: call_read(store, method, db, *arguments)

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
            for version in await store.file_versions(w, s, None):
                add(f"file {version.id}", "file_version", w, version.id)
                if version.before:
                    add(f"content of {version.id}", "original", w, version.id)
            for run in await store.runs(s, 1_000):
                add(f"run {run.run_id}", "run", w, run.run_id)
                for file in run.prompt.attachments:
                    add(f"attachment {file.digest}", "attachment", w, file.digest)
            for message in await store.messages(s, None, 1_000):
                add(f"message {message.id}", "message", w, message.id)
    return queries


async def answers(store: SqliteStore, queries: dict[str, Query]) -> dict[str, Any]:
    """The result or the error of each query, in one request to the reader thread."""
    assert store._reader is not None

    def run_all(db: apsw.Connection) -> dict[str, Any]:
        results: dict[str, Any] = {}
        for name, query in queries.items():
            try:
                results[name] = query(db)
            except Exception as error:
                results[name] = store_error(error, db.filename, name)
        return results

    return await store._reader.ask(run_all)


# --- Doing damage ----------------------------------------------------------------------------------------------------

KINDS = ("bit", "bit", "bit", "bytes", "sector", "end", "swap")


@dataclass(frozen=True, slots=True)
class Damage:
    kind: str
    name: str
    content: bytes
    where: int


def damage(image: dict[str, bytes], rng: Random) -> Damage:
    """Damage the image until it differs: a zeroed sector may have been zeros before."""
    while True:
        damaged = _damage(image, rng)
        if damaged.content != image[damaged.name]:
            return damaged


def _damage(image: dict[str, bytes], rng: Random) -> Damage:
    kind = rng.choice(KINDS)
    name = rng.choices((DATABASE, WAL, HEAD_FILE), (10, 10, 1))[0]
    if name != WAL and kind == "swap":
        kind = "bit"
    content = bytearray(image[name])
    at = rng.randrange(min(_HEADER_BYTES, len(content)) if rng.random() < 0.15 else len(content))
    match kind:
        case "bit":
            content[at] ^= 1 << rng.randrange(8)
        case "bytes":
            run = content[at : at + rng.randint(1, _RUN_BYTES_MAX)]
            content[at : at + len(run)] = rng.randbytes(len(run))
        case "sector":
            at -= at % SECTOR_BYTES
            content[at : at + SECTOR_BYTES] = bytes(len(content[at : at + SECTOR_BYTES]))
        case "end":
            at -= at % SECTOR_BYTES if rng.random() < 0.5 else 0
            del content[at:]
        case "swap":
            at = swap(content, _WAL_HEADER_BYTES, _FRAME_BYTES, rng)
    return Damage(kind, name, bytes(content), at)


def swap(content: bytearray, first: int, size: int, rng: Random) -> int:
    """Swap two blocks of this size, which start at `first`; return the offset of one."""
    at, other = rng.sample(range(first, len(content) - size + 1, size), 2)
    one, two = content[at : at + size], content[other : other + size]
    content[at : at + size], content[other : other + size] = two, one
    return at


@dataclass(slots=True)
class Tally:
    damages: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)


async def check_damages(killed_store: KilledStore, numbers: Iterable[int]) -> Tally:
    tally, base = Tally(), memory_directory()
    try:
        for number in numbers:
            damaged = damage(killed_store.image, Random(f"damage {number}"))
            tally.damages += 1
            tally.kinds[f"{damaged.kind} in {damaged.name}"] += 1
            outcome, failure = await check_damage(
                base / "data", killed_store, {**killed_store.image, damaged.name: damaged.content}
            )
            tally.outcomes[outcome] += 1
            if failure:
                tally.failures.append(
                    f"{failure} ({damaged.kind} in {damaged.name} at {damaged.where}); replay: {replay(number)}"
                )
        return tally
    finally:
        shutil.rmtree(base)


def replay(number: int) -> str:
    return f".venv/bin/python -m tests.store.damage {number}"


async def check_damage(directory: Path, killed_store: KilledStore, image: dict[str, bytes]) -> tuple[str, str]:
    """Open a store on this image; return the outcome, and the failure if it is wrong."""
    write_files(directory, image)
    store = SqliteStore(directory)
    try:
        await store.open()
        results = await answers(store, killed_store.queries)
        errors = [error for error in results.values() if isinstance(error, Exception)]
        for name, error in ((name, error) for name, error in results.items() if isinstance(error, Exception)):
            if not isinstance(error, StoreDamaged):
                return "wrong", f"{name}: {type(error).__name__}: {error}"
        for name, right in killed_store.truth.items():
            if results[name] != right and not isinstance(results[name], Exception):
                return "wrong", f"{name}: a wrong answer"
        failure, refused = await _check_writes(store, killed_store)
        if failure:
            return "wrong", failure
        return ("detected on read" if errors else "detected on write" if refused else "harmless"), ""
    except StoreDamaged as error:
        if str(directory / DATABASE) not in str(error):
            return "wrong", f"the error does not name the database: {error}"
        return "detected at open", ""
    except KedgeError as error:
        return "wrong", f"{type(error).__name__}: {error}"
    finally:
        await store.close()


async def _check_writes(store: SqliteStore, killed_store: KilledStore) -> tuple[str, bool]:
    """Write to the store; return the failure, and whether damage was detected."""
    refused = False
    workspace_id, session_id, run_id = killed_store.ended[0]
    try:
        await store.append(events(ended(run_id), session_id=session_id, workspace_id=workspace_id))
        return "a Run ended twice", False
    except StoreDamaged:
        refused = True
    except VersionConflict:
        pass
    for workspace_id, head in killed_store.heads.items():
        try:
            position = await store.append(events(accepted("next"), session_id="sx", workspace_id=workspace_id))
            if position != head + 1:
                return f"the log of {workspace_id} continues at {position}, not {head + 1}", False
        except StoreDamaged:
            refused = True
    return "", refused


async def main(number: int) -> None:
    store = await killed_store(number // DAMAGES_EACH)
    damaged = damage(store.image, Random(f"damage {number}"))
    print(f"damage {number}: {damaged.kind} in {damaged.name} at {damaged.where} of {len(damaged.content)} bytes")
    tally = await check_damages(store, [number])
    print(*tally.outcomes)
    print(*tally.failures or ["detected or harmless"])
    sys.exit(bool(tally.failures))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
