"""The workload of the store proofs: seeded Writes of every kind, and a digest of the store's state."""

from __future__ import annotations

import hashlib
import inspect
import marshal
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Literal

import apsw
from msgspec import Struct
from msgspec.structs import replace

from kedge.core.events import CancelMarked, MessageChanged, RunEnded, RunReported, RunStarted
from kedge.core.records import LaneRecord, Prompt, SessionRecord
from kedge.core.transcript import AttachedFile
from kedge.store import sqlite_reclaim
from kedge.store.base import LaneWrite, Write
from kedge.store.sqlite import SqliteStore
from tests.store.samples import (
    accepted,
    ask,
    attachment,
    content,
    file_version,
    grant,
    message,
    run,
    session,
    tail,
    workspace,
)
from tests.store.test_sqlite import append_together

#: Pages in the WAL that trigger a checkpoint: few, so that a short workload has several.
CHECKPOINT_PAGES = 40
#: Entries that a trim leaves: fewer than a workload writes.
TRIM_ENTRIES = 10
#: After a deletion: enough to remove the session, and to return its pages to the file system.
RECLAIM_SLICES = 8
#: The last version of marshal in which equal values give equal bytes.
_PLAIN_MARSHAL = 2
_SHARED_MEMORY = Path("/dev/shm")


class Step(Struct, frozen=True):
    """Writes that are appended in one transaction; without any, the operation `name` on this workspace."""

    name: str
    writes: tuple[Write, ...] = ()
    workspace_id: str = ""

    @property
    def durable(self) -> bool:
        return self.name == "workspace" or any(write.durable for write in self.writes)


@dataclass(slots=True)
class _LaneModel:
    """The state of one session, which decides what can come next."""

    workspace_id: str
    session_id: str
    version: int = 0
    seq: int = 0
    queued: list[int] = field(default_factory=list)
    active: int | None = None
    streaming: bool = False
    asked: str | None = None

    def run_id(self, seq: int) -> str:
        return f"{self.session_id}-r{seq}"

    def message_id(self) -> str:
        return f"{self.session_id}-m{self.active}"

    def record(self, seq: int, state: Any, **fields: Any) -> Any:
        prompt = Prompt(f"Prompt {seq} " * (40 * (seq % 3)), tuple(attachment(data) for data in self.files(seq)))
        return run(self.run_id(seq), self.session_id, self.workspace_id, seq=seq, state=state, prompt=prompt, **fields)

    def files(self, seq: int) -> list[bytes]:
        """The contents of the files of a prompt; some occur in several prompts and sessions."""
        return [(b"", b"short", b"a long file\n" * 800)[seq % 3]] if seq % 2 else []

    def write(self, *events: Any, mark: int = 0, **fields: Any) -> Write:
        self.version += 1
        lane = LaneWrite(LaneRecord(self.session_id, self.version, self.seq + 1, mark), self.version - 1)
        return Write(self.workspace_id, tuple((self.session_id, event) for event in events), lane, **fields)


def workload(rng: Random, length: int, suffix: str = "") -> Iterator[Step]:
    """Accept, start, stream, finish, cancel, ask, change files, trim, delete and reopen, in seeded order.

    `suffix` is part of all ids, so that a second workload can run on the same store."""
    lanes = [_LaneModel(f"w1{suffix}", f"s1{suffix}"), _LaneModel(f"w2{suffix}", f"s2{suffix}")]
    for lane in lanes:
        yield Step("workspace", workspace_id=lane.workspace_id)
        yield Step("session", (Write(lane.workspace_id, sessions=(session(lane.session_id, lane.workspace_id),)),))
    for number in range(length):
        lane = rng.choice(lanes)
        kind = rng.choices(("next", "cancel", "ask", "file", "together", "trim", "delete", "reopen"), _WEIGHTS)[0]
        match kind:
            case "next":
                yield _next(lane, rng)
            case "cancel" if lane.active is not None:
                yield _cancel(lane)
            case "ask":
                yield _ask(lane, f"{suffix}{number}")
            case "file":
                yield Step("file", (_file(lane, f"{suffix}{number}", rng),))
            case "together":
                writes = [write for each in lanes for write in _next(each, rng).writes]
                extra = Write(lane.workspace_id, durable=False, sessions=(_titled(lane, number),))
                yield Step("together", (*writes, extra))
            case "trim":
                yield Step("trim", workspace_id=lane.workspace_id)
            case "delete":
                new = _LaneModel(lane.workspace_id, f"s{suffix}{number + 10}")
                lanes[lanes.index(lane)] = new
                sessions = (session(new.session_id, new.workspace_id),)
                write = Write(lane.workspace_id, sessions=sessions, deleted_sessions=(lane.session_id,))
                yield Step("delete", (write,))
                yield from (Step("reclaim") for _ in range(RECLAIM_SLICES))
            case "reopen":
                yield Step("reopen")
            case _:
                pass


