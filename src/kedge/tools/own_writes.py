"""Files that kedge itself has written: with an approval, or by a rule, mode or undo of the user.

A command in the sandbox must not leave new guarded files (`engine.withheld_files`). One that a file tool has written
while the command ran is not the command's.
"""

from __future__ import annotations

import threading
from pathlib import Path

#: Paths that are remembered, the latest: far more than the file tools write while one command runs. Items.
PATHS_MAX = 10_000

#: Written files with the directories above them, by path: the number of the write.
_writes: dict[str, int] = {}
_lock = threading.Lock()
_last = 0


def record(path: Path) -> None:
    """Record that a file is about to be written. Called in any thread."""
    global _last
    with _lock:
        _last += 1
        for written in (*reversed(path.parents), path):
            _writes.pop(str(written), None)
            _writes[str(written)] = _last
        while len(_writes) > PATHS_MAX:
            del _writes[next(iter(_writes))]


def last() -> int:
    """Return the number of the last write."""
    return _last


def since(number: int) -> frozenset[str]:
    """Return the files that were written after this write, and all directories above them."""
    with _lock:
        return frozenset(path for path, write in _writes.items() if write > number)
