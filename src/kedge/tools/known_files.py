"""The files whose content an agent has read or written. It may change no other existing file."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from pathlib import Path
from weakref import WeakValueDictionary

from msgspec import Struct

from kedge.tools.tool_failed import ToolFailed

#: Limit of the files of one session: more than an agent reads in a day. A forgotten one must be viewed again. Items.
KNOWN_FILES_MAX = 10_000


def digest(data: bytes) -> str:
    """Return the digest of a file's content, as in FileVersion."""
    return hashlib.sha256(data).hexdigest()


def bind(*parts: str) -> str:
    """Return one digest of several texts with their lengths: ("ab", "c") differs from ("a", "bc")."""
    seal = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        seal.update(len(data).to_bytes(8, "big") + data)
    return seal.hexdigest()


class KnownFile(Struct, frozen=True):
    """The last known content of a file. Only its digest: times and sizes may be equal by accident."""

    digest: str
    #: The agent's own tools wrote this content.
    is_ours: bool


class KnownFiles:
    """The known files of one session. Kept in memory: after a restart, files must be read again."""

    def __init__(self) -> None:
        self._sights: OrderedDict[Path, KnownFile] = OrderedDict()
        self._locks: WeakValueDictionary[Path, asyncio.Lock] = WeakValueDictionary()

    def note(self, path: Path, content_digest: str, *, is_ours: bool = False) -> None:
        """Record that the agent knows this content of a file, given by its real path."""
        was_ours = self.wrote(path, content_digest)
        self._sights[path] = KnownFile(content_digest, is_ours or was_ours)
        self._sights.move_to_end(path)
        if len(self._sights) > KNOWN_FILES_MAX:
            self._sights.popitem(last=False)

    def check(self, path: Path, content_digest: str, shown: str) -> None:
        """ToolFailed unless the agent has read the file and it is still as it was then."""
        sight = self._sights.get(path)
        if sight is None:
            raise ToolFailed(f"{shown} exists and was not read yet; view it first")
        if sight.digest != content_digest:
            raise ToolFailed(f"{shown} changed since you read it; view it again")

    def knows(self, path: Path, content_digest: str) -> bool:
        """Return whether the agent has read this content of a file."""
        sight = self._sights.get(path)
        return sight is not None and sight.digest == content_digest

    def wrote(self, path: Path, content_digest: str) -> bool:
        """Return whether the agent's own tools wrote this content."""
        sight = self._sights.get(path)
        return sight is not None and sight.is_ours and sight.digest == content_digest

    def lock(self, path: Path) -> asyncio.Lock:
        """Return the lock of a file, held during a change: calls of one Step on the same file run one by one."""
        lock = self._locks.get(path)
        if lock is None:
            lock = self._locks[path] = asyncio.Lock()
        return lock
