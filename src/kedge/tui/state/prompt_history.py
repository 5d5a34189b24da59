"""Earlier prompts of a workspace, kept across restarts.

The file is readable by this user only. It contains nothing that is not also in the sessions of the same data directory.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

from kedge.tui.state.state_files import replace_state_file, state_file

#: Prompts in the history. Items, the oldest are dropped first.
HISTORY_MAX = 200
#: Longer prompts are not saved, so that the file stays small. Characters.
SAVED_PROMPT_CHARS_MAX = 10_000
#: Size of the largest file: twice the history of prompts of maximum length, each character escaped. Bytes.
HISTORY_FILE_BYTES_MAX = 2 * HISTORY_MAX * 12 * SAVED_PROMPT_CHARS_MAX


class PromptHistory:
    def __init__(self, directory: Path | None, root: str) -> None:
        """`directory`: None keeps the history in memory only."""
        self._file = state_file(directory, root, "history", ".jsonl")
        self.earlier = self._read()

    def add(self, text: str) -> None:
        """Add a prompt, unless it repeats the last one."""
        if not text.strip() or self.earlier[-1:] == [text]:
            return
        self.earlier = [*self.earlier, text][-HISTORY_MAX:]
        if self._file is not None and len(text) <= SAVED_PROMPT_CHARS_MAX:
            with suppress(OSError):  # a full disk must not prevent sending
                self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                # A single append: two processes do not mix their lines.
                flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
                with open(os.open(self._file, flags, 0o600), "ab", buffering=0) as file:
                    file.write(json.dumps(text).encode() + b"\n")

    def _read(self) -> list[str]:
        if self._file is None:
            return []
        try:
            with self._file.open("rb") as file:
                lines = file.read(HISTORY_FILE_BYTES_MAX).splitlines()
            if len(lines) > 2 * HISTORY_MAX:
                replace_state_file(self._file, b"\n".join(lines[-HISTORY_MAX:]) + b"\n")
        except OSError:
            return []
        prompts = []
        for line in lines[-HISTORY_MAX:]:
            with suppress(ValueError):  # an incomplete line, after a full disk
                text = json.loads(line)
                prompts += [text] if isinstance(text, str) else []
        return prompts
