"""A disk that records each change, and the images that a loss of power at any point could leave.

Assumptions:

- Synced data survives. Each unsynced write survives, is lost, or survives in part, independently and in any order, torn
  at sector boundaries (for SQLite's own files anywhere: SQLite does not rely on whole sectors either). Of two writes to
  one offset the earlier may survive, which is the same as losing the later one.
- A file may have grown without its new content: it holds zeros or junk instead.
- A created or removed name is durable only when its directory was synced, regardless of the content.
- A write does not change adjacent bytes ("powersafe overwrite"). SQLite assumes this by default and packs the frames of
  its WAL accordingly.
- The head file fits in one sector, which is written completely or not at all.
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

DATABASE, WAL, HEAD_FILE = "kedge.db", "kedge.db-wal", "kedge.head"
#: The smallest unit that disks write atomically. Bytes.
SECTOR_BYTES = 512
#: The boot id in the head file, and its replacement: a loss of power is followed by another boot.
_BOOT_BYTES = 36
_EARLIER_BOOT = b"the boot before this one".ljust(_BOOT_BYTES, b"\0")

_numbers = itertools.count()

#: The files of the data directory: name -> content. None: the directory does not exist.
Image = dict[str, bytes] | None
Key = tuple[tuple[str, int, int], ...]


@dataclass(frozen=True, slots=True)
class Change:
    """One change of the disk. `file` is a number, since a name can be reused for another file."""

    kind: Literal["write", "truncate", "sync", "create", "remove", "sync names", "sync parent"]
    file: int = -1
    name: str = ""
    offset: int = 0
    data: bytes = b""


class RecordingDisk(apsw.VFS):
    """A VFS between SQLite and the real disk. Pass `disk.name` as the store's vfs, and `disk.directory()` to the store.

    SQLite does not write the head file, so the disk rescans it at each operation and in `scan`.
    `ignored_syncs`: names whose syncs are not recorded, as if the program had not made them."""

    def __init__(self, path: Path, ignored_syncs: Iterable[str] = ()) -> None:
        self.path = path
        self.name = f"recording-disk-{next(_numbers)}"
        self.changes: list[Change] = []
        self.files: dict[str, int] = {}
        self._ignored_syncs = set(ignored_syncs)
        self._count = itertools.count()
        self._head_file = b""
        self._lock = threading.RLock()
        assert has_page_checksums()
        super().__init__(self.name, "cksmvfs")

    def directory(self) -> DataDirectory:
        return _RecordedDirectory(self.path, self)

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:  # noqa: N802
        with self._lock:
            self.scan()
            return _File(self, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802
        with self._lock:
            self.scan()
            super().xDelete(filename, syncdir)
            name = Path(filename).name
            del self.files[name]
            self.add(Change("remove", name=name))
            if syncdir:
                self.add(Change("sync names"))

    def add(self, change: Change) -> None:
        with self._lock:
            if change.name not in self._ignored_syncs or change.kind not in ("sync", "sync names", "sync parent"):
                self.changes.append(change)

    def file_of(self, name: str) -> int:
        with self._lock:
            if name not in self.files:
                self.files[name] = next(self._count)
                self.add(Change("create", self.files[name], name))
            return self.files[name]

    def scan(self) -> None:
        with self._lock:
            for name in (DATABASE, HEAD_FILE):
                if (self.path / name).exists():
                    self.file_of(name)
            if HEAD_FILE in self.files and (content := (self.path / HEAD_FILE).read_bytes()) != self._head_file:
                self._head_file = content
                self.add(Change("write", self.files[HEAD_FILE], HEAD_FILE, 0, content))

    def start_with(self, image: dict[str, bytes]) -> None:
        """Record the initial image, which is durable."""
        for name, content in image.items():
            file = self.file_of(name)
            self.add(Change("write", file, name, 0, content))
            self.changes.append(Change("sync", file))
        self._head_file = image.get(HEAD_FILE, b"")
        self.changes += [Change("sync names"), Change("sync parent")]


class _RecordedDirectory(DataDirectory):
    def __init__(self, path: Path, disk: RecordingDisk) -> None:
        super().__init__(path)
        self._disk = disk

    def sync(self, directory: Path) -> None:
        super().sync(directory)
        self._disk.scan()
        if directory == self.path:
            self._disk.add(Change("sync names", name="names"))
        elif directory == self.path.parent:
            self._disk.add(Change("sync parent", name="parent"))


class _File(apsw.VFSFile):
    def __init__(self, disk: RecordingDisk, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        self._disk = disk
        self._name = Path(name.filename() if isinstance(name, apsw.URIFilename) else str(name)).name
        # SQLite's unix VFS syncs the directory with the first sync of a journal or WAL it created (strace shows it).
        self._syncs_names = self._name not in disk.files and self._name != DATABASE
        super().__init__("cksmvfs", name, flags)
        self._file = disk.file_of(self._name)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        super().xWrite(data, offset)
        # Read it back: the checksum VFS below has added the checksum of the page.
        written = super().xRead(len(data), offset)
        self._disk.scan()
        self._disk.add(Change("write", self._file, self._name, offset, written))

    def xTruncate(self, newsize: int) -> None:  # noqa: N802
        super().xTruncate(newsize)
        self._disk.scan()
        self._disk.add(Change("truncate", self._file, self._name, newsize))

    def xSync(self, flags: int) -> None:  # noqa: N802
        super().xSync(flags)
        self._disk.scan()
        self._disk.add(Change("sync", self._file, self._name))
        if self._syncs_names:
            self._syncs_names = False
            self._disk.add(Change("sync names", name="names"))


# --- The cut ---------------------------------------------------------------------------------------------------------

#: The fate of unsynced changes. With "killed" only the process dies; the power stays on.
LossMode = Literal["killed", "lost", "kept", "first ones", "some", "sectors", "bytes"]
LOSS_MODES: tuple[LossMode, ...] = ("killed", "lost", "kept", "first ones", "some", "sectors", "bytes")
_WEIGHTS = (4, 4, 4, 40, 20, 20, 8)


def loss_mode(rng: Random) -> LossMode:
    return rng.choices(LOSS_MODES, _WEIGHTS)[0]


@dataclass(slots=True)
class _Content:
    synced: bytes = b""
    pending: list[tuple[int, Change]] = field(default_factory=list)
    #: The content that a program reads: all changes applied.
    current: bytearray = field(default_factory=bytearray)


@dataclass(slots=True)
class DiskState:
    """The disk after the first `reached` changes: durable content and pending changes."""

    reached: int = 0
    has_parent: bool = False
    _contents: dict[int, _Content] = field(default_factory=dict)
    _names: dict[str, int] = field(default_factory=dict)
    _pending_names: list[tuple[int, Change]] = field(default_factory=list)

    def apply(self, change: Change) -> None:
        number = self.reached
        self.reached += 1
        match change.kind:
            case "write" | "truncate":
                content = self._contents[change.file]
                content.pending.append((number, change))
                _apply(content.current, change)
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

    def after_loss(self, mode: LossMode, rng: Random) -> Image:
        survivors = _Survivors(mode, rng, self.reached)
        if not self.has_parent and not survivors.includes(self.reached - 1):
            return None
        names = self._names_after(self._surviving_names(survivors))
        image = {name: _surviving(self._contents[file], survivors, name) for name, file in names.items()}
        if mode != "killed" and (content := image.get(HEAD_FILE)):
            image[HEAD_FILE] = _EARLIER_BOOT + content[_BOOT_BYTES:]
        return image

    def key(self, image: Image) -> Key:
        """A key that is equal for images which a program that opens the database cannot distinguish.

        Python's 64-bit hash is enough for this, and bytes objects cache it."""
        if image is None:
            return ()
        wal = self._current_wal()
        read = {**image, WAL: readable_wal(image[WAL], wal)} if WAL in image and wal is not None else image
        return tuple((name, len(content), hash(content)) for name, content in sorted(read.items()))

    def _current_wal(self) -> bytearray | None:
        changes = [change for _, change in self._pending_names if change.name == WAL]
        file = self._names_after(changes).get(WAL)
        return None if file is None else self._contents[file].current

    def _surviving_names(self, survivors: _Survivors) -> list[Change]:
        """The surviving changes of names: in order for one name, in any order between names."""
        surviving: list[Change] = []
        lost: set[str] = set()
        for number, change in self._pending_names:
            if change.name not in lost and survivors.includes(number):
                surviving.append(change)
            else:
                lost.add(change.name)
        return surviving

    def _names_after(self, changes: list[Change]) -> dict[str, int]:
        names = dict(self._names)
        for change in changes:
            if change.kind == "create":
                names[change.name] = change.file
            else:
                names.pop(change.name, None)
        return names


