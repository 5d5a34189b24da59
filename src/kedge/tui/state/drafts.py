"""What was being written, by session: there again when the session is, also on the next screen."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from kedge.tui.state.state_files import replace_state_file, state_file

#: Sessions with something begun in them. Items, the oldest go first.
DRAFTS_MAX = 50
#: A longer one lasts as long as this screen, so that the file stays small. Characters.
KEPT_CHARS_MAX = 100_000
#: No file of ours is larger: as many of the longest, each character escaped. Bytes.
FILE_BYTES_MAX = DRAFTS_MAX * 12 * KEPT_CHARS_MAX


class Drafts:
    def __init__(self, directory: Path | None, root: str) -> None:
        """None: kept in memory alone."""
        self._file = state_file(directory, root, "drafts", ".json")
        self._texts = self._read()
        #: What this screen has changed: of the rest another one may know more.
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
        """What was begun there, and is not any more."""
        text = self.of(session_id)
        self.put(session_id, "")
        return text

    def keep(self) -> None:
        """Beyond the life of this screen."""
        if self._file is None or not self._changed:
            return
        kept = {session_id: text for session_id, text in self._read().items() if session_id not in self._changed}
        kept |= {session_id: text for session_id, text in self._texts.items() if session_id in self._changed}
        if not kept and not self._file.exists():
            return
        short = {session_id: text for session_id, text in kept.items() if len(text) <= KEPT_CHARS_MAX}
        with suppress(OSError):  # a full disk is no reason not to leave
            replace_state_file(self._file, json.dumps(dict(list(short.items())[-DRAFTS_MAX:])).encode())
        self._changed.clear()

    def _read(self) -> dict[str, str]:
        if self._file is None:
            return {}
        try:
            with self._file.open("rb") as file:
                found = json.loads(file.read(FILE_BYTES_MAX))
        except (OSError, ValueError):
            return {}
        found = found if isinstance(found, dict) else {}
        return {session_id: text for session_id, text in found.items() if isinstance(text, str)}
