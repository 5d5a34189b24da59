"""What a store goes through in the proofs: seeded Writes of every kind, and how the store stands after each of them."""

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
from kedge.store.base import LaneWrite, Write
from kedge.store.sqlite import SqliteStore
from tests.store.samples import accepted, ask, file_version, grant, message, run, session, tail, workspace
from tests.store.test_sqlite import append_together

#: Pages in the WAL from which on it is copied into the database: few, so that it happens often in a short story.
CHECKPOINT_PAGES = 40
#: Entries that a trim leaves: fewer than a story writes.
TRIM_KEPT = 10
#: The last version of marshal in which equal values give equal bytes.
_PLAIN_MARSHAL = 2
_SHARED_MEMORY = Path("/dev/shm")


class Step(Struct, frozen=True):
    """`writes`: appended together, in one transaction. Without any: what `name` says, of this workspace."""

    name: str
    writes: tuple[Write, ...] = ()
    workspace_id: str = ""

    @property
    def durable(self) -> bool:
        return self.name == "workspace" or any(write.durable for write in self.writes)


@dataclass(slots=True)
class _Talk:
    """One session as it stands, to write what may come next."""

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
        prompt = Prompt(f"Prompt {seq} " * (40 * (seq % 3)))
        return run(self.run_id(seq), self.session_id, self.workspace_id, seq=seq, state=state, prompt=prompt, **fields)

    def write(self, *events: Any, mark: int = 0, **fields: Any) -> Write:
        self.version += 1
        lane = LaneWrite(LaneRecord(self.session_id, self.version, self.seq + 1, mark), self.version - 1)
        return Write(self.workspace_id, tuple((self.session_id, event) for event in events), lane, **fields)


def story(choose: Random, length: int, mark: str = "") -> Iterator[Step]:
    """Accept, start, stream, finish, cancel, ask, change files, trim, delete, close and open, in seeded order.

    `mark` is in all ids, so that a second story can be told to the same store."""
    talks = [_Talk(f"w1{mark}", f"s1{mark}"), _Talk(f"w2{mark}", f"s2{mark}")]
    for talk in talks:
        yield Step("workspace", workspace_id=talk.workspace_id)
        yield Step("session", (Write(talk.workspace_id, sessions=(session(talk.session_id, talk.workspace_id),)),))
    for number in range(length):
        talk = choose.choice(talks)
        kind = choose.choices(("next", "cancel", "ask", "file", "together", "trim", "delete", "reopen"), _LIKELY)[0]
        match kind:
            case "next":
                yield _next(talk, choose)
            case "cancel" if talk.active is not None:
                yield _cancel(talk)
            case "ask":
                yield _ask(talk, f"{mark}{number}")
            case "file":
                versions = (_file(talk, f"{mark}{number}", choose),)
                yield Step("file", (Write(talk.workspace_id, files=versions),))
            case "together":
                writes = [write for one in talks for write in _next(one, choose).writes]
                extra = Write(talk.workspace_id, durable=False, sessions=(_titled(talk, number),))
                yield Step("together", (*writes, extra))
            case "trim":
                yield Step("trim", workspace_id=talk.workspace_id)
            case "delete":
                new = _Talk(talk.workspace_id, f"s{mark}{number + 10}")
                talks[talks.index(talk)] = new
                put = (session(new.session_id, new.workspace_id),)
                write = Write(talk.workspace_id, sessions=put, deleted_sessions=(talk.session_id,))
                yield Step("delete", (write,))
            case "reopen":
                yield Step("reopen")
            case _:
                pass


_LIKELY = (60, 6, 6, 6, 8, 4, 2, 4)


def _next(talk: _Talk, choose: Random) -> Step:
    """The next thing in the life of a Run."""
    if talk.active is None and talk.queued:
        talk.active = talk.queued.pop(0)
        talk.streaming = True
        event = RunStarted(talk.run_id(talk.active), 2)
        begun = message(talk.message_id(), "", talk.session_id)
        write = talk.write(
            *(event, MessageChanged(begun.id, "created")),
            runs=(talk.record(talk.active, "active"),),
            messages=(begun,),
        )
        return Step("start", (write,))
    if talk.active is None or choose.random() < 0.25:
        talk.seq += 1
        talk.queued.append(talk.seq)
        write = talk.write(accepted(talk.run_id(talk.seq), talk.seq), runs=(talk.record(talk.seq, "queued"),))
        return Step("accept", (write,))
    if choose.random() < 0.6:
        added = tail("some more words " * choose.choice((1, 5, 200)), talk.message_id(), session_id=talk.session_id)
        return Step("tail", (Write(talk.workspace_id, tails=(added,), durable=False),))
    whole = message(talk.message_id(), "the whole text " * choose.choice((1, 30, 400)), talk.session_id)
    return Step("finish", (_end(talk, "completed", messages=(whole,)),))


