"""Which repository files the user has trusted: a path and the digest of its content, both.

A file that was changed, be it by a pull, has to be trusted anew. The list lies in the user's data directory, in a file
that only they may write; a list that cannot be believed trusts nothing.
"""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

import msgspec
from msgspec import Struct

from kedge.config.repository import read_regular
from kedge.errors import BadConfig

FILE_NAME = "trusted.json"
#: Files trusted at a time, the oldest forgotten first: a person does not read more than this. Items.
TRUSTED_MAX = 1000
#: Of the list itself: that many entries with long paths. Bytes.
TRUST_BYTES_MAX = 8 * 1024 * 1024


class _Entry(Struct, frozen=True):
    path: str
    sha256: str


class _File(Struct):
    trusted: list[_Entry] = []


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class Trust(Struct, frozen=True):
    """The list in this file; read each time, since the user's command writes it while a server runs."""

    #: None: nothing is trusted.
    file: Path | None = None

    def holds(self, path: Path, content: bytes) -> bool:
        """Whether exactly this content was trusted at this path. BadConfig when the list cannot be believed."""
        return _Entry(str(path), digest(content)) in self._read()

    def has(self, path: Path) -> bool:
        """Whether some content was trusted at this path."""
        return any(entry.path == str(path) for entry in self._read())

    def add(self, path: Path, content: bytes) -> None:
        entries = [entry for entry in self._read() if entry.path != str(path)]
        self._write([*entries, _Entry(str(path), digest(content))][-TRUSTED_MAX:])

    def revoke(self, path: Path) -> bool:
        """Whether there was anything to revoke."""
        entries = self._read()
        kept = [entry for entry in entries if entry.path != str(path)]
        if len(kept) < len(entries):
            self._write(kept)
        return len(kept) < len(entries)

    def _read(self) -> list[_Entry]:
        if self.file is None:
            return []
        try:
            content = read_regular(self.file, TRUST_BYTES_MAX + 1)
            if content is None:
                return []
            about = self.file.stat()
            if about.st_uid != os.getuid() or stat.S_IMODE(about.st_mode) & 0o022:
                raise BadConfig(f"{self.file} can be written by others and is not believed; remove it or chmod 600 it.")
            return msgspec.json.decode(content, type=_File).trusted
        except OSError as error:
            raise BadConfig(f"{self.file} cannot be read: {error.strerror}.") from None
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise BadConfig(f"{self.file} is damaged and trusts nothing; remove it and trust again.") from None

    def _write(self, entries: list[_Entry]) -> None:
        if self.file is None:
            raise BadConfig("There is no list to keep the trust in.")
        new = self.file.with_name(f"{self.file.name}.{os.getpid()}")
        text = msgspec.json.format(msgspec.json.encode(_File(entries)), indent=2)
        try:
            self.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb") as file:
                file.write(text + b"\n")
                file.flush()
                os.fsync(file.fileno())
            os.replace(new, self.file)
        except OSError as error:
            raise BadConfig(f"{self.file} cannot be written: {error.strerror}.") from None