_WEIGHTS = (60, 6, 6, 6, 8, 4, 2, 4)


def _next(lane: _LaneModel, rng: Random) -> Step:
    """The next step in the lifecycle of a Run."""
    if lane.active is None and lane.queued:
        lane.active = lane.queued.pop(0)
        lane.streaming = True
        event = RunStarted(lane.run_id(lane.active), 2)
        created = message(lane.message_id(), "", lane.session_id)
        shown = tuple(AttachedFile("a.txt", "", 1, content(data).digest) for data in lane.files(lane.active))
        asked = message(f"{created.id}-prompt", session_id=lane.session_id, parts=shown)
        write = lane.write(
            event,
            MessageChanged(created.id, "created"),
            runs=(lane.record(lane.active, "active"),),
            unchanged_prompts=frozenset({lane.run_id(lane.active)}),
            messages=(asked, created),
        )
        return Step("start", (write,))
    if lane.active is None or rng.random() < 0.25:
        lane.seq += 1
        lane.queued.append(lane.seq)
        contents = tuple(map(content, lane.files(lane.seq)))
        runs = (lane.record(lane.seq, "queued"),)
        write = lane.write(accepted(lane.run_id(lane.seq), lane.seq), runs=runs, attachments=contents)
        return Step("accept", (write,))
    if rng.random() < 0.6:
        added = tail("some more words " * rng.choice((1, 5, 200)), lane.message_id(), session_id=lane.session_id)
        return Step("tail", (Write(lane.workspace_id, tails=(added,), durable=False),))
    full = message(lane.message_id(), "the whole text " * rng.choice((1, 30, 400)), lane.session_id)
    return Step("finish", (_end(lane, "completed", messages=(full,)),))


def _titled(lane: _LaneModel, number: int) -> SessionRecord:
    return session(lane.session_id, lane.workspace_id, title=f"Together {number}")


def _end(lane: _LaneModel, outcome: Literal["completed", "cancelled"], **fields: Any) -> Write:
    assert lane.active is not None
    seq, lane.active = lane.active, None
    run_id = lane.run_id(seq)
    events = (RunEnded(run_id, outcome, "", 3), RunReported(run_id, outcome, ""))
    return lane.write(*events, runs=(lane.record(seq, "ended", outcome=outcome, ended_at=3),), **fields)


def _cancel(lane: _LaneModel) -> Step:
    assert lane.active is not None
    marked = lane.write(CancelMarked(lane.seq, lane.run_id(lane.active), 3), mark=lane.seq)
    ended = [RunEnded(lane.run_id(seq), "cancelled", "", 3) for seq in lane.queued]
    records = tuple(lane.record(seq, "ended", outcome="cancelled", ended_at=3) for seq in lane.queued)
    lane.queued.clear()
    cancelled = lane.write(*ended, runs=records, mark=lane.seq) if ended else None
    last = _end(lane, "cancelled")
    return Step("cancel", (marked, *((cancelled,) if cancelled else ()), last))


