"""Tool calls and their results in a few words, as lists and documents show them. The text is as raw as it came: whoever
prints it on a terminal makes it harmless first."""

from __future__ import annotations

from typing import Any

from kedge.core.untrusted_text import json_object

#: What of a tool's input says most, in this order. A tool that is not listed shows its input as it is.
_TELLING: dict[str, tuple[str, ...]] = {
    "bash": ("command",),
    "view": ("path",),
    "ls": ("path",),
    "edit": ("path",),
    "multiedit": ("path",),
    "write": ("path",),
    "grep": ("pattern", "path", "include"),
    "glob": ("pattern", "path"),
    "fetch": ("url",),
    "agent": ("description", "prompt"),
    "jobs": ("action", "id"),
}


def call_brief(name: str, given: str) -> str:
    """What a call is about: `$ pytest -q`, `src/app.py`. `given` is its input, which may be malformed JSON."""
    fields = json_object(given)
    match name:
        case "bash" if fields.get("command"):
            return f"$ {fields['command']}"
        case "todos" if isinstance(fields.get("todos"), list):
            return _todos(fields["todos"])
        case "question" if isinstance(fields.get("questions"), list):
            asked = [one.get("question", "") for one in fields["questions"] if isinstance(one, dict)]
            return " / ".join(map(str, asked))
        case "agent":
            return str(fields.get("description") or fields.get("prompt") or given)
    if name not in _TELLING:
        return given
    words = [str(fields[field]) for field in _TELLING[name] if fields.get(field)]
    return " ".join(words) or ("." if name == "ls" else given)


def result_brief(metadata: str, content: str, *, is_error: bool) -> str:
    """What came of it: `exit 1, 2.3 s`, `+3 -1`; empty when the content says it best."""
    fields = json_object(metadata)
    if fields.get("denied"):
        return "denied"
    if is_error:
        return f"failed: {content}"
    if "background_id" in fields:
        return f"goes on in the background ({fields['background_id']})"
    if "exit_code" in fields:
        time = f", {fields['duration_ms'] / 1000:.1f} s" if isinstance(fields.get("duration_ms"), int) else ""
        code = "timed out" if fields.get("timed_out") else f"exit {_or_running(fields['exit_code'])}"
        return f"{code}{time}"
    if "additions" in fields:
        return f"+{fields['additions']} -{fields.get('deletions', 0)}"
    if "matches" in fields:
        return f"{_count(fields['matches'], 'match', 'matches')} in {_count(fields.get('files', 0), 'file', 'files')}"
    if "last_line" in fields:
        return f"lines {fields.get('first_line')}-{fields['last_line']} of {fields.get('lines')}"
    for field, one, many in (("count", "file", "files"), ("entries", "entry", "entries"), ("lines", "line", "lines")):
        if field in fields:
            return _count(fields[field], one, many)
    return ""


def diff_of(metadata: str) -> str:
    """The diff of a call that changed a file; empty for others."""
    return str(json_object(metadata).get("diff") or "")


def _todos(todos: list[Any]) -> str:
    listed = [todo for todo in todos if isinstance(todo, dict)]
    done = sum(todo.get("status") == "completed" for todo in listed)
    doing = next((todo for todo in listed if todo.get("status") == "in_progress"), None)
    now = f": {doing.get('active_form') or doing.get('content')}" if doing else ""
    return f"{done} of {len(listed)} done{now}"


def _or_running(code: object) -> str:
    return "unknown" if code is None else str(code)


def _count(number: object, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"
