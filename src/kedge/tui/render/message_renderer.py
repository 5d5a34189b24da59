"""Messages as lines of the screen. Each line has the fold that a click toggles."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from textual.strip import Strip

from kedge.client.safe_text import one_line
from kedge.client.view.author_text import author_name, by_author
from kedge.client.view.conversation import Conversation, ConversationEntry
from kedge.client.view.workspace_view import WorkspaceView
from kedge.core.reversal import Reversal, reversal_lines
from kedge.tui.render.markdown import GrowingMarkdown
from kedge.tui.render.renderer import Renderer
from kedge.tui.render.tool_cards import DONE_LINES, MARGIN, FoldState, RenderedLine, ToolCards
from kedge.wire import models as m

#: The visible end of streaming reasoning. Lines.
THOUGHT_LINES = 3
#: The beginning of a prompt that identifies it. Characters.
PROMPT_CHARS_MAX = 60


class MessageRenderer:
    """Renders messages at one width, and caches the finished blocks of streaming texts."""

    def __init__(self, view: WorkspaceView, renderer: Renderer, width: int, folds: FoldState | None = None) -> None:
        self.renderer, self.width = renderer, width
        self.folds = folds or FoldState()
        self._view = view
        self._cards = ToolCards(view, renderer, width, self.folds)
        #: Number of rendered messages, as a measure of work.
        self.drawn_messages = 0
        self._growing: dict[tuple[str, int], GrowingMarkdown] = {}

    def message(self, entry: ConversationEntry, conversation: Conversation) -> list[RenderedLine]:
        self.drawn_messages += 1
        body = entry.body
        if body.role == "tool":
            return []  # a result is rendered with its call
        drawn = list(self._prompt(body)) if body.role == "user" else list(self._answer(entry, conversation))
        if entry.is_finished:
            for number in range(len(body.parts)):
                self._growing.pop((body.id, number), None)
        return [*drawn, RenderedLine(self.renderer.blank(self.width))] if drawn else []

    # --- the user -----------------------------------------------------------------------------------------------------

    def _prompt(self, body: m.MessageBody) -> Iterator[RenderedLine]:
        run = self._view.run(body.run_id)
        if run is not None and (author := author_name(run.author)):
            yield RenderedLine(self.renderer.line(self.width, ("▌ ", "k.accent"), (author, "k.muted")))
        for part in body.parts:
            match part.type:
                case "text":
                    for strip in self.renderer.text(part.data["text"].strip("\n"), "k.user", self.width - MARGIN):
                        yield RenderedLine(Strip.join([self.renderer.line(MARGIN, ("▌", "k.accent")), strip]))
                case "file" | "image_url":
                    name = part.data.get("path") or part.data.get("url", "")[:60] or "unnamed"
                    yield RenderedLine(
                        self.renderer.line(self.width, ("▌ ", "k.accent"), (f"attached: {name}", "k.muted"))
                    )
                case "shell_command":
                    yield from self._shell(body.id, part.data)
                case "reversal":
                    yield from self._reversal(part.data)

    def _shell(self, message_id: str, data: dict[str, Any]) -> Iterator[RenderedLine]:
        code, key = data["exit_code"], f"shell:{message_id}"
        summary = ("exit 0", "k.muted") if code == 0 else (f"exit {code}", "k.bad")
        yield RenderedLine(self._cards.head("!", "k.accent", "", data["command"], summary), key)
        yield from self._cards.output(key, data["output"], DONE_LINES)

    def _reversal(self, data: dict[str, Any]) -> Iterator[RenderedLine]:
        reversal = msgspec.convert(data, Reversal)
        first, *others = reversal_lines(reversal)
        yield from self._cards.note("↶" if reversal.action != "redo" else "↷", "k.accent", first)
        for line in others:
            yield from self._cards.note(" ", "k.muted", line)

    # --- the assistant ----------------------------------------------------------------------------------------------

    def _answer(self, entry: ConversationEntry, conversation: Conversation) -> Iterator[RenderedLine]:
        body = entry.body
        # Consecutive cards of one line have no blank lines between them.
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
            text = f"{retry.error} Attempt {retry.attempt} of {retry.attempts_max} in {retry.wait_s:g} s."
            yield from self._cards.note("↻", "k.warn", text)
        if body.is_summary and entry.is_finished:
            yield from self._cards.note(
                "─", "k.muted", "the messages above were summarised; the model sees this summary instead"
            )

    def _part(
        self, entry: ConversationEntry, number: int, part: m.PartBody, conversation: Conversation
    ) -> Iterator[RenderedLine]:
        data = part.data
        match part.type:
            case "text" if data["text"].strip():
                growing = self._growing.setdefault(
                    (entry.body.id, number), GrowingMarkdown(self.renderer, max(1, self.width - MARGIN))
                )
                is_complete = entry.is_finished or number < len(entry.body.parts) - 1
                for row in growing.rows(data["text"].lstrip("\n"), is_complete=is_complete):
                    yield RenderedLine(Strip.join([self.renderer.blank(MARGIN), row.strip]), lead=MARGIN + row.lead)
            case "reasoning" if data.get("thinking", "").strip():
                yield from self._thought(f"{entry.body.id}:{number}", entry, number, data)
            case "tool_call":
                yield from self._cards.call(entry, data, conversation)
            case "finish":
                yield from self._finish(entry, data, conversation)

    def _thought(self, key: str, entry: ConversationEntry, number: int, data: dict[str, Any]) -> Iterator[RenderedLine]:
        is_complete = number < len(entry.body.parts) - 1 or entry.is_finished
        seconds = (data.get("finished_at", 0) - data.get("started_at", 0)) / 1000 if data.get("started_at") else 0
        duration = f" for {seconds:.0f} s" if is_complete and seconds >= 1 else ""
        label = f"thought{duration}" if is_complete else "thinking"
        mark = "▾" if self.folds.is_open(key) else "▸"
        yield RenderedLine(self.renderer.line(self.width, (f"{mark} {label}", "k.thought")), key)
        thinking = data["thinking"].strip()
        if self.folds.is_open(key):
            yield from (self._thinking(strip, key) for strip in self._thought_strips(thinking))
        elif not is_complete:
            end = thinking[-THOUGHT_LINES * self.width :]
            yield from (self._thinking(strip, key) for strip in self._thought_strips(end)[-THOUGHT_LINES:])

    def _thought_strips(self, text: str) -> list[Strip]:
        return self.renderer.text(text, "k.thought", self.width, MARGIN + 2)

    @staticmethod
    def _thinking(strip: Strip, key: str) -> RenderedLine:
        return RenderedLine(strip, key, MARGIN + 2)

    # --- ends -------------------------------------------------------------------------------------------------------

    def _finish(
        self, entry: ConversationEntry, data: dict[str, Any], conversation: Conversation
    ) -> Iterator[RenderedLine]:
        message, details = data.get("message") or "", data.get("details") or ""
        match data["reason"]:
            case "end_turn" | "tool_use":
                return
            case "canceled":
                run = self._view.run(entry.body.run_id)
                cancelled = f"cancelled{by_author(run.cancelled_by) if run is not None else ''}"
                prompt = _distant_prompt(entry, conversation)
                yield from self._cards.note("■", "k.warn", f"{cancelled}: {prompt}" if prompt else cancelled)
            case "error" if details and message != "interrupted":
                yield from self._cards.note("✗", "k.bad", f"failed: {details}")
                yield from self._cards.note(
                    " ", "k.muted", "Send a prompt to continue, or press ctrl-l to choose another model."
                )
            case "max_tokens":
                yield from self._cards.note(
                    "■", "k.warn", "the answer reached its length limit; send a prompt to continue"
                )
            case "content_filter":
                yield from self._cards.note("■", "k.warn", "the provider stopped the answer (content filter)")
            case _:
                cause = details or message
                yield from self._cards.note("■", "k.warn", f"interrupted: {cause}" if cause else "interrupted")


def _distant_prompt(entry: ConversationEntry, conversation: Conversation) -> str:
    """Return the prompt of this answer if that of another Run is between them; else an empty text.

    A cancel adds the prompts that it drops from the queue before the active Run has ended."""
    is_distant = False
    for other in reversed(conversation.ordered()):
        if other.order >= entry.order or other.body.role != "user" or not other.body.run_id:
            continue
        if other.body.run_id == entry.body.run_id:
            text = "".join(part.data["text"] for part in other.body.parts if part.type == "text")
            return one_line(text, PROMPT_CHARS_MAX) if is_distant else ""
        is_distant = True
    return ""
