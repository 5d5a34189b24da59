"""The plain lines of a transcript, for `kedge sessions show` and `kedge attach`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from kedge.cli.run_output import TOOL_LINE_CHARS_MAX, note_line, retry_text
from kedge.client.event_stream import StreamEvent
from kedge.client.safe_text import one_line, visible_line
from kedge.core.reversal import Reversal, reversal_lines
from kedge.wire.brief import result_brief
from kedge.wire.models import MessageBody
from kedge.wire.result_notes import result_notes


def transcript_lines(messages: Iterable[MessageBody]) -> Iterator[str]:
    for message in messages:
        if message.role != "tool":
            yield ""
        parts = [(part.type, part.data) for part in message.parts]
        yield from message_lines(message.role, parts)


def message_lines(role: str, parts: list[tuple[str, dict[str, Any]]]) -> Iterator[str]:
    """Yield a prompt after `>`, a user's command after `!`, an undo or rewind after `~`, the assistant's text as it is,
    and one line per other part.

    `kedge sessions export` prints tool calls and results in full."""
    for kind, data in parts:
        match kind:
            case "text" if role == "user":
                yield from (f"> {line}" for line in data["text"].splitlines())
            case "text":
                yield data["text"].rstrip("\n")
            case "reasoning" if data["thinking"].strip():
                yield thought_line(data["thinking"])
            case "tool_call":
                yield f"* {visible_line(data['title'] or data['name'], TOOL_LINE_CHARS_MAX)}"
            case "tool_result":
                yield f"  -> {_result(data)}"
                yield from map(note_line, result_notes(data.get("metadata") or ""))
            case "shell_command":
                output = visible_line(data["output"], TOOL_LINE_CHARS_MAX)
                yield f"! {visible_line(data['command'], TOOL_LINE_CHARS_MAX)}"
                yield f"  -> exit {data['exit_code']}{': ' + output if output else ''}"
            case "reversal":
                lines = reversal_lines(msgspec.convert(data, Reversal))
                yield from (f"~ {visible_line(line, TOOL_LINE_CHARS_MAX)}" for line in lines)
            case "file":
                yield f"> [file {one_line(data.get('path') or '(unnamed)')}]"
            case "finish" if data.get("reason") not in ("end_turn", "tool_use"):
                details = one_line(data.get("details") or data.get("message") or "", TOOL_LINE_CHARS_MAX)
                yield f"[{data.get('reason')}{': ' + details if details else ''}]"


def thought_line(text: str) -> str:
    return f"(thinking: {visible_line(text, TOOL_LINE_CHARS_MAX)})"


def event_line(event: StreamEvent) -> str:
    """Return a line for an event that is not a message; empty for most."""
    payload = event.payload
    match event.type:
        case "permission_request" if event.change != "deleted":
            title = visible_line(f"{payload['tool_name']}: {payload['description']}", TOOL_LINE_CHARS_MAX)
            return f"? {title} (`kedge approvals allow {payload['id']}`)"
        case "question_batch_request" if event.change != "deleted":
            questions = " / ".join(question["question"] for question in payload["questions"])
            return f"? {visible_line(questions, TOOL_LINE_CHARS_MAX)} (`kedge approvals answer {payload['id']} ...`)"
        case "permission_notification" | "question_batch_notification" if payload.get("withdrawn"):
            return "  -> withdrawn"
        case "permission_notification":
            return f"  -> {'allowed' if payload.get('granted') else 'denied'}"
        case "question_batch_notification":
            return f"  -> {'answered' if payload.get('answered') else 'declined'}"
        case "rewind":
            return f"[rewound: the conversation as it was is in session {payload.get('fork_session_id')}]"
        case "agent_event" if payload.get("type") == "retry":
            return f"[{retry_text(payload)}]"
        case "run_complete" if payload.get("outcome") != "completed":
            reason = visible_line(payload.get("error") or payload.get("reason") or "", 1000)
            return f"[{payload.get('outcome')}{': ' + reason if reason else ''}]"
    return ""


def _result(data: dict[str, Any]) -> str:
    content = data["content"]
    result = result_brief(data.get("summary") or "", content, is_error=bool(data.get("is_error")))
    return visible_line(result or content, TOOL_LINE_CHARS_MAX) or "done"
