"""A disk that remembers each change, and what a loss of power at any moment could leave of it.

What is assumed of a disk, and what is not:

- What was synced is there. What was not is there, or not, or in part: each write for itself, in whatever order, cut at
  the borders of sectors (and for SQLite's own files anywhere: it does not count on whole sectors either). Of two writes
  to one place the earlier may be what stays; that is the same as losing the later one.
- A file that grew may have grown without what was written to it: zeros or junk are there instead.
- A name that was made or removed is so for sure only when its directory was synced, whatever happened to the content.
- A write leaves alone what is beside it ("powersafe overwrite"). SQLite takes this for granted by default, as all disks
  made for years keep it, and packs the frames of its WAL accordingly; so do we.
- The few bytes of the witness's note are in one sector, which is written as a whole or not at all.
"""

from __future__ import annotations

import itertools
import struct
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Literal

import apsw

from kedge.store.data_directory import DataDirectory
from kedge.store.sqlite_connect import has_page_checksums

DATABASE, WAL, NOTE = "kedge.db", "kedge.db-wal", "kedge.head"
#: The smallest piece that disks write as a whole. Bytes.
SECTOR_BYTES = 512
#: A boot's name in the note, and the one it is replaced with: after a loss of power it is another boot.
_BOOT_BYTES = 36
_EARLIER_BOOT = b"the boot before this one".ljust(_BOOT_BYTES, b"\0")

_numbers = itertools.count()

#: What is in the data directory: name -> content. None: there is no such directory.
Image = dict[str, bytes] | None
Key = tuple[tuple[str, int, int], ...]


@dataclass(frozen=True, slots=True)
class Change:
    """One change of the disk. `file` is a number, since a name may be given to another file later."""

    kind: Literal["write", "truncate", "sync", "create", "remove", "sync names", "sync parent"]
    file: int = -1
    name: str = ""
    offset: int = 0
    data: bytes = b""


