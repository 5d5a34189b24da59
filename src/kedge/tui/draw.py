"""Messages as lines of the screen. Each line knows what a click on it unfolds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
from textual.strip import Strip

from kedge.tui.diff import diff_lines
from kedge.tui.markdown import Growing
from kedge.tui.model import Conversation, Entry, View
from kedge.tui.pen import Pen
from kedge.wire import models as m
from kedge.wire.brief import call_brief, diff_of, result_brief

#: What a call says is shown so far while it works, and when it is done; all of it when it is unfolded. Lines.
LIVE_LINES, DONE_LINES = 8, 4
#: Of a diff, which people want to see; and of anything that is unfolded, since a screen is no file. Lines.
DIFF_LINES, UNFOLDED_LINES_MAX = 24, 2_000
#: Tools whose results people want to see at once; those of others are seen when they are unfolded.
_TOLD = frozenset({"bash", "agent", "fetch", "question"})
#: The margin on the left, where marks stand. Columns.
MARGIN = 2


@dataclass(frozen=True, slots=True)
class Line:
    strip: Strip
    #: What is unfolded, or folded, by a click on it.
    fold: str = ""


class Drawer:
    """Draws at one width with one pen, and remembers what it has drawn of texts that grow."""

    def __init__(self, view: View, pen: Pen, width: int) -> None:
        self.view, self.pen, self.width = view, pen, width
        #: What is unfolded: by id of a call, or of a message and the number of its part.
        self.unfolded: set[str] = set()
        #: Then what is in `unfolded` is what is folded.
        self.unfolds_all = False
        self._growing: dict[tuple[str, int], Growing] = {}

    def message(self, entry: Entry, conversation: Conversation) -> list[Line]:
        body = entry.body
        if body.role == "tool":
            return []  # what came of a call is drawn where the call is
        drawn = list(self._prompt(body)) if body.role == "user" else list(self._answer(entry, conversation))
        if entry.is_finished:
            for number in range(len(body.parts)):
                self._growing.pop((body.id, number), None)
        return [*drawn, Line(self.pen.blank(self.width))] if drawn else []

    def _is_unfolded(self, key: str) -> bool:
        return (key in self.unfolded) != self.unfolds_all

    # --- people -----------------------------------------------------------------------------------------------------

    def _prompt(self, body: m.MessageBody) -> Iterator[Line]:
        for part in body.parts:
            match part.type:
                case "text":
                    for strip in self.pen.text(part.data["text"], "k.user", self.width, MARGIN):
                        yield self._marked("▌", "k.accent", strip)
                case "binary" | "image_url":
                    name = part.data.get("Path") or part.data.get("url", "")[:60] or "without a name"
                    yield self._line(("▌ ", "k.accent"), (f"attached: {name}", "k.muted"))
                case "shell_command":
                    yield from self._shell(body.id, part.data)

    def _shell(self, message_id: str, data: dict[str, Any]) -> Iterator[Line]:
        code = data["exit_code"]
        style = "k.good" if code == 0 else "k.bad"
        yield self._line(("! ", "k.accent"), (data["command"], "k.name"), (f"  exit {code}", style))
        yield from self._output(f"shell:{message_id}", data["output"], DONE_LINES)

    # --- the assistant ----------------------------------------------------------------------------------------------

    def _answer(self, entry: Entry, conversation: Conversation) -> Iterator[Line]:
        body = entry.body
        is_first = True
        for number, part in enumerate(body.parts):
            lines = list(self._part(entry, number, part, conversation))
            if lines and not is_first:
                yield Line(self.pen.blank(self.width))
            is_first = is_first and not lines
            yield from lines
        if body.is_summary and entry.is_finished:
            yield self._line(("  the history above was summarised; models see this instead", "k.muted"))

    def _part(self, entry: Entry, number: int, part: m.PartBody, conversation: Conversation) -> Iterator[Line]:
        data = part.data
        match part.type:
            case "text" if data["text"].strip():
                width = self.width - MARGIN
                growing = self._growing.setdefault((entry.body.id, number), Growing(self.pen, width))
                for strip in growing.lines(data["text"]):
                    yield Line(self._indented(strip))
            case "reasoning" if data.get("thinking", "").strip():
                yield from self._thought(f"{entry.body.id}:{number}", entry, number, data)
            case "tool_call":
                yield from self._call(data, conversation)
            case "finish":
                yield from self._finish(data)

    def _thought(self, key: str, entry: Entry, number: int, data: dict[str, Any]) -> Iterator[Line]:
        is_over = number < len(entry.body.parts) - 1 or entry.is_finished
        seconds = (data.get("finished_at", 0) - data.get("started_at", 0)) / 1000 if data.get("started_at") else 0
        took = f" for {seconds:.0f} s" if is_over and seconds >= 1 else ""
        said = f"thought{took}" if is_over else "thinking"
        mark = "▾" if self._is_unfolded(key) else "▸"
        yield Line(self._line((f"{mark} {said}", "k.thought")).strip, key)
        if self._is_unfolded(key):
            for strip in self.pen.text(data["thinking"].strip(), "k.thought", self.width, MARGIN + 2):
                yield Line(strip, key)

    # --- tools ------------------------------------------------------------------------------------------------------

    def _call(self, data: dict[str, Any], conversation: Conversation) -> Iterator[Line]:
        call_id, name = data["id"], data["name"]
        result = conversation.results.get(call_id)
        waits = any(ask.tool_call_id == call_id for ask in self.view.asks())
        about = call_brief(name, data["input"]) if data.get("finished", True) else ""
        mark, how = self._state(result, waits=waits)
        pieces = [(f"{mark} ", how), (f"{name} ", "k.name"), (about, "k.text")]
        if result is not None:
            told = result.data
            came = result_brief(told.get("metadata") or "", told["content"], is_error=bool(told.get("is_error")))
            pieces.append((f"  {came}", "k.bad" if told.get("is_error") else "k.muted"))
        elif waits:
            pieces.append(("  waits for your answer", "k.warn"))
        yield Line(self._line(*pieces).strip, call_id)
        if name == "bash" and "\n" in about:
            yield from (Line(strip, call_id) for strip in self.pen.text(about, "k.muted", self.width, MARGIN + 2))
        if result is None:
            yield from self._output(call_id, conversation.progress.get(call_id, ""), LIVE_LINES, from_end=True)
        elif diff := diff_of(result.data.get("metadata") or ""):
            strips = diff_lines(diff, self.pen, self.width - MARGIN)
            yield from self._folded(call_id, [self._indented(strip) for strip in strips], DIFF_LINES)
        elif name in _TOLD or result.data.get("is_error") or self._is_unfolded(call_id):
            yield from self._output(call_id, result.data["content"], DONE_LINES)

    @staticmethod
    def _state(result: m.PartBody | None, *, waits: bool) -> tuple[str, str]:
        if waits:
            return "?", "k.warn"
        if result is None:
            return "○", "k.accent"
        code = _metadata(result).get("exit_code", 0)
        return ("✗", "k.bad") if result.data.get("is_error") or code not in (0, None) else ("●", "k.good")

    def _output(self, key: str, text: str, lines_max: int, *, from_end: bool = False) -> Iterator[Line]:
        if text.strip():
            strips = self.pen.text(text.strip("\n"), "k.muted", self.width, MARGIN + 2)
            yield from self._folded(key, strips, lines_max, from_end=from_end)

    def _folded(self, key: str, strips: list[Strip], lines_max: int, *, from_end: bool = False) -> Iterator[Line]:
        """The first lines, or the last, and how many there are beside them."""
        most = UNFOLDED_LINES_MAX if self._is_unfolded(key) else lines_max
        hidden = len(strips) - most
        if hidden <= 1:
            yield from (Line(strip, key) for strip in strips)
            return
        more = Line(self._line((f"  … {hidden:,} more lines", "k.muted")).strip, key)
        if from_end:
            yield more
            yield from (Line(strip, key) for strip in strips[hidden:])
        else:
            yield from (Line(strip, key) for strip in strips[:most])
            yield more

    # --- ends -------------------------------------------------------------------------------------------------------

    def _finish(self, data: dict[str, Any]) -> Iterator[Line]:
        said = data.get("details") or data.get("message") or ""
        match data["reason"]:
            case "end_turn" | "tool_use":
                return
            case "canceled":
                yield self._line(("■ canceled", "k.warn"))
            case "error":
                yield self._line(("✗ failed", "k.bad"))
                for strip in self.pen.text(said or "no reason was given", "k.bad", self.width, MARGIN):
                    yield Line(strip)
            case "max_tokens":
                yield self._line(("■ the answer reached its length limit", "k.warn"))
            case "content_filter":
                yield self._line(("■ the provider stopped the answer (content filter)", "k.warn"))
            case _:
                yield self._line((f"■ interrupted{': ' + said if said else ''}", "k.warn"))

    # --- lines ------------------------------------------------------------------------------------------------------

    def _line(self, *pieces: tuple[str, str]) -> Line:
        return Line(self.pen.line(self.width, *pieces))

    def _indented(self, strip: Strip) -> Strip:
        return Strip.join([self.pen.blank(MARGIN), strip])

    def _marked(self, mark: str, style: str, strip: Strip) -> Line:
        """In the margin of the line stands a mark."""
        margin = self.pen.line(MARGIN, (mark, style))
        return Line(Strip.join([margin, strip.crop(MARGIN)]))


def _metadata(result: m.PartBody) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(result.data.get("metadata") or "{}")
    except msgspec.DecodeError:
        return {}
    return found if isinstance(found, dict) else {}
