"""How a Run looks in a terminal, in a pipe and to a program."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from kedge.cli.terminal import Output, Status
from kedge.client.answer import AssistantText
from kedge.client.stream import StreamEvent
from kedge.client.text import one_line
from kedge.wire.models import Receipt, RunComplete

#: Tool calls that were announced; a Run that makes more is announced twice rather than remembered for ever. Items.
CALLS_MAX = 10_000

Form = Literal["text", "json", "stream-json"]


class RunView:
    """Text: the answer as it comes. stream-json: the wire's envelopes, one a line. json: the end, as one object."""

    def __init__(self, output: Output, status: Status, form: Form) -> None:
        self._output = output
        self._status = status
        self._form = form
        self._answer = AssistantText()
        self._calls: set[str] = set()

    def accepted(self, receipt: Receipt) -> None:
        self._status.doing("working" if receipt.state == "active" else "queued behind other runs")
        if self._status.verbose:
            self._status.note(f"run {receipt.run_id} in session {receipt.session_id}: {receipt.state}")

    async def see(self, event: StreamEvent, complete: RunComplete | None = None) -> None:
        if self._form == "stream-json":
            await self._write(event.envelope().decode() + "\n")
        elif self._form == "text":
            text = self._answer.feed(event)
            if complete:
                text += self._answer.finish(complete)
            await self._write(text)
        self._tell(event)

    async def end(self, complete: RunComplete) -> None:
        """The last line break, or the one object; and on stderr what went wrong, or how to go on."""
        self._status.doing("")
        if self._form == "json":
            await self._write(msgspec.json.encode(complete).decode() + "\n")
        elif self._form == "text" and self._answer.last != "\n":
            await self._write("\n")
        if problem := _problem(complete):
            self._status.note(f"kedge: {problem}", always=True)
        elif self._form == "text":
            self._status.note(f"(session {complete.session_id}; `kedge run -C ...` goes on)")

    async def _write(self, text: str) -> None:
        if text:
            self._status.hide()
            self._status.wrote(text[-1])
            await self._output.write(text)

    def _tell(self, event: StreamEvent) -> None:
        payload = event.payload
        match event.type:
            case "run" if payload.get("state") == "active":
                self._status.doing("cancelling" if payload.get("stopping") else "working")
            case "message":
                for part in payload.get("parts") or []:
                    self._tell_part(part["type"], part["data"])
            case "gap" if self._status.verbose:
                self._status.note("events were missed; the state was read again")

    def _tell_part(self, kind: str, data: dict[str, Any]) -> None:
        if kind == "tool_call" and data.get("finished") and data["id"] not in self._calls:
            if len(self._calls) >= CALLS_MAX:
                self._calls.clear()
            self._calls.add(data["id"])
            self._status.note(f"* {data['name']} {one_line(data['input'], 100)}")
        elif kind == "tool_result" and data.get("is_error") and self._status.verbose:
            self._status.note(f"  {data['name']} failed: {one_line(data['content'], 200)}")


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
            why = error or complete.reason or "its server was lost"
            return f"the run was interrupted ({why}): `kedge run -s {complete.session_id} ...` goes on from there"
