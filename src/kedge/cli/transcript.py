"""A transcript as plain lines, for `sessions show` and `attach`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from kedge.client.text import one_line
from kedge.wire.models import MessageBody

#: Of a tool's input and result one line is enough here; `sessions export` has all of it. Characters.
TOOL_CHARS_MAX = 160


def transcript_lines(messages: Iterable[MessageBody]) -> Iterator[str]:
    for message in messages:
        yield ""
        parts = [(part.type, part.data) for part in message.parts]
        yield from message_lines(message.role, parts)


def message_lines(role: str, parts: list[tuple[str, dict[str, Any]]]) -> Iterator[str]:
    """A prompt stands behind `>`; what the assistant says stands as it is; tools take a line each."""
    for kind, data in parts:
        match kind:
            case "text" if role == "user":
                yield from (f"> {line}" for line in data["text"].splitlines())
            case "text":
                yield data["text"].rstrip("\n")
            case "tool_call":
                yield f"* {data['name']} {one_line(data['input'], TOOL_CHARS_MAX)}"
            case "tool_result":
                yield f"  {'failed: ' if data.get('is_error') else ''}{one_line(data['content'], TOOL_CHARS_MAX)}"
            case "binary":
                yield f"> [file {one_line(data.get('Path') or 'without a name')}]"
            case "finish" if data.get("reason") not in ("end_turn", "tool_use"):
                why = one_line(data.get("details") or data.get("message") or "", TOOL_CHARS_MAX)
                yield f"[{data.get('reason')}{': ' + why if why else ''}]"
