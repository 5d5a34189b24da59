"""Tool calls, results and changed files in one line. The text may hold any characters: escape it before printing."""

from __future__ import annotations

from kedge.core.untrusted_text import json_object
from kedge.wire.models import MessageBody

#: The mark of a changed file in a list.
FILE_MARKS = {"created": "+", "updated": "~", "deleted": "-"}


def call_text(title: str, display: str, arguments: str) -> str:
    """Return the title of a call, or all lines of a command. `arguments` is its input, which may be malformed JSON."""
    command = json_object(arguments).get("command") if display == "command" else None
    return f"$ {command}" if isinstance(command, str) and command.strip() else title


def result_brief(summary: str, content: str, *, is_error: bool) -> str:
    """Return the result of a call in one line: `exit 1, 2.3 s`, `+3 -1`, `failed: ...`. Empty: see the content."""
    return summary or (f"failed: {content}" if is_error else "")


def prompt_text(message: MessageBody) -> str | None:
    """Return the text of a prompt; None if the message is not a prompt, to which a session can be rewound."""
    if message.role != "user" or not any(part.type in ("text", "file") for part in message.parts):
        return None
    return "".join(part.data["text"] for part in message.parts if part.type == "text")


def diff_of(metadata: str) -> str:
    """Return the diff in the metadata of a result, or an empty string."""
    return str(json_object(metadata).get("diff") or "")
