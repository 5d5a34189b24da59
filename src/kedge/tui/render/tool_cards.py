"""Tool calls as cards: what is done, what comes of it, and how much of that is folded away."""

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

#: The margin on the left, where marks stand; what belongs to a mark stands further in. Columns.
MARGIN, INDENT = 2, 4
#: What a call says is shown so far while it works, and when it is done; all of it when it is unfolded. Lines.
LIVE_LINES, DONE_LINES = 8, 4
#: Of a command that is written over several lines. Lines.
COMMAND_LINES = 6
#: Of a diff, which people want to see; and of anything that is unfolded, since a screen is no file. Lines.
DIFF_LINES, UNFOLDED_LINES_MAX = 24, 2_000
#: What a call is about keeps at least this much room beside what came of it. Columns.
ABOUT_WIDTH_MIN = 12

T = TypeVar("T")


class RenderedLine(Struct, frozen=True):
    strip: Strip
    #: What is unfolded, or folded, by a click on it.
    fold: str = ""
    #: How much at its left is ours, and is not copied with it. Columns.
    lead: int = MARGIN


class ToolCards:
    """Draws calls, at one width with one pen."""

    def __init__(self, view: WorkspaceView, renderer: Renderer, width: int) -> None:
        self.view, self.renderer, self.width = view, renderer, width
        #: What is unfolded: by id of a message with that of a call, or with the number of its part.
        self.unfolded: set[str] = set()
        #: Then what is in `unfolded` is what is folded.
        self.unfolds_all = False

    def is_unfolded(self, key: str) -> bool:
        return (key in self.unfolded) != self.unfolds_all

    # --- calls ------------------------------------------------------------------------------------------------------

    def call(
        self, entry: ConversationEntry, data: dict[str, Any], conversation: Conversation
    ) -> Iterator[RenderedLine]:
        call_id, run_id, display = data["id"], entry.body.run_id, data.get("display") or "compact"
        key = f"{entry.body.id}:{call_id}"
        result = conversation.result_of(entry, call_id)
        title = data.get("title") or data["name"]
        child = self._child(run_id, data, conversation, entry) if display == "agent" else None
        mark, style, came, how = self._state(run_id, call_id, result)
        if child is not None and not came:
            came, how = _child_state(child), "k.muted"
        name, _, about = title.partition(" ")
        yield RenderedLine(self.headed(mark, style, name, about, (came, how)), key)
        text = call_text(title, display, data["input"])
        if "\n" in text.strip():
            yield from self.output(key, text, COMMAND_LINES, style="k.text")
        if result is not None:
            yield from self._result(key, display, result)
        elif child is not None and child.state != "ended":
            yield from self.output(key, self.view.doing(child.run_id), LIVE_LINES, from_end=True)
        elif self._is_live(run_id):
            live = conversation.progress_of(entry, call_id)
            if live.strip() != title:  # until there is output it is told what the head of the card says
                yield from self.output(key, live, LIVE_LINES, from_end=True)

    def _state(self, run_id: str, call_id: str, result: m.PartBody | None) -> tuple[str, str, str, str]:
        """The mark and its style; what came of the call, in a few words, and their style."""
        if result is not None:
            told, metadata = result.data, _metadata(result)
            if told.get("is_error"):
                return "✗", "k.bad", told.get("summary") or "failed", "k.bad"
            is_bad = metadata.get("exit_code", 0) not in (0, None)
            came = told.get("summary") or ""
            return ("✗", "k.bad", came, "k.bad") if is_bad else ("●", "k.good", came, "k.muted")
        if self.view.waits(run_id, call_id):
            return "?", "k.warn", "waits for your answer", "k.warn"
        if not self._is_live(run_id):
            return "■", "k.warn", "cut off before it gave a result", "k.warn"
        return "○", "k.accent", "", "k.muted"

    def _result(self, key: str, display: str, result: m.PartBody) -> Iterator[RenderedLine]:
        if diff := diff_of(result.data.get("metadata") or ""):
            width = max(1, self.width - MARGIN)
            rows = diff_rows(diff, width)
            yield from self._folded(key, rows, lambda row: draw_row(row, self.renderer, width), DIFF_LINES, MARGIN)
        elif display != "compact" or result.data.get("is_error") or self.is_unfolded(key):
            yield from self.output(key, result.data["content"], DONE_LINES)

    def _is_live(self, run_id: str) -> bool:
        run = self.view.run(run_id)
        return run is not None and run.state != "ended"

    def _child(
        self, run_id: str, data: dict[str, Any], conversation: Conversation, entry: ConversationEntry
    ) -> m.RunBody | None:
        """The Run of the agent that this call began: the one with its prompt; if there are several, in their order."""
        prompt = _prompt(data)
        same = [child for child in self.view.children(run_id) if child.prompt == prompt]
        calls = [
            (other.body.id, part.data["id"])
            for other in (conversation.ordered() if len(same) > 1 else [entry])
            if other.body.run_id == run_id
            for part in other.body.parts
            if part.type == "tool_call" and part.data.get("display") == "agent" and _prompt(part.data) == prompt
        ]
        place = calls.index((entry.body.id, data["id"])) if (entry.body.id, data["id"]) in calls else 0
        return same[place] if place < len(same) else None

    # --- what is folded ---------------------------------------------------------------------------------------------

    def output(
        self, key: str, text: str, lines_max: int, *, from_end: bool = False, style: str = "k.muted"
    ) -> Iterator[RenderedLine]:
        if not text.strip():
            return
        rows = text.strip("\n").split("\n")
        width = max(1, self.width - INDENT)
        # A row of a megabyte is not drawn to show the beginning of it; just enough to see that there is more.
        cut = width * ((UNFOLDED_LINES_MAX if self.is_unfolded(key) else lines_max) + 2)
        yield from self._folded(
            key,
            rows,
            lambda row: self.renderer.text(row[-cut:] if from_end else row[:cut], style, width),
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
        """The first lines, or the last, and how many rows there are beside them. Only what is shown is drawn."""
        most = UNFOLDED_LINES_MAX if self.is_unfolded(key) else lines_max
        strips: list[Strip] = []
        drawn = 0
        for row in reversed(rows) if from_end else rows:
            # One row more takes no more room than to say that there is one.
            if len(strips) >= most and drawn < len(rows) - 1:
                break
            strips = [*draw(row), *strips] if from_end else [*strips, *draw(row)]
            drawn += 1
        hidden = len(rows) - drawn
        if len(strips) > most + 1:
            strips = strips[-most:] if from_end else strips[:most]
            hidden += 1
        lead = self.renderer.blank(indent)
        lines = [RenderedLine(Strip.join([lead, strip]), key, indent) for strip in strips]
        if hidden:
            more = f"{' ' * indent}… {hidden:,} more {'line' if hidden == 1 else 'lines'}"
            note = RenderedLine(self.renderer.line(self.width, (more, "k.muted")), key, indent)
            lines = [note, *lines] if from_end else [*lines, note]
        yield from lines

    # --- lines ------------------------------------------------------------------------------------------------------

    def headed(self, mark: str, style: str, name: str, about: str, came: tuple[str, str]) -> Strip:
        """The first line of a card. What came of it is not cut off by what it is about."""
        first, _, rest = clean(about).strip().partition("\n")
        name, came = shortened(name, self.width), (shortened(came[0], self.width), came[1])
        taken = MARGIN + (cell_len(name) + 1 if name else 0) + (cell_len(came[0]) + 2 if came[0] else 0)
        shown = _fitted(f"{first} …" if rest else first, max(ABOUT_WIDTH_MIN, self.width - taken))
        pieces = [(f"{mark} ", style), (f"{name} " if name else "", "k.name"), (shown, "k.text")]
        return self.renderer.line(self.width, *pieces, (f"  {came[0]}" if came[0] else "", came[1]))

    def noted(self, mark: str, style: str, words: str) -> Iterator[RenderedLine]:
        """Words of ours, with a mark in the margin."""
        for number, strip in enumerate(self.renderer.text(words, style, max(1, self.width - MARGIN))):
            margin = self.renderer.line(MARGIN, (mark if number == 0 else " ", style))
            yield RenderedLine(Strip.join([margin, strip]))


def _fitted(text: str, width: int) -> str:
    text = shortened(text, width)
    return text if cell_len(text) <= width else chop_cells(text, max(1, width - 1))[0] + "…"


def _child_state(child: m.RunBody) -> str:
    steps = f"{child.steps} step" if child.steps == 1 else f"{child.steps} steps"
    if child.state != "ended":
        return "waits" if child.state == "queued" else f"step {child.steps}" if child.steps else "starting"
    if child.outcome != "completed":
        return f"{child.outcome}, {steps}"
    if not child.started_at or not child.ended_at:
        return steps
    return f"{steps}, {max(0, child.ended_at - child.started_at) / 1000:.1f} s"


def _prompt(data: dict[str, Any]) -> str:
    return str(json_object(data["input"]).get("prompt") or "")


def _metadata(result: m.PartBody) -> dict[str, Any]:
    return json_object(result.data.get("metadata") or "")
