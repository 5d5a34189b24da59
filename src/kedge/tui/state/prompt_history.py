"""What was sent earlier in this workspace: called back with Up, kept across restarts.

Kept as plain lines beside the store, for this user only: the same words are in the sessions, which lie there too.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

from kedge.tui.state.state_files import replace_state_file, state_file

#: Prompts that can be called back. Items, the oldest go first.
HISTORY_MAX = 200
#: A longer one is called back only while this screen is there, so that the file stays small. Characters.
KEPT_CHARS_MAX = 10_000
#: No file of ours is larger: 200 of the longest, each character escaped, twice over. Bytes.
FILE_BYTES_MAX = 2 * HISTORY_MAX * 12 * KEPT_CHARS_MAX


class PromptHistory:
    def __init__(self, directory: Path | None, root: str) -> None:
        """None: kept in memory alone."""
        self._file = state_file(directory, root, "history", ".jsonl")
        self.earlier = self._read()

    def add(self, text: str) -> None:
        """Twice the same in a row is once."""
        if not text.strip() or self.earlier[-1:] == [text]:
            return
        self.earlier = [*self.earlier, text][-HISTORY_MAX:]
        if self._file is not None and len(text) <= KEPT_CHARS_MAX:
            with suppress(OSError):  # a full disk is no reason not to send a prompt
                self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                # One write at the end of the file: two screens of one workspace do not mix their lines.
                flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
                with open(os.open(self._file, flags, 0o600), "ab", buffering=0) as file:
                    file.write(json.dumps(text).encode() + b"\n")

    def _read(self) -> list[str]:
        if self._file is None:
            return []
        try:
            with self._file.open("rb") as file:
                lines = file.read(FILE_BYTES_MAX).splitlines()
            if len(lines) > 2 * HISTORY_MAX:
                replace_state_file(self._file, b"\n".join(lines[-HISTORY_MAX:]) + b"\n")
        except OSError:
            return []
        found = []
        for line in lines[-HISTORY_MAX:]:
            with suppress(ValueError):  # the disk was full in the midst of it
                text = json.loads(line)
                found += [text] if isinstance(text, str) else []
        return found
