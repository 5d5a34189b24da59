"""The repository files that the user trusts, by path and digest of the content.

A changed file must be trusted again. The list is a file in the user's data directory that only the user can write. A
damaged or writable list trusts nothing.
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
#: Trusted files, the oldest dropped first: more than a user reviews. Items.
TRUSTED_MAX = 1000
#: Size of the list: that many entries with long paths. Bytes.
TRUST_BYTES_MAX = 8 * 1024 * 1024


class _TrustedFile(Struct, frozen=True):
    path: str
    sha256: str


class _ListFile(Struct):
    trusted: list[_TrustedFile] = []


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class TrustList(Struct, frozen=True):
    """The list. It is read on each access, since `kedge config trust` writes it while a server runs."""

    #: None: nothing is trusted.
    file: Path | None = None

    def contains(self, path: Path, content: bytes) -> bool:
        """Return whether exactly this content is trusted at this path. Raises BadConfig for an unusable list."""
        return _TrustedFile(str(path), digest(content)) in self._read()

    def paths(self) -> list[Path]:
        """Return the paths with a trusted content."""
        return [Path(entry.path) for entry in self._read()]

    def add(self, path: Path, content: bytes) -> None:
        entries = [entry for entry in self._read() if entry.path != str(path)]
        self._write([*entries, _TrustedFile(str(path), digest(content))][-TRUSTED_MAX:])

    def revoke(self, path: Path) -> bool:
        """Remove the path from the list. Returns False if it was not there."""
        entries = self._read()
        remaining = [entry for entry in entries if entry.path != str(path)]
        if len(remaining) < len(entries):
            self._write(remaining)
        return len(remaining) < len(entries)

    def _read(self) -> list[_TrustedFile]:
        if self.file is None:
            return []
        try:
            content = read_regular(self.file, TRUST_BYTES_MAX + 1)
            if content is None:
                return []
            status = self.file.stat()
            if status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o022:
                raise BadConfig(f"{self.file} is ignored: other users can write to it. Remove it, or run chmod 600.")
            return msgspec.json.decode(content, type=_ListFile).trusted
        except OSError as error:
            raise BadConfig(f"{self.file} cannot be read: {error.strerror}.") from None
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise BadConfig(
                f"{self.file} is damaged, so nothing is trusted. Remove it, then trust the files again."
            ) from None

    def _write(self, entries: list[_TrustedFile]) -> None:
        if self.file is None:
            raise BadConfig("This server has no list of trusted files.")
        new = self.file.with_name(f"{self.file.name}.{os.getpid()}")
        text = msgspec.json.format(msgspec.json.encode(_ListFile(entries)), indent=2)
        try:
            self.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb") as file:
                file.write(text + b"\n")
                file.flush()
                os.fsync(file.fileno())
            os.replace(new, self.file)
        except OSError as error:
            raise BadConfig(f"{self.file} cannot be written: {error.strerror}.") from None
