"""A session as a document, for reading and archiving. It is made piece by piece: it may not fit into memory."""

from __future__ import annotations

import html
import re
from datetime import UTC, datetime
from typing import Literal, Protocol

import msgspec

from kedge.core.records import SessionRecord, SessionView
from kedge.core.reversal import Reversal, reversal_lines
from kedge.core.transcript import AttachedFile, ImageUrl, Message, Reasoning, ShellCommand, Text, ToolCall, ToolResult
from kedge.wire.brief import call_text, diff_of, result_brief
from kedge.wire.codec import message_body, session_body

_WHO = {"user": "You", "assistant": "Assistant", "tool": "Tool", "system": "System"}

_STYLE = """
body { max-width: 46rem; margin: 3rem auto; padding: 0 1rem; font: 16px/1.6 system-ui, sans-serif; color: #1d2430; }
h1 { font-size: 1.5rem; margin-bottom: 0; } .about { color: #667; margin-top: .3rem; }
article { border-top: 1px solid #dde; padding: 1rem 0; } h2 { font-size: .85rem; color: #667; margin: 0 0 .4rem; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; margin: 0; font: inherit; }
pre + pre { margin-top: .6rem; } .output { font: 13px/1.5 ui-monospace, monospace; opacity: .8; }
.user .text { font-weight: 600; } .note { color: #a33; }
@media (prefers-color-scheme: dark) { body { background: #14181f; color: #dde3ec; } article { border-color: #2a3240; } }
"""


class ExportFormat(Protocol):
    """A format of the document: its beginning, each message, its end."""

    media_type: str

    def begin(self, session: SessionRecord) -> bytes: ...

    def message(self, message: Message) -> bytes: ...

    def end(self) -> bytes: ...


class JsonExport:
    media_type = "application/json"
    _is_empty = True

    def begin(self, session: SessionRecord) -> bytes:
        return b'{\n  "session": ' + _indented(session_body(SessionView(session)), 2) + b',\n  "messages": ['

    def message(self, message: Message) -> bytes:
        separator = b"\n    " if self._is_empty else b",\n    "
        self._is_empty = False
        return separator + _indented(message_body(message), 4)

    def end(self) -> bytes:
        return (b"" if self._is_empty else b"\n  ") + b"]\n}"


def _indented(body: object, spaces: int) -> bytes:
    """Encode as indented JSON. JSON strings contain no raw line breaks."""
    return msgspec.json.format(msgspec.json.encode(body), indent=2).replace(b"\n", b"\n" + b" " * spaces)


class MarkdownExport:
    media_type = "text/markdown; charset=utf-8"

    def begin(self, session: SessionRecord) -> bytes:
        return f"# {_title(session)}\n\n*{_about(session)}*\n".encode()

    def message(self, message: Message) -> bytes:
        blocks = [text if kind == "text" else _fenced(text) for kind, text in _blocks(message)]
        lines = ["", f"## {_heading(message)}", "", "\n\n".join(blocks), ""]
        if note := _note(message):
            lines += [f"> {note}", ""]
        return "\n".join(lines).encode()

    def end(self) -> bytes:
        return b""


class HtmlExport:
    media_type = "text/html; charset=utf-8"

    def begin(self, session: SessionRecord) -> bytes:
        title = html.escape(_title(session))
        return (
            f'<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
            f"<title>{title}</title><style>{_STYLE}</style><body><h1>{title}</h1>"
            f'<p class="about">{html.escape(_about(session))}</p>\n'
        ).encode()

    def message(self, message: Message) -> bytes:
        return (
            f'<article class="{message.role}"><h2>{html.escape(_heading(message))}</h2>'
            + "".join(f'<pre class="{kind}">{html.escape(text)}</pre>' for kind, text in _blocks(message))
            + (f'<p class="note">{html.escape(note)}</p>' if (note := _note(message)) else "")
            + "</article>\n"
        ).encode()

    def end(self) -> bytes:
        return b"</body></html>\n"


EXPORT_FORMATS: dict[str, type[ExportFormat]] = {"md": MarkdownExport, "json": JsonExport, "html": HtmlExport}


def _title(session: SessionRecord) -> str:
    return session.title or "Untitled session"


def _about(session: SessionRecord) -> str:
    count = session.message_count
    return f"{_time(session.created_at)} · {count} message{'' if count == 1 else 's'}"


def _heading(message: Message) -> str:
    model = f" ({message.provider}/{message.model})" if message.model else ""
    return f"{_WHO[message.role]}{model} · {_time(message.created_at)}"


def _blocks(message: Message) -> list[tuple[Literal["text", "output"], str]]:
    """Return the blocks of a message: text, and the verbatim output of programs."""
    blocks: list[tuple[Literal["text", "output"], str]] = []
    for part in message.parts:
        match part:
            case Text(text=text, command=command):
                blocks.append(("text", f"{command}\n\n{text}" if command else text))
            case Reasoning(thinking=thinking):
                blocks.append(("text", "\n".join(f"| {line}" for line in thinking.splitlines())))
            case ToolCall() as call:
                title = call.title or f"{call.name} {call.input}"  # a call whose input is malformed has no title
                blocks.append(("output", f"* {call_text(title, call.display, call.input)}"))
            case ToolResult() as result:
                blocks.append(("output", _result(result)))
            case AttachedFile(path=path, mime_type=mime_type):
                blocks.append(("text", f"[file {path}, {mime_type}]"))
            case ShellCommand(command=command, output=output, exit_code=exit_code):
                blocks.append(("output", f"! {command}\n{output.rstrip()}\n-> exit {exit_code}"))
            case Reversal():
                blocks.append(("output", "\n".join(reversal_lines(part))))
            case ImageUrl(url=url):
                blocks.append(("text", "[picture]" if url.startswith("data:") else f"[picture {url}]"))
            case _:
                pass
    return [(kind, text) for kind, text in blocks if text.strip()]


def _fenced(text: str) -> str:
    """Return a code block whose fence is longer than any in the text."""
    longest = max((len(fence) for fence in re.findall(r"`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}\n{text.rstrip()}\n{fence}"


def _result(result: ToolResult) -> str:
    """Return a summary of the result, then the diff of a change or the whole content."""
    brief = result_brief(result.summary, result.content, is_error=result.is_error)
    content = "" if brief.startswith("failed: ") else diff_of(result.metadata) or result.content
    return "\n".join(block for block in (f"-> {brief}" if brief else "", content) if block)


def _note(message: Message) -> str:
    finish = message.finish
    if finish is None or finish.reason in ("end_turn", "tool_use"):
        return ""
    return ": ".join(part for part in (finish.reason, finish.message, finish.details) if part)


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M UTC")
