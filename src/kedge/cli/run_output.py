"""The output of a Run: text for a terminal or a pipe, or JSON for a program."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from kedge.cli.terminal import StatusLine, StdoutWriter
from kedge.client.assistant_text import AssistantText
from kedge.client.event_stream import StreamEvent
from kedge.client.safe_text import visible_line
from kedge.client.view.author_text import by_author
from kedge.core.events import REASON_TEXTS
from kedge.wire.brief import result_brief
from kedge.wire.models import Receipt, RunComplete, UsageBody
from kedge.wire.result_notes import ResultNote, result_notes

#: Tool calls that are remembered as announced. A Run with more may announce one twice. Items.
ANNOUNCED_MAX = 10_000
#: One line for a tool call or its result. Characters.
TOOL_LINE_CHARS_MAX = 160
#: A diagnostic or a message of a hook. Characters.
NOTE_CHARS_MAX = 300
#: The latest output of a running tool, in the status line. Characters.
ACTIVITY_CHARS_MAX = 60

OutputFormat = Literal["text", "json", "stream-json"]


class RunPrinter:
    """Prints a Run. text: the answer as it streams. stream-json: one wire envelope per line. json: run_complete."""

    def __init__(self, output: StdoutWriter, status: StatusLine, output_format: OutputFormat) -> None:
        self._output = output
        self._status = status
        self._format = output_format
        self._answer = AssistantText()
        #: Announced tool calls: id -> their line.
        self._calls: dict[str, str] = {}
        self._results: set[str] = set()
        #: The directory of the Run, for messages.
        self.directory = "its directory"

    def accepted(self, receipt: Receipt) -> None:
        self._status.set("working" if receipt.state == "active" else "queued")
        if self._status.verbose:
            self._status.note(f"run {receipt.run_id} in session {receipt.session_id}: {receipt.state}")
        if receipt.waits_for_node is True:
            hint = "start one with --workspace-root, or cancel the run"
            self._status.note(f"waiting: no live node serves {self.directory}; {hint}", always=True)

    async def on_event(self, event: StreamEvent, complete: RunComplete | None = None) -> None:
        if self._format == "stream-json":
            await self._write(event.envelope().decode() + "\n")
        elif self._format == "text":
            if self._output.is_terminal and self._status.at_line_start:
                self._answer.last = "\n"  # a status note has ended the line
            text = self._answer.feed(event)
            if complete:
                text += self._answer.finish(complete)
            await self._write(text)
        self._report(event)

    async def end(self, complete: RunComplete) -> None:
        """Print the last line feed or the JSON object; on stderr the error, or how to continue."""
        self._status.set("")
        if self._format == "json":
            await self._write(msgspec.json.encode(complete).decode() + "\n")
        elif self._format == "text" and self._answer.last != "\n":
            await self._write("\n")
        usage = usage_text(complete.usage)
        if problem := _problem(complete):
            self._status.note(f"kedge: {problem}", always=True)
            if usage:
                self._status.note(f"({usage})")
        elif self._format == "text" or self._status.verbose:
            hint = f"session {complete.session_id}; continue with: kedge run -C ..."
            self._status.note(f"({usage}; {hint})" if usage else f"({hint})")

    async def _write(self, text: str) -> None:
        if text:
            self._status.hide()
            self._status.wrote(text[-1])
            await self._output.write(text)

    def _report(self, event: StreamEvent) -> None:
        payload = event.payload
        match event.type:
            case "run" if payload.get("state") == "active":
                self._status.set("cancelling" if payload.get("stopping") else "working")
            case "message":
                for part in payload.get("parts") or []:
                    self._report_part(part["type"], part["data"])
            case "delta" if payload.get("kind") == "reasoning":
                self._status.set("thinking")
            case "delta":
                self._status.set("working")
            case "progress":
                lines = payload.get("text", "").strip().splitlines()
                self._status.set(visible_line(lines[-1], ACTIVITY_CHARS_MAX) if lines else "working")
            case "agent_event" if payload.get("type") == "retry":
                # Without a position: the store is away, and may be for a minute.
                (self._status.set if event.position is None else self._status.note)(retry_text(payload))
            case "gap" if self._status.verbose:
                self._status.note("some events were missed; the state was read again")

    def _report_part(self, kind: str, data: dict[str, Any]) -> None:
        if kind == "tool_call" and data.get("finished") and data["id"] not in self._calls:
            if len(self._calls) >= ANNOUNCED_MAX:
                self._calls.clear()
                self._results.clear()
            line = visible_line(data["title"] or data["name"], TOOL_LINE_CHARS_MAX)
            self._calls[data["id"]] = line
            self._status.note(f"* {line}")
        elif kind == "tool_result" and data["tool_call_id"] not in self._results:
            self._results.add(data["tool_call_id"])
            self._status.set("working")
            self._report_result(data)

    def _report_result(self, data: dict[str, Any]) -> None:
        result = result_brief(data.get("summary") or "", data["content"], is_error=bool(data.get("is_error")))
        if result:
            # With several calls at once, the result names its call.
            call = self._calls.get(data["tool_call_id"], data["name"])
            is_last = data["tool_call_id"] == next(reversed(self._calls), None)
            self._status.note(f"  -> {visible_line(result if is_last else f'{call}: {result}', TOOL_LINE_CHARS_MAX)}")
        for note in result_notes(data.get("metadata") or ""):
            # A pipe has no screen: there only what users must not miss.
            self._status.note(note_line(note), always=note.kind == "hook")


def note_line(note: ResultNote) -> str:
    text = f"warning: hook: {note.text}" if note.kind == "hook" else note.text
    return f"     {visible_line(text, NOTE_CHARS_MAX)}"


def retry_text(payload: dict[str, Any]) -> str:
    error = visible_line(str(payload.get("error") or "the provider failed")).rstrip(".")
    attempt = f"attempt {payload.get('attempt')} of {payload.get('attempts_max')}"
    return f"{error}; retrying in {payload.get('wait_s', 0):g} s ({attempt})"


def usage_text(usage: UsageBody) -> str:
    """Return the tokens and the cost, as far as they are known."""
    if not usage.input_tokens and not usage.output_tokens:
        return ""
    cost = f", ${usage.cost_usd:.4f}" if usage.cost_usd else ""
    return f"{usage.input_tokens:,} tokens in, {usage.output_tokens:,} out{cost}"


def _problem(complete: RunComplete) -> str:
    error = complete.error or ""
    match complete.outcome:
        case "completed":
            return error  # for example a clean-up that failed
        case "failed":
            return error or f"the run failed ({complete.reason or 'unknown reason'})"
        case "cancelled":
            return f"the run was cancelled{by_author(complete.cancelled_by)}" + (f": {error}" if error else "")
        case "interrupted":
            reason = error or REASON_TEXTS[complete.reason]
            return f"the run was interrupted ({reason}); continue with: kedge run -s {complete.session_id} ..."
