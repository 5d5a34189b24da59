"""A transcript as plain lines, for `sessions show` and `attach`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from kedge.cli.run_output import retry_words
from kedge.client.event_stream import StreamEvent
from kedge.client.safe_text import one_line, visible_line
from kedge.wire.brief import call_brief, result_brief
from kedge.wire.models import MessageBody

#: Of a tool's input and result one line is enough here; `sessions export` has all of it. Characters.
TOOL_CHARS_MAX = 160


def transcript_lines(messages: Iterable[MessageBody]) -> Iterator[str]:
    for message in messages:
        if message.role != "tool":
            yield ""
        parts = [(part.type, part.data) for part in message.parts]
        yield from message_lines(message.role, parts)


def message_lines(role: str, parts: list[tuple[str, dict[str, Any]]]) -> Iterator[str]:
    """A prompt stands behind `>`, a command behind `!`; what the assistant says stands as it is; the rest takes a line
    each."""
    for kind, data in parts:
        match kind:
            case "text" if role == "user":
                yield from (f"> {line}" for line in data["text"].splitlines())
            case "text":
                yield data["text"].rstrip("\n")
            case "reasoning" if data["thinking"].strip():
                yield thought_line(data["thinking"])
            case "tool_call":
                about = f"{data['name']} {call_brief(data['name'], data['input'])}"
                yield f"* {visible_line(about, TOOL_CHARS_MAX)}"
            case "tool_result":
                yield f"  -> {_result(data)}"
            case "shell_command":
                said = visible_line(data["output"], TOOL_CHARS_MAX)
                yield f"! {visible_line(data['command'], TOOL_CHARS_MAX)}"
                yield f"  -> exit {data['exit_code']}{': ' + said if said else ''}"
            case "binary":
                yield f"> [file {one_line(data.get('Path') or 'without a name')}]"
            case "finish" if data.get("reason") not in ("end_turn", "tool_use"):
                why = one_line(data.get("details") or data.get("message") or "", TOOL_CHARS_MAX)
                yield f"[{data.get('reason')}{': ' + why if why else ''}]"


def thought_line(text: str) -> str:
    return f"(thinking: {visible_line(text, TOOL_CHARS_MAX)})"


def event_line(event: StreamEvent) -> str:
    """What happens beside the messages, in a line; empty when there is nothing to say."""
    payload = event.payload
    match event.type:
        case "permission_request" if event.change != "deleted":
            what = visible_line(f"{payload['tool_name']}: {payload['description']}", TOOL_CHARS_MAX)
            return f"? {what} (`kedge approvals allow {payload['id']}`)"
        case "question_batch_request" if event.change != "deleted":
            asked = " / ".join(question["question"] for question in payload["questions"])
            return f"? {visible_line(asked, TOOL_CHARS_MAX)} (`kedge approvals answer {payload['id']} ...`)"
        case "permission_notification" | "question_batch_notification" if payload.get("withdrawn"):
            return "  -> no longer asked"
        case "permission_notification":
            return f"  -> {'allowed' if payload.get('granted') else 'denied'}"
        case "question_batch_notification":
            return f"  -> {'answered' if payload.get('answered') else 'left unanswered'}"
        case "agent_event" if payload.get("type") == "retry":
            return f"[{retry_words(payload)}]"
        case "run_complete" if payload.get("outcome") != "completed":
            why = visible_line(payload.get("error") or payload.get("reason") or "", 1000)
            return f"[{payload.get('outcome')}{': ' + why if why else ''}]"
    return ""


def _result(data: dict[str, Any]) -> str:
    content = data["content"]
    came = result_brief(data.get("metadata") or "", content, is_error=bool(data.get("is_error")))
    return visible_line(came or content, TOOL_CHARS_MAX) or "done"
