"""Which files an agent has read, and how they looked then: it may change only what it knows."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from pathlib import Path
from weakref import WeakValueDictionary

from msgspec import Struct

from kedge.tools.tool_failed import ToolFailed

#: Files one session remembers. More than an agent reads in a day; one that is forgotten has to be viewed again.
KNOWN_FILES_MAX = 10_000


def digest(data: bytes) -> str:
    """Of a file's content, as FileVersion has it."""
    return hashlib.sha256(data).hexdigest()


def bind(*parts: str) -> str:
    """One digest over several texts, each with its length: ("ab", "c") is not ("a", "bc")."""
    seal = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        seal.update(len(data).to_bytes(8, "big") + data)
    return seal.hexdigest()


class KnownFile(Struct, frozen=True):
    """How a file looked when the agent last saw it. The digest alone: times and sizes can be the same by accident."""

    digest: str
    #: The agent's own tools wrote this content.
    is_ours: bool


class KnownFiles:
    """Of one session, in memory: a new process reads files anew."""

    def __init__(self) -> None:
        self._sights: OrderedDict[Path, KnownFile] = OrderedDict()
        self._locks: WeakValueDictionary[Path, asyncio.Lock] = WeakValueDictionary()

    def note(self, path: Path, content_digest: str, *, is_ours: bool = False) -> None:
        """The agent knows this content of the file (its real path), having read or written it."""
        was_ours = self.wrote(path, content_digest)
        self._sights[path] = KnownFile(content_digest, is_ours or was_ours)
        self._sights.move_to_end(path)
        if len(self._sights) > KNOWN_FILES_MAX:
            self._sights.popitem(last=False)

    def check(self, path: Path, content_digest: str, shown: str) -> None:
        """ToolFailed unless the agent has read the file and it is still as it was then."""
        sight = self._sights.get(path)
        if sight is None:
            raise ToolFailed(f"{shown} exists and was not read yet; read it first with view")
        if sight.digest != content_digest:
            raise ToolFailed(f"{shown} changed since you read it; view it again")

    def wrote(self, path: Path, content_digest: str) -> bool:
        """Whether this content is what the agent's own tools wrote there last."""
        sight = self._sights.get(path)
        return sight is not None and sight.is_ours and sight.digest == content_digest

    def lock(self, path: Path) -> asyncio.Lock:
        """Held while a file is changed: calls of one Step on the same file go one after the other."""
        lock = self._locks.get(path)
        if lock is None:
            lock = self._locks[path] = asyncio.Lock()
        return lock