class RecordingDisk(apsw.VFS):
    """Between SQLite and the real disk. Pass `disk.name` as the store's vfs, and give the store `disk.directory()`.

    The note beside the database is not SQLite's; it is looked at whenever SQLite does something, and when `look` is
    called. `deaf_to`: names whose syncs are not heard, as if the program had not asked for them."""

    def __init__(self, path: Path, deaf_to: Iterable[str] = ()) -> None:
        self.path = path
        self.name = f"recording-disk-{next(_numbers)}"
        self.changes: list[Change] = []
        self.files: dict[str, int] = {}
        self._deaf_to = set(deaf_to)
        self._count = itertools.count()
        self._note = b""
        self._lock = threading.RLock()
        assert has_page_checksums()
        super().__init__(self.name, "cksmvfs")

    def directory(self) -> DataDirectory:
        return _RecordedDirectory(self.path, self)

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:  # noqa: N802
        with self._lock:
            self.look()
            return _File(self, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802
        with self._lock:
            self.look()
            super().xDelete(filename, syncdir)
            name = Path(filename).name
            del self.files[name]
            self.add(Change("remove", name=name))
            if syncdir:
                self.add(Change("sync names"))

    def add(self, change: Change) -> None:
        with self._lock:
            if change.name not in self._deaf_to or change.kind not in ("sync", "sync names", "sync parent"):
                self.changes.append(change)

    def file_of(self, name: str) -> int:
        with self._lock:
            if name not in self.files:
                self.files[name] = next(self._count)
                self.add(Change("create", self.files[name], name))
            return self.files[name]

    def look(self) -> None:
        with self._lock:
            for name in (DATABASE, NOTE):
                if (self.path / name).exists():
                    self.file_of(name)
            if NOTE in self.files and (noted := (self.path / NOTE).read_bytes()) != self._note:
                self._note = noted
                self.add(Change("write", self.files[NOTE], NOTE, 0, noted))

    def begin_with(self, image: dict[str, bytes]) -> None:
        """What is there from the start, for good."""
        for name, content in image.items():
            file = self.file_of(name)
            self.add(Change("write", file, name, 0, content))
            self.changes.append(Change("sync", file))
        self._note = image.get(NOTE, b"")
        self.changes += [Change("sync names"), Change("sync parent")]


class _RecordedDirectory(DataDirectory):
    def __init__(self, path: Path, disk: RecordingDisk) -> None:
        super().__init__(path)
        self._disk = disk

    def sync(self, directory: Path) -> None:
        super().sync(directory)
        self._disk.look()
        if directory == self.path:
            self._disk.add(Change("sync names", name="names"))
        elif directory == self.path.parent:
            self._disk.add(Change("sync parent", name="parent"))


class _File(apsw.VFSFile):
    def __init__(self, disk: RecordingDisk, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        self._disk = disk
        self._name = Path(name.filename() if isinstance(name, apsw.URIFilename) else str(name)).name
        # SQLite's own unix VFS does that with the first sync of a journal or WAL that it has made (seen with strace).
        self._syncs_names = self._name not in disk.files and self._name != DATABASE
        super().__init__("cksmvfs", name, flags)
        self._file = disk.file_of(self._name)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        super().xWrite(data, offset)
        # Read again: on its way down the page has got its checksum.
        written = super().xRead(len(data), offset)
        self._disk.look()
        self._disk.add(Change("write", self._file, self._name, offset, written))

    def xTruncate(self, newsize: int) -> None:  # noqa: N802
        super().xTruncate(newsize)
        self._disk.look()
        self._disk.add(Change("truncate", self._file, self._name, newsize))

    def xSync(self, flags: int) -> None:  # noqa: N802
        super().xSync(flags)
        self._disk.look()
        self._disk.add(Change("sync", self._file, self._name))
        if self._syncs_names:
            self._syncs_names = False
            self._disk.add(Change("sync names", name="names"))


# --- The cut ---------------------------------------------------------------------------------------------------------

#: What becomes of that which was not synced. "killed" is no loss of power: the process alone has died.
Manner = Literal["killed", "lost", "kept", "first ones", "some", "sectors", "bytes"]
MANNERS: tuple[Manner, ...] = ("killed", "lost", "kept", "first ones", "some", "sectors", "bytes")
_WEIGHTS = (4, 4, 4, 40, 20, 20, 8)


def manner(choose: Random) -> Manner:
    return choose.choices(MANNERS, _WEIGHTS)[0]


@dataclass(slots=True)
class _Content:
    synced: bytes = b""
    pending: list[tuple[int, Change]] = field(default_factory=list)
    #: What a program reads: all of it.
    current: bytearray = field(default_factory=bytearray)


@dataclass(slots=True)
class Platter:
    """The disk after the first so many changes: what is safe, and what is under way to it."""

    reached: int = 0
    has_parent: bool = False
    _contents: dict[int, _Content] = field(default_factory=dict)
    _names: dict[str, int] = field(default_factory=dict)
    _pending_names: list[tuple[int, Change]] = field(default_factory=list)

    def take(self, change: Change) -> None:
        number = self.reached
        self.reached += 1
        match change.kind:
            case "write" | "truncate":
                content = self._contents[change.file]
                content.pending.append((number, change))
                _do(content.current, change)
            case "sync":
                content = self._contents[change.file]
                content.synced = bytes(content.current)
                content.pending.clear()
            case "create":
                self._contents[change.file] = _Content()
                self._pending_names.append((number, change))
            case "remove":
                self._pending_names.append((number, change))
            case "sync names":
                self._names = self._names_after([change for _, change in self._pending_names])
                self._pending_names.clear()
            case "sync parent":
                self.has_parent = True

    def cut(self, manner: Manner, choose: Random) -> Image:
        keep = _Keep(manner, choose, self.reached)
        if not self.has_parent and not keep.has(self.reached - 1):
            return None
        names = self._names_after(self._names_that_stay(keep))
        image = {name: _surviving(self._contents[file], keep, name) for name, file in names.items()}
        if manner != "killed" and (noted := image.get(NOTE)):
            image[NOTE] = _EARLIER_BOOT + noted[_BOOT_BYTES:]
        return image

    def key(self, image: Image) -> Key:
        """Equal for images that are the same to a program that opens the database. (Python's own hash of 64 bits is
        enough for that: it is the fastest there is, and remembered by the many contents that come again.)"""
        if image is None:
            return ()
        wal = self._current_wal()
        read = {**image, WAL: read_of_wal(image[WAL], wal)} if WAL in image and wal is not None else image
        return tuple((name, len(content), hash(content)) for name, content in sorted(read.items()))

    def _current_wal(self) -> bytearray | None:
        changes = [change for _, change in self._pending_names if change.name == WAL]
        file = self._names_after(changes).get(WAL)
        return None if file is None else self._contents[file].current

    def _names_that_stay(self, keep: _Keep) -> list[Change]:
        """For one name, one change after the other; between names in any order."""
        stay: list[Change] = []
        gone: set[str] = set()
        for number, change in self._pending_names:
            if change.name not in gone and keep.has(number):
                stay.append(change)
            else:
                gone.add(change.name)
        return stay

    def _names_after(self, changes: list[Change]) -> dict[str, int]:
        names = dict(self._names)
        for change in changes:
            if change.kind == "create":
                names[change.name] = change.file
            else:
                names.pop(change.name, None)
        return names


class _Keep:
    """Which of the changes under way have arrived."""

    def __init__(self, manner: Manner, choose: Random, reached: int) -> None:
        self._choose = choose
        self.tears: Literal["sectors", "bytes"] | None = None
        self.share = {"killed": 1.0, "kept": 1.0, "lost": 0.0}.get(manner, choose.choice((0.2, 0.5, 0.8)))
        self.until = reached
        if manner == "first ones":
            self.share, self.until = 1.0, reached - min(int(choose.expovariate(0.3)), reached)
        if manner == "sectors" or manner == "bytes":
            self.tears = manner
        # A file that grew without its content: what is there instead.
        self.filler = b"" if manner in ("killed", "kept") else choose.choice((b"", b"", b"\0", b"\xa5"))

    def has(self, number: int) -> bool:
        return number < self.until and (self.share == 1 or self._choose.random() < self.share)

    def note(self, content: _Content) -> bytes:
        """It is written whole, over and over, and never synced: the last one is there, the one before, or the first."""
        written = [content.synced, *(change.data for number, change in content.pending if number < self.until)]
        if self.share in (0, 1):
            return written[-1 if self.share else 0]
        return written[max(self._choose.choice((-1, -1, -1, -2, 0)), -len(written))]

    def pieces(self, change: Change) -> list[tuple[int, bytes]]:
        """(offset, data) of what is left of a write."""
        if self.tears is None:
            return [(change.offset, change.data)]
        end = change.offset + len(change.data)
        if self.tears == "bytes":
            return [(change.offset, change.data[: self._choose.randrange(len(change.data) + 1)])]
        cuts = [change.offset, *range((change.offset // SECTOR_BYTES + 1) * SECTOR_BYTES, end, SECTOR_BYTES), end]
        return [
            (first, change.data[first - change.offset : last - change.offset])
            for first, last in itertools.pairwise(cuts)
            if self._choose.random() < 0.5
        ]


def _surviving(content: _Content, keep: _Keep, name: str) -> bytes:
    if not content.pending:
        return content.synced
    if name == NOTE:
        return keep.note(content)
    found = bytearray(content.synced)
    for number, change in content.pending:
        if keep.has(number):
            if change.kind == "truncate":
                _do(found, change)
                continue
            for offset, data in keep.pieces(change):
                _put(found, offset, data)
        elif change.kind == "write" and keep.filler:
            end = change.offset + len(change.data)
            found += keep.filler * (end - len(found))
    return bytes(found)


def _do(found: bytearray, change: Change) -> None:
    if change.kind == "truncate":
        del found[change.offset :]
        found += bytes(change.offset - len(found))
    else:
        _put(found, change.offset, change.data)


def _put(found: bytearray, offset: int, data: bytes) -> None:
    if len(found) < offset:
        found += bytes(offset - len(found))
    found[offset : offset + len(data)] = data


# --- What SQLite reads of a WAL --------------------------------------------------------------------------------------

_WAL_HEADER_BYTES, _FRAME_HEADER_BYTES, _PAGE_BYTES = 32, 24, 4096
_FRAME_BYTES = _FRAME_HEADER_BYTES + _PAGE_BYTES
_LITTLE_ENDIAN_MAGIC = b"\x37\x7f\x06\x82"


def read_of_wal(left: bytes, current: bytes | bytearray) -> bytes:
    """The part of a WAL that SQLite reads when it opens the database, as its file format says: the frames from the
    first on that have the header's salt and fit the running checksum, up to the last that ends a transaction.

    `current` is the WAL as it was before the cut, whose frames are good. So only the first one that is different needs
    to have its checksum worked out; should it fit, or the header be another one, the whole is returned."""
    header = left[:_WAL_HEADER_BYTES]
    if header != current[:_WAL_HEADER_BYTES] or header[:4] != _LITTLE_ENDIAN_MAGIC:
        return left
    salt, previous, end = header[16:24], header[24:32], _WAL_HEADER_BYTES
    for at in range(_WAL_HEADER_BYTES, len(left) - _FRAME_BYTES + 1, _FRAME_BYTES):
        frame = left[at : at + _FRAME_BYTES]
        if frame[8:16] != salt:
            break
        if frame != current[at : at + _FRAME_BYTES]:
            if _checksum(previous, frame[:8] + frame[_FRAME_HEADER_BYTES:]) == frame[16:24]:
                return left
            break
        previous = frame[16:24]
        if frame[4:8] != b"\0\0\0\0":
            end = at + _FRAME_BYTES
    return left[:end]


def _checksum(previous: bytes, data: bytes) -> bytes:
    first, second = struct.unpack(">II", previous)
    words = struct.unpack(f"<{len(data) // 4}I", data)
    for one, two in zip(words[::2], words[1::2], strict=True):
        first = first + one + second & 0xFFFFFFFF
        second = second + two + first & 0xFFFFFFFF
    return struct.pack(">II", first, second)
