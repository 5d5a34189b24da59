"""`kedge` with a clock that stands still until a test moves it: `clocked_server.py FILE ARGUMENTS`.

FILE has the time, in milliseconds since the epoch."""

from __future__ import annotations

import sys
from pathlib import Path

from kedge.cli.main import main
from kedge.server.system import SystemClock


def follow(path: Path) -> None:
    """Make the clock of this process return the time in a file."""

    def now_ms(self: SystemClock) -> int:
        return int(path.read_text())

    SystemClock.now_ms = now_ms  # type: ignore[method-assign]


if __name__ == "__main__":
    follow(Path(sys.argv.pop(1)))
    main()