def _titled(talk: _Talk, number: int) -> SessionRecord:
    return session(talk.session_id, talk.workspace_id, title=f"Together {number}")


def _end(talk: _Talk, outcome: Literal["completed", "cancelled"], **fields: Any) -> Write:
    assert talk.active is not None
    over, talk.active = talk.active, None
    run_id = talk.run_id(over)
    events = (RunEnded(run_id, outcome, "", 3), RunReported(run_id, outcome, ""))
    return talk.write(*events, runs=(talk.record(over, "ended", outcome=outcome, ended_at=3),), **fields)


def _cancel(talk: _Talk) -> Step:
    assert talk.active is not None
    told = talk.write(CancelMarked(talk.seq, talk.run_id(talk.active), 3), mark=talk.seq)
    over = [RunEnded(talk.run_id(seq), "cancelled", "", 3) for seq in talk.queued]
    records = tuple(talk.record(seq, "ended", outcome="cancelled", ended_at=3) for seq in talk.queued)
    talk.queued.clear()
    cancelled = talk.write(*over, runs=records, mark=talk.seq) if over else None
    last = _end(talk, "cancelled")
    return Step("cancel", (told, *((cancelled,) if cancelled else ()), last))


def _ask(talk: _Talk, number: str) -> Step:
    if talk.asked is None:
        talk.asked = number
        put = ask(f"a{number}", talk.session_id, talk.workspace_id)
        return Step("ask", (Write(talk.workspace_id, asks=(put,)),))
    settled = replace(ask(f"a{talk.asked}", talk.session_id, talk.workspace_id), state="answered")
    talk.asked = None
    given = grant(f"g{number}", talk.session_id, talk.workspace_id)
    return Step("answer", (Write(talk.workspace_id, asks=(settled,), grants=(given,)),))


def _file(talk: _Talk, number: str, choose: Random) -> Any:
    before = choose.choice((None, b"", b"a line\n" * 100, choose.randbytes(9_000)))
    return file_version(f"f{number}", talk.session_id, talk.workspace_id, before=before)


# --- Telling it to a store -------------------------------------------------------------------------------------------


async def tell(store: SqliteStore, step: Step) -> None:
    """Do it, whatever it is but "reopen"."""
    if step.name == "workspace":
        record = workspace(step.workspace_id)
        await store.workspace(record.path, record)
    elif step.name == "trim":
        await store.trim(step.workspace_id, TRIM_KEPT)
    elif len(step.writes) == 1:
        await store.append(step.writes[0])
    elif step.writes:
        for result in await append_together(store, list(step.writes)):
            if isinstance(result, BaseException):
                raise result


def contents(db: apsw.Connection) -> bytes:
    """Everything in every table, as a digest: equal for stores that cannot be told apart."""
    found = hashlib.blake2b(digest_size=16)
    names = db.execute("SELECT name, rootpage FROM sqlite_schema WHERE type = 'table' ORDER BY name").fetchall()
    for name, page in names:
        if page:
            rows = db.execute(f"SELECT * FROM {name}").fetchall()
            found.update(marshal.dumps((name, rows), _PLAIN_MARSHAL))
    return found.digest()


async def standing(store: SqliteStore) -> bytes:
    """The digest of what is in the store; the chains of its logs are checked on the way."""
    assert store._reader is not None

    def look(db: apsw.Connection) -> bytes:
        for record in query(store, "workspaces", db):
            floor, head = query(store, "bounds", db, record.id)
            assert len(query(store, "read", db, record.id, floor, head - floor)) == head - floor
        return contents(db)

    return await store._reader.ask(look)


def query(store: SqliteStore, method: str, db: apsw.Connection, *arguments: Any) -> Any:
    """Call a read method of the store in the current thread."""
    return inspect.unwrap(getattr(SqliteStore, method))(store, db, *arguments)


def memory_directory() -> Path:
    """A new directory on a RAM disk, where there is one. Whoever asks for it removes it."""
    place = _SHARED_MEMORY if os.access(_SHARED_MEMORY, os.W_OK) else None
    return Path(tempfile.mkdtemp(prefix="kedge-store-", dir=place))


def put(directory: Path, image: dict[str, bytes] | None) -> None:
    """Makes the data directory hold exactly this."""
    if image is None:
        shutil.rmtree(directory, ignore_errors=True)
        return
    directory.mkdir(mode=0o700, exist_ok=True)
    for path in directory.iterdir():
        if path.name not in image:
            path.unlink()
    for name, content in image.items():
        (directory / name).write_bytes(content)


def held(directory: Path) -> dict[str, bytes]:
    """What the data directory holds; the lock and what SQLite shares between processes are left out."""
    found = {path.name: path.read_bytes() for path in directory.iterdir()}
    return {name: content for name, content in found.items() if not name.endswith((".lock", "-shm"))}