def _ask(lane: _LaneModel, number: str) -> Step:
    if lane.asked is None:
        lane.asked = number
        pending = ask(f"a{number}", lane.session_id, lane.workspace_id)
        return Step("ask", (Write(lane.workspace_id, asks=(pending,)),))
    settled = replace(ask(f"a{lane.asked}", lane.session_id, lane.workspace_id), state="answered")
    lane.asked = None
    new_grant = grant(f"g{number}", lane.session_id, lane.workspace_id)
    return Step("answer", (Write(lane.workspace_id, asks=(settled,), grants=(new_grant,)),))


def _file(lane: _LaneModel, number: str, rng: Random) -> Write:
    content = rng.choice((None, b"", b"a line\n" * 100, rng.randbytes(9_000)))
    before = "" if content is None else "old"
    version = file_version(f"f{number}", lane.session_id, lane.workspace_id, before=before)
    return Write(lane.workspace_id, files=(version,), originals={} if content is None else {version.id: content})


# --- Applying it to a store ------------------------------------------------------------------------------------------


async def apply_step(store: SqliteStore, step: Step) -> None:
    """Apply any step except "reopen"."""
    if step.name == "workspace":
        record = workspace(step.workspace_id)
        await store.workspace(record.path, record)
    elif step.name == "trim":
        await store.trim(step.workspace_id, TRIM_ENTRIES)
    elif step.name == "reclaim":
        sqlite_reclaim.FREE_PAGES_KEPT, kept = 0, sqlite_reclaim.FREE_PAGES_KEPT
        try:
            await store.reclaim()
        finally:
            sqlite_reclaim.FREE_PAGES_KEPT = kept
    elif len(step.writes) == 1:
        await store.append(step.writes[0])
    elif step.writes:
        for result in await append_together(store, list(step.writes)):
            if isinstance(result, BaseException):
                raise result


def table_digest(db: apsw.Connection) -> bytes:
    """The digest of all rows of all tables: equal for stores that are indistinguishable."""
    digest = hashlib.blake2b(digest_size=16)
    names = db.execute("SELECT name, rootpage FROM sqlite_schema WHERE type = 'table' ORDER BY name").fetchall()
    for name, page in names:
        if page:
            rows = db.execute(f"SELECT * FROM {name}").fetchall()
            digest.update(marshal.dumps((name, rows), _PLAIN_MARSHAL))
    return digest.digest()


async def state_digest(store: SqliteStore) -> bytes:
    """The digest of the store's content. Also checks the hash chains of its logs."""
    assert store._reader is not None

    def checked(db: apsw.Connection) -> bytes:
        for record in call_read(store, "workspaces", db):
            floor, head = call_read(store, "bounds", db, record.id)
            assert len(call_read(store, "read", db, record.id, floor, head - floor)) == head - floor
        return table_digest(db)

    return await store._reader.ask(checked)


def call_read(store: SqliteStore, method: str, db: apsw.Connection, *arguments: Any) -> Any:
    """Call a read method of the store in the current thread."""
    return inspect.unwrap(getattr(SqliteStore, method))(store, db, *arguments)


def memory_directory() -> Path:
    """A new directory, on a RAM disk if there is one. The caller removes it."""
    parent = _SHARED_MEMORY if os.access(_SHARED_MEMORY, os.W_OK) else None
    return Path(tempfile.mkdtemp(prefix="kedge-store-", dir=parent))


def write_files(directory: Path, image: dict[str, bytes] | None) -> None:
    """Make the data directory hold exactly these files."""
    if image is None:
        shutil.rmtree(directory, ignore_errors=True)
        return
    directory.mkdir(mode=0o700, exist_ok=True)
    for path in directory.iterdir():
        if path.name not in image:
            path.unlink()
    for name, data in image.items():
        (directory / name).write_bytes(data)


def read_files(directory: Path) -> dict[str, bytes]:
    """The files of the data directory, without the lock and SQLite's shared memory."""
    files = {path.name: path.read_bytes() for path in directory.iterdir()}
    return {name: content for name, content in files.items() if not name.endswith((".lock", "-shm"))}
