"""The notes of language servers and hooks in the metadata of a result. Ported to `web/src/view/result_notes.ts`.

Their text may hold any characters: escape it before printing.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from kedge.core.untrusted_text import json_object

#: Lines of each kind on a screen; the model receives all of them.
NOTE_LINES_MAX = 5


class ResultNote(Struct, frozen=True):
    kind: Literal["error", "warning", "hook"]
    #: One line.
    text: str


def result_notes(metadata: str) -> list[ResultNote]:
    """Return the new diagnostics of an edit, and what hooks report to the user."""
    if '"diagnostics"' not in metadata and '"hooks"' not in metadata:
        return []
    parsed = json_object(metadata)
    diagnostics = [_diagnostic(one) for one in _listed(parsed, "diagnostics") if isinstance(one, dict)]
    hooks = [ResultNote("hook", _line(one)) for one in _listed(parsed, "hooks") if isinstance(one, str)]
    return [*_limited(diagnostics, "diagnostics"), *_limited(hooks, "messages of hooks")]


def _listed(metadata: dict[str, Any], key: str) -> list[Any]:
    value = metadata.get(key)
    return value if isinstance(value, list) else []


def _diagnostic(one: dict[str, Any]) -> ResultNote:
    severity = one.get("severity")
    source = f" [{one['source']}]" if one.get("source") else ""
    text = f"{one.get('path')}:{one.get('line')}: {severity}: {one.get('message')}{source}"
    return ResultNote("error" if severity == "error" else "warning", _line(text))


def _line(text: str) -> str:
    return " ".join(text.split())


def _limited(notes: list[ResultNote], what: str) -> list[ResultNote]:
    if len(notes) <= NOTE_LINES_MAX:
        return notes
    first = notes[: NOTE_LINES_MAX - 1]
    return [*first, ResultNote(notes[0].kind, f"{len(notes) - len(first)} more {what}")]
