"""State files of the terminal interface: one per workspace, readable by this user only."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path


def state_file(directory: Path | None, root: str, kind: str, suffix: str) -> Path | None:
    """Return the path of a state file; None if there is no state directory."""
    digest = hashlib.sha256(os.fsencode(root)).hexdigest()[:16]
    return directory / f"{kind}-{digest}{suffix}" if directory else None


def replace_state_file(path: Path, content: bytes) -> None:
    """Replace the file atomically. It is never readable by others."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    new = path.with_suffix(f".{os.getpid()}")
    with open(os.open(new, os.O_WRONLY | os.O_TRUNC | os.O_CREAT | os.O_NOFOLLOW, 0o600), "wb") as file:
        file.write(content)
    os.replace(new, path)
