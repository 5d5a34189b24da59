"""Messages as lines of the screen. Each line knows what a click on it unfolds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from textual.strip import Strip

from kedge.client.view.conversation import Conversation, ConversationEntry
from kedge.client.view.workspace_view import WorkspaceView
from kedge.tui.render.markdown import GrowingMarkdown
from kedge.tui.render.renderer import Renderer
from kedge.tui.render.tool_cards import DONE_LINES, MARGIN, RenderedLine, ToolCards
from kedge.wire import models as m

#: Of a thought that is being thought the end is shown. Lines.
THOUGHT_LINES = 3


class MessageRenderer(ToolCards):
    """Draws at one width with one pen, and remembers what it has drawn of texts that grow."""

    def __init__(self, view: WorkspaceView, renderer: Renderer, width: int) -> None:
        super().__init__(view, renderer, width)
        #: Messages drawn so far: what this has cost.
        self.drawn_messages = 0
        self._growing: dict[tuple[str, int], GrowingMarkdown] = {}

    def message(self, entry: ConversationEntry, conversation: Conversation) -> list[RenderedLine]:
        self.drawn_messages += 1
        body = entry.body
        if body.role == "tool":
            return []  # what came of a call is drawn where the call is
        drawn = list(self._prompt(body)) if body.role == "user" else list(self._answer(entry, conversation))
        if entry.is_finished:
            for number in range(len(body.parts)):
                self._growing.pop((body.id, number), None)
        return [*drawn, RenderedLine(self.renderer.blank(self.width))] if drawn else []

    # --- people -----------------------------------------------------------------------------------------------------

    def _prompt(self, body: m.MessageBody) -> Iterator[RenderedLine]:
        for part in body.parts:
            match part.type:
                case "text":
                    for strip in self.renderer.text(part.data["text"].strip("\n"), "k.user", self.width - MARGIN):
                        yield RenderedLine(Strip.join([self.renderer.line(MARGIN, ("▌", "k.accent")), strip]))
                case "binary" | "image_url":
                    name = part.data.get("path") or part.data.get("url", "")[:60] or "without a name"
                    yield RenderedLine(
                        self.renderer.line(self.width, ("▌ ", "k.accent"), (f"attached: {name}", "k.muted"))
                    )
                case "shell_command":
                    yield from self._shell(body.id, part.data)

    def _shell(self, message_id: str, data: dict[str, Any]) -> Iterator[RenderedLine]:
        code, key = data["exit_code"], f"shell:{message_id}"
        came = ("exit 0", "k.muted") if code == 0 else (f"exit {code}", "k.bad")
        yield RenderedLine(self.headed("!", "k.accent", "", data["command"], came), key)
        yield from self.output(key, data["output"], DONE_LINES)

    # --- the assistant ----------------------------------------------------------------------------------------------

    def _answer(self, entry: ConversationEntry, conversation: Conversation) -> Iterator[RenderedLine]:
        body = entry.body
        # Cards of one line that follow each other stand close: a list of what was done.
        is_first, is_close = True, False
        for number, part in enumerate(body.parts):
            lines = list(self._part(entry, number, part, conversation))
            if not lines:
                continue
            is_short = part.type == "tool_call" and len(lines) == 1
            if not is_first and not (is_short and is_close):
                yield RenderedLine(self.renderer.blank(self.width))
            is_first, is_close = False, is_short
            yield from lines
        retry = conversation.retries.get(body.run_id)
        if retry is not None and not entry.is_finished:
            words = f"{retry.error} Attempt {retry.attempt} of {retry.attempts_max} follows in {retry.wait_s:g} s."
            yield from self.noted("↻", "k.warn", words)
        if body.is_summary and entry.is_finished:
            yield from self.noted("─", "k.muted", "the history above was summarised; models see this instead")

    def _part(
        self, entry: ConversationEntry, number: int, part: m.PartBody, conversation: Conversation
    ) -> Iterator[RenderedLine]:
        data = part.data
        match part.type:
            case "text" if data["text"].strip():
                growing = self._growing.setdefault(
                    (entry.body.id, number), GrowingMarkdown(self.renderer, max(1, self.width - MARGIN))
                )
                is_over = entry.is_finished or number < len(entry.body.parts) - 1
                for row in growing.rows(data["text"].lstrip("\n"), is_over=is_over):
                    yield RenderedLine(Strip.join([self.renderer.blank(MARGIN), row.strip]), lead=MARGIN + row.lead)
            case "reasoning" if data.get("thinking", "").strip():
                yield from self._thought(f"{entry.body.id}:{number}", entry, number, data)
            case "tool_call":
                yield from self.call(entry, data, conversation)
            case "finish":
                yield from self._finish(entry.body.run_id, data)

    def _thought(self, key: str, entry: ConversationEntry, number: int, data: dict[str, Any]) -> Iterator[RenderedLine]:
        is_over = number < len(entry.body.parts) - 1 or entry.is_finished
        seconds = (data.get("finished_at", 0) - data.get("started_at", 0)) / 1000 if data.get("started_at") else 0
        took = f" for {seconds:.0f} s" if is_over and seconds >= 1 else ""
        said = f"thought{took}" if is_over else "thinking"
        mark = "▾" if self.is_unfolded(key) else "▸"
        yield RenderedLine(self.renderer.line(self.width, (f"{mark} {said}", "k.thought")), key)
        thinking = data["thinking"].strip()
        if self.is_unfolded(key):
            yield from (self._thinking(strip, key) for strip in self._thought_strips(thinking))
        elif not is_over:
            end = thinking[-THOUGHT_LINES * self.width :]
            yield from (self._thinking(strip, key) for strip in self._thought_strips(end)[-THOUGHT_LINES:])

    def _thought_strips(self, text: str) -> list[Strip]:
        return self.renderer.text(text, "k.thought", self.width, MARGIN + 2)

    @staticmethod
    def _thinking(strip: Strip, key: str) -> RenderedLine:
        return RenderedLine(strip, key, MARGIN + 2)

    # --- ends -------------------------------------------------------------------------------------------------------

    def _finish(self, run_id: str, data: dict[str, Any]) -> Iterator[RenderedLine]:
        said, details = data.get("message") or "", data.get("details") or ""
        match data["reason"]:
            case "end_turn" | "tool_use":
                return
            case "canceled":
                yield from self.noted("■", "k.warn", "canceled")
            case "error" if details and said != "interrupted":
                yield from self.noted("✗", "k.bad", f"failed: {details}")
                yield from self.noted(" ", "k.muted", "Send a prompt to go on from here; ctrl-l chooses another model.")
            case "max_tokens":
                yield from self.noted("■", "k.warn", "the answer reached its length limit; ask to go on")
            case "content_filter":
                yield from self.noted("■", "k.warn", "the provider stopped the answer (content filter)")
            case _:
                why = details or said
                yield from self.noted("■", "k.warn", f"interrupted: {why}" if why else "interrupted")
