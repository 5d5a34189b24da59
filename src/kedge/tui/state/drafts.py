"""Unsent prompts by session, kept across restarts."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from kedge.tui.state.state_files import replace_state_file, state_file

#: Sessions with a draft. Items, the oldest are dropped first.
DRAFTS_MAX = 50
#: Longer drafts are not saved, so that the file stays small. Characters.
SAVED_DRAFT_CHARS_MAX = 100_000
#: Size of the largest file: all drafts of maximum length, each character escaped. Bytes.
DRAFTS_FILE_BYTES_MAX = DRAFTS_MAX * 12 * SAVED_DRAFT_CHARS_MAX


class Drafts:
    def __init__(self, directory: Path | None, root: str) -> None:
        """`directory`: None keeps the drafts in memory only."""
        self._file = state_file(directory, root, "drafts", ".json")
        self._texts = self._read()
        #: Sessions changed here. For others the file may have newer drafts of another process.
        self._changed: set[str] = set()

    def of(self, session_id: str) -> str:
        return self._texts.get(session_id, "")

    def put(self, session_id: str, text: str) -> None:
        before = self._texts.pop(session_id, "")
        if text.strip():
            self._texts[session_id] = text
        if text != before:
            self._changed.add(session_id)

    def take(self, session_id: str) -> str:
        """Remove a draft and return it."""
        text = self.of(session_id)
        self.put(session_id, "")
        return text

    def save(self) -> None:
        """Write the changed drafts to the file."""
        if self._file is None or not self._changed:
            return
        drafts = {session_id: text for session_id, text in self._read().items() if session_id not in self._changed}
        drafts |= {session_id: text for session_id, text in self._texts.items() if session_id in self._changed}
        if not drafts and not self._file.exists():
            return
        short = {session_id: text for session_id, text in drafts.items() if len(text) <= SAVED_DRAFT_CHARS_MAX}
        with suppress(OSError):  # a full disk must not prevent the exit
            replace_state_file(self._file, json.dumps(dict(list(short.items())[-DRAFTS_MAX:])).encode())
        self._changed.clear()

    def _read(self) -> dict[str, str]:
        if self._file is None:
            return {}
        try:
            with self._file.open("rb") as file:
                drafts = json.loads(file.read(DRAFTS_FILE_BYTES_MAX))
        except (OSError, ValueError):
            return {}
        drafts = drafts if isinstance(drafts, dict) else {}
        return {session_id: text for session_id, text in drafts.items() if isinstance(text, str)}
