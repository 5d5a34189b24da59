"""Tool calls as cards: the call, its result, and how much of the output is folded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from msgspec import Struct
from rich.cells import cell_len, chop_cells
from textual.strip import Strip

from kedge.client.view.conversation import Conversation, ConversationEntry
from kedge.client.view.workspace_view import WorkspaceView
from kedge.core.untrusted_text import json_object
from kedge.tui.render.diff_lines import diff_rows, draw_row
from kedge.tui.render.renderer import Renderer, clean, shortened
from kedge.wire import models as m
from kedge.wire.brief import call_text, diff_of
from kedge.wire.result_notes import result_notes

#: The left margin, which contains the marks, and the indent of the text below a mark. Columns.
MARGIN, INDENT = 2, 4
#: Folded output of a running call and of a finished one. Lines.
LIVE_LINES, DONE_LINES = 8, 4
#: A folded command of several lines. Lines.
COMMAND_LINES = 6
#: A folded diff; and any unfolded output, since drawing more takes too long. Lines.
DIFF_LINES, UNFOLDED_LINES_MAX = 24, 2_000
#: Minimum width of a call's title beside its result. Columns.
TITLE_WIDTH_MIN = 12

T = TypeVar("T")


class RenderedLine(Struct, frozen=True):
    strip: Strip
    #: The fold that a click on the line toggles.
    fold: str = ""
    #: Margin at the left, which is not copied with the text. Columns.
    lead: int = MARGIN


class FoldState:
    """The folds that the user has opened. A key is a message id with a call id or the number of a part."""

    def __init__(self) -> None:
        self._toggled: set[str] = set()
        self._are_all_open = False

    def is_open(self, key: str) -> bool:
        return (key in self._toggled) != self._are_all_open

    def toggle(self, key: str) -> None:
        self._toggled ^= {key}

    def toggle_all(self) -> None:
        self._are_all_open, self._toggled = not self._are_all_open, set()


class ToolCards:
    def __init__(self, view: WorkspaceView, renderer: Renderer, width: int, folds: FoldState) -> None:
        self._view, self._renderer, self._width, self._folds = view, renderer, width, folds

    # --- calls ------------------------------------------------------------------------------------------------------

    def call(
        self, entry: ConversationEntry, data: dict[str, Any], conversation: Conversation
    ) -> Iterator[RenderedLine]:
        call_id, run_id, display = data["id"], entry.body.run_id, data.get("display") or "compact"
        key = f"{entry.body.id}:{call_id}"
        result = conversation.result_of(entry, call_id)
        title = data.get("title") or data["name"]
        child = self._child(run_id, data, conversation, entry) if display == "agent" else None
        mark, style, summary, summary_style = self._state(run_id, call_id, result)
        if child is not None and not summary:
            summary, summary_style = _child_state(child), "k.muted"
        name, _, details = title.partition(" ")
        yield RenderedLine(self.head(mark, style, name, details, (summary, summary_style)), key)
        text = call_text(title, display, data["input"])
        if "\n" in text.strip():
            yield from self.output(key, text, COMMAND_LINES, style="k.text")
        if result is not None:
            yield from self._result(key, display, result)
        elif child is not None and child.state != "ended":
            yield from self.output(key, self._view.progress_of(child.run_id), LIVE_LINES, from_end=True)
        elif self._is_live(run_id):
            live = conversation.progress_of(entry, call_id)
            if live.strip() != title:  # before there is output, the progress repeats the title
                yield from self.output(key, live, LIVE_LINES, from_end=True)

    def _state(self, run_id: str, call_id: str, result: m.PartBody | None) -> tuple[str, str, str, str]:
        """Return the mark and its style, the summary of the result and its style."""
        if result is not None:
            data, metadata = result.data, _metadata(result)
            if data.get("end") in ("cut_off", "not_run"):
                return "■", "k.warn", data.get("summary") or "", "k.warn"
            if data.get("is_error"):
                return "✗", "k.bad", data.get("summary") or "failed", "k.bad"
            is_bad = metadata.get("exit_code", 0) not in (0, None)
            summary = data.get("summary") or ""
            return ("✗", "k.bad", summary, "k.bad") if is_bad else ("●", "k.good", summary, "k.muted")
        if self._view.is_waiting(run_id, call_id):
            return "?", "k.warn", "waiting for your answer", "k.warn"
        if not self._is_live(run_id):
            return "■", "k.warn", "no result", "k.warn"
        return "○", "k.accent", "", "k.muted"

    def _result(self, key: str, display: str, result: m.PartBody) -> Iterator[RenderedLine]:
        if diff := diff_of(result.data.get("metadata") or ""):
            width = max(1, self._width - MARGIN)
            rows = diff_rows(diff, width)
            yield from self._folded(key, rows, lambda row: draw_row(row, self._renderer, width), DIFF_LINES, MARGIN)
        elif display != "compact" or result.data.get("is_error") or self._folds.is_open(key):
            yield from self.output(key, result.data["content"], DONE_LINES)
        for note in result_notes(result.data.get("metadata") or ""):
            style = "k.bad" if note.kind == "error" else "k.warn"
            name = "hook" if note.kind == "hook" else ""
            yield RenderedLine(self.head("!", style, name, note.text, ("", "")))

    def _is_live(self, run_id: str) -> bool:
        run = self._view.run(run_id)
        return run is not None and run.state != "ended"

    def _child(
        self, run_id: str, data: dict[str, Any], conversation: Conversation, entry: ConversationEntry
    ) -> m.RunBody | None:
        """Return the child Run that this call started: the one with its prompt; of several, by their order."""
        prompt = _prompt(data)
        same = [child for child in self._view.children(run_id) if child.prompt == prompt]
        calls = [
            (other.body.id, part.data["id"])
            for other in (conversation.ordered() if len(same) > 1 else [entry])
            if other.body.run_id == run_id
            for part in other.body.parts
            if part.type == "tool_call" and part.data.get("display") == "agent" and _prompt(part.data) == prompt
        ]
        index = calls.index((entry.body.id, data["id"])) if (entry.body.id, data["id"]) in calls else 0
        return same[index] if index < len(same) else None

    # --- folded output ---------------------------------------------------------------------------------------------

    def output(
        self, key: str, text: str, lines_max: int, *, from_end: bool = False, style: str = "k.muted"
    ) -> Iterator[RenderedLine]:
        if not text.strip():
            return
        rows = text.strip("\n").split("\n")
        width = max(1, self._width - INDENT)
        # Render only as much of a very long row as can be shown, and a little more to see that there is more.
        cut = width * ((UNFOLDED_LINES_MAX if self._folds.is_open(key) else lines_max) + 2)
        yield from self._folded(
            key,
            rows,
            lambda row: self._renderer.text(row[-cut:] if from_end else row[:cut], style, width),
            lines_max,
            INDENT,
            from_end=from_end,
        )

    def _folded(
        self,
        key: str,
        rows: Sequence[T],
        draw: Callable[[T], list[Strip]],
        lines_max: int,
        indent: int,
        *,
        from_end: bool = False,
    ) -> Iterator[RenderedLine]:
        """Yield the first or last lines and the number of hidden rows. Hidden rows are not rendered."""
        shown_max = UNFOLDED_LINES_MAX if self._folds.is_open(key) else lines_max
        strips: list[Strip] = []
        drawn = 0
        for row in reversed(rows) if from_end else rows:
            # A note about one hidden row would take as much room as the row.
            if len(strips) >= shown_max and drawn < len(rows) - 1:
                break
            strips = [*draw(row), *strips] if from_end else [*strips, *draw(row)]
            drawn += 1
        hidden = len(rows) - drawn
        if len(strips) > shown_max + 1:
            strips = strips[-shown_max:] if from_end else strips[:shown_max]
            hidden += 1
        lead = self._renderer.blank(indent)
        lines = [RenderedLine(Strip.join([lead, strip]), key, indent) for strip in strips]
        if hidden:
            more = f"{' ' * indent}… {hidden:,} more {'line' if hidden == 1 else 'lines'}"
            note = RenderedLine(self._renderer.line(self._width, (more, "k.muted")), key, indent)
            lines = [note, *lines] if from_end else [*lines, note]
        yield from lines

    # --- lines ------------------------------------------------------------------------------------------------------

    def head(self, mark: str, style: str, name: str, title: str, summary: tuple[str, str]) -> Strip:
        """Return the first line of a card. A long title is cut, so that the summary is visible."""
        first, _, rest = clean(title).strip().partition("\n")
        name, summary = shortened(name, self._width), (shortened(summary[0], self._width), summary[1])
        taken = MARGIN + (cell_len(name) + 1 if name else 0) + (cell_len(summary[0]) + 2 if summary[0] else 0)
        shown = _fitted(f"{first} …" if rest else first, max(TITLE_WIDTH_MIN, self._width - taken))
        pieces = [(f"{mark} ", style), (f"{name} " if name else "", "k.name"), (shown, "k.text")]
        return self._renderer.line(self._width, *pieces, (f"  {summary[0]}" if summary[0] else "", summary[1]))

    def note(self, mark: str, style: str, text: str) -> Iterator[RenderedLine]:
        """Yield a text of kedge, with a mark in the margin."""
        for number, strip in enumerate(self._renderer.text(text, style, max(1, self._width - MARGIN))):
            margin = self._renderer.line(MARGIN, (mark if number == 0 else " ", style))
            yield RenderedLine(Strip.join([margin, strip]))


def _fitted(text: str, width: int) -> str:
    text = shortened(text, width)
    return text if cell_len(text) <= width else chop_cells(text, max(1, width - 1))[0] + "…"


def _child_state(child: m.RunBody) -> str:
    steps = f"{child.steps} step" if child.steps == 1 else f"{child.steps} steps"
    if child.state != "ended":
        return "queued" if child.state == "queued" else f"step {child.steps}" if child.steps else "starting"
    if child.outcome != "completed":
        return f"{child.outcome}, {steps}"
    if not child.started_at or not child.ended_at:
        return steps
    return f"{steps}, {max(0, child.ended_at - child.started_at) / 1000:.1f} s"


def _prompt(data: dict[str, Any]) -> str:
    return str(json_object(data["input"]).get("prompt") or "")


def _metadata(result: m.PartBody) -> dict[str, Any]:
    return json_object(result.data.get("metadata") or "")
