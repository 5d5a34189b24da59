"""How a Run looks in a terminal, in a pipe and to a program."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from kedge.cli.terminal import StatusLine, StdoutWriter
from kedge.client.assistant_text import AssistantText
from kedge.client.event_stream import StreamEvent
from kedge.client.safe_text import visible_line
from kedge.core.events import REASON_TEXTS
from kedge.wire.brief import call_brief, result_brief
from kedge.wire.models import Receipt, RunComplete, UsageBody

#: Tool calls that were announced; a Run that makes more is announced twice rather than remembered for ever. Items.
CALLS_MAX = 10_000
#: Of a call and of what came of it: a line each. Characters.
CALL_CHARS_MAX = 160
#: Of what a call is doing right now, in the status line. Characters.
PROGRESS_CHARS_MAX = 60

Form = Literal["text", "json", "stream-json"]


class RunPrinter:
    """Text: the answer as it comes. stream-json: the wire's envelopes, one a line. json: the end, as one object."""

    def __init__(self, output: StdoutWriter, status: StatusLine, form: Form) -> None:
        self._output = output
        self._status = status
        self._form = form
        self._answer = AssistantText()
        #: id -> what a call is about, as it was announced.
        self._calls: dict[str, str] = {}
        self._results: set[str] = set()

    def accepted(self, receipt: Receipt) -> None:
        self._status.set("working" if receipt.state == "active" else "queued behind other runs")
        if self._status.verbose:
            self._status.note(f"run {receipt.run_id} in session {receipt.session_id}: {receipt.state}")

    async def on_event(self, event: StreamEvent, complete: RunComplete | None = None) -> None:
        if self._form == "stream-json":
            await self._write(event.envelope().decode() + "\n")
        elif self._form == "text":
            if self._output.is_terminal and self._status.at_line_start:
                self._answer.last = "\n"  # a line of the status stood behind the text, and ended it
            text = self._answer.feed(event)
            if complete:
                text += self._answer.finish(complete)
            await self._write(text)
        self._tell(event)

    async def end(self, complete: RunComplete) -> None:
        """The last line break, or the one object; and on stderr what went wrong, or how to go on."""
        self._status.set("")
        if self._form == "json":
            await self._write(msgspec.json.encode(complete).decode() + "\n")
        elif self._form == "text" and self._answer.last != "\n":
            await self._write("\n")
        used = usage_words(complete.usage)
        if problem := _problem(complete):
            self._status.note(f"kedge: {problem}", always=True)
            if used:
                self._status.note(f"({used})")
        elif self._form == "text" or self._status.verbose:
            how = f"session {complete.session_id}; `kedge run -C ...` goes on"
            self._status.note(f"({used}; {how})" if used else f"({how})")

    async def _write(self, text: str) -> None:
        if text:
            self._status.hide()
            self._status.wrote(text[-1])
            await self._output.write(text)

    def _tell(self, event: StreamEvent) -> None:
        payload = event.payload
        match event.type:
            case "run" if payload.get("state") == "active":
                self._status.set("cancelling" if payload.get("stopping") else "working")
            case "message":
                for part in payload.get("parts") or []:
                    self._tell_part(part["type"], part["data"])
            case "delta" if payload.get("kind") == "reasoning":
                self._status.set("thinking")
            case "delta":
                self._status.set("working")
            case "progress":
                lines = payload.get("text", "").strip().splitlines()
                self._status.set(visible_line(lines[-1], PROGRESS_CHARS_MAX) if lines else "working")
            case "agent_event" if payload.get("type") == "retry":
                self._status.note(retry_words(payload))
            case "gap" if self._status.verbose:
                self._status.note("events were missed; the state was read again")

    def _tell_part(self, kind: str, data: dict[str, Any]) -> None:
        if kind == "tool_call" and data.get("finished") and data["id"] not in self._calls:
            if len(self._calls) >= CALLS_MAX:
                self._calls.clear()
                self._results.clear()
            about = visible_line(f"{data['name']} {call_brief(data['name'], data['input'])}", CALL_CHARS_MAX)
            self._calls[data["id"]] = about
            self._status.note(f"* {about}")
        elif kind == "tool_result" and data["tool_call_id"] not in self._results:
            self._results.add(data["tool_call_id"])
            self._status.set("working")
            self._tell_result(data)

    def _tell_result(self, data: dict[str, Any]) -> None:
        came = result_brief(data.get("metadata") or "", data["content"], is_error=bool(data.get("is_error")))
        if not came:
            return
        # Of several calls at once it has to be said which one this is.
        about = self._calls.get(data["tool_call_id"], data["name"])
        is_last = data["tool_call_id"] == next(reversed(self._calls), None)
        self._status.note(f"  -> {visible_line(came if is_last else f'{about}: {came}', CALL_CHARS_MAX)}")


def retry_words(payload: dict[str, Any]) -> str:
    why = visible_line(str(payload.get("error") or "the provider failed")).rstrip(".")
    attempt = f"attempt {payload.get('attempt')} of {payload.get('attempts_max')}"
    return f"{why}; trying again in {payload.get('wait_s', 0):g} s ({attempt})"


def usage_words(usage: UsageBody) -> str:
    """Tokens and cost, as far as they are known."""
    if not usage.input_tokens and not usage.output_tokens:
        return ""
    cost = f", ${usage.cost_usd:.4f}" if usage.cost_usd else ""
    return f"{usage.input_tokens:,} tokens in, {usage.output_tokens:,} out{cost}"


def _problem(complete: RunComplete) -> str:
    error = complete.error or ""
    match complete.outcome:
        case "completed":
            return error  # a clean-up that failed, for example
        case "failed":
            return error or f"the run failed ({complete.reason or 'no reason given'})"
        case "cancelled":
            return "the run was cancelled" + (f": {error}" if error else "")
        case "interrupted":
            why = error or REASON_TEXTS[complete.reason]
            return f"the run was interrupted ({why}): `kedge run -s {complete.session_id} ...` goes on from there"