class _Survivors:
    """The choice of the pending changes that survive."""

    def __init__(self, mode: LossMode, rng: Random, reached: int) -> None:
        self._rng = rng
        self.tears: Literal["sectors", "bytes"] | None = None
        self.share = {"killed": 1.0, "kept": 1.0, "lost": 0.0}.get(mode, rng.choice((0.2, 0.5, 0.8)))
        self.until = reached
        if mode == "first ones":
            self.share, self.until = 1.0, reached - min(int(rng.expovariate(0.3)), reached)
        if mode == "sectors" or mode == "bytes":
            self.tears = mode
        # The content of a file that grew without its data.
        self.filler = b"" if mode in ("killed", "kept") else rng.choice((b"", b"", b"\0", b"\xa5"))

    def includes(self, number: int) -> bool:
        return number < self.until and (self.share == 1 or self._rng.random() < self.share)

    def head_file(self, content: _Content) -> bytes:
        """The head file: each write replaces it and none is synced, so the last, the previous or the first survives."""
        written = [content.synced, *(change.data for number, change in content.pending if number < self.until)]
        if self.share in (0, 1):
            return written[-1 if self.share else 0]
        return written[max(self._rng.choice((-1, -1, -1, -2, 0)), -len(written))]

    def pieces(self, change: Change) -> list[tuple[int, bytes]]:
        """(offset, data) of the surviving parts of a write."""
        if self.tears is None:
            return [(change.offset, change.data)]
        end = change.offset + len(change.data)
        if self.tears == "bytes":
            return [(change.offset, change.data[: self._rng.randrange(len(change.data) + 1)])]
        cuts = [change.offset, *range((change.offset // SECTOR_BYTES + 1) * SECTOR_BYTES, end, SECTOR_BYTES), end]
        return [
            (first, change.data[first - change.offset : last - change.offset])
            for first, last in itertools.pairwise(cuts)
            if self._rng.random() < 0.5
        ]


def _surviving(content: _Content, survivors: _Survivors, name: str) -> bytes:
    if not content.pending:
        return content.synced
    if name == HEAD_FILE:
        return survivors.head_file(content)
    result = bytearray(content.synced)
    for number, change in content.pending:
        if survivors.includes(number):
            if change.kind == "truncate":
                _apply(result, change)
                continue
            for offset, data in survivors.pieces(change):
                _overwrite(result, offset, data)
        elif change.kind == "write" and survivors.filler:
            end = change.offset + len(change.data)
            result += survivors.filler * (end - len(result))
    return bytes(result)


def _apply(content: bytearray, change: Change) -> None:
    if change.kind == "truncate":
        del content[change.offset :]
        content += bytes(change.offset - len(content))
    else:
        _overwrite(content, change.offset, change.data)


def _overwrite(content: bytearray, offset: int, data: bytes) -> None:
    if len(content) < offset:
        content += bytes(offset - len(content))
    content[offset : offset + len(data)] = data


# --- The part of a WAL that SQLite reads -----------------------------------------------------------------------------

_WAL_HEADER_BYTES, _FRAME_HEADER_BYTES, _PAGE_BYTES = 32, 24, 4096
_FRAME_BYTES = _FRAME_HEADER_BYTES + _PAGE_BYTES
_LITTLE_ENDIAN_MAGIC = b"\x37\x7f\x06\x82"


def readable_wal(wal: bytes, current: bytes | bytearray) -> bytes:
    """The part of a WAL that SQLite reads when it opens the database.

    By the file format these are the leading frames that have the header's salt and match the running checksum, up to
    the last one that commits a transaction. `current` is the WAL before the cut, whose frames are valid: only the first
    frame that differs needs its checksum computed. If that one matches, or the header differs, return the full WAL."""
    header = wal[:_WAL_HEADER_BYTES]
    if header != current[:_WAL_HEADER_BYTES] or header[:4] != _LITTLE_ENDIAN_MAGIC:
        return wal
    salt, previous, end = header[16:24], header[24:32], _WAL_HEADER_BYTES
    for start in range(_WAL_HEADER_BYTES, len(wal) - _FRAME_BYTES + 1, _FRAME_BYTES):
        frame = wal[start : start + _FRAME_BYTES]
        if frame[8:16] != salt:
            break
        if frame != current[start : start + _FRAME_BYTES]:
            if _checksum(previous, frame[:8] + frame[_FRAME_HEADER_BYTES:]) == frame[16:24]:
                return wal
            break
        previous = frame[16:24]
        if frame[4:8] != b"\0\0\0\0":
            end = start + _FRAME_BYTES
    return wal[:end]


def _checksum(previous: bytes, data: bytes) -> bytes:
    first, second = struct.unpack(">II", previous)
    words = struct.unpack(f"<{len(data) // 4}I", data)
    for one, two in zip(words[::2], words[1::2], strict=True):
        first = first + one + second & 0xFFFFFFFF
        second = second + two + first & 0xFFFFFFFF
    return struct.pack(">II", first, second)
