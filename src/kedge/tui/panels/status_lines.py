"""The top line, and the line of the active Run."""

from __future__ import annotations

from rich.cells import cell_len
from textual.content import Content
from textual.widget import Widget

from kedge.client.safe_text import one_line
from kedge.client.view.number_text import duration
from kedge.client.view.workspace_view import WorkspaceView
from kedge.core.modes import Mode
from kedge.tui.render.cell_width import Piece, cut, fitted
from kedge.wire import models as m

#: The context is highlighted from here on: at about this level the history is summarised. Percent.
CONTEXT_FULL_PERCENT = 80
#: Latest messages searched for the last context size. Runs that ended before a model request have none. Items.
MESSAGES_SEARCHED_MAX = 200
#: Minimum width of the session title in the top line. Cells.
TITLE_CELLS_MIN = 20
#: The modes as the top line shows them, in words. The usual one is not shown.
MODE_WORDS: dict[Mode, str] = {
    "plan": "plan: read-only",
    "ask": "",
    "edits": "edits pass",
    "auto": "auto: sandboxed",
    "yolo": "yolo: nothing asks",
}


class TopLine(Widget):
    """Directory and session on the left; model, context, cost and clients on the right."""

    DEFAULT_CSS = "TopLine { height: 1; padding: 0 1; background: $panel; color: $foreground; }"

    def __init__(self) -> None:
        super().__init__()
        self._directory = self._model = ""
        self._session: m.SessionBody | None = None
        self._percent: int | None = None

    def set_state(self, directory: str, session: m.SessionBody | None, model: str, percent: int | None) -> None:
        """`percent`: fill level of the model's context, None if unknown."""
        state = (directory, session, model, percent)
        if state != (self._directory, self._session, self._model, self._percent):
            self._directory, self._session, self._model, self._percent = state
            self.refresh()

    def render(self) -> Content:
        width, session = self.content_size.width, self._session
        title = one_line(session.title, 60) if session and session.title else "new session"
        clients = session.attached_clients if session else 0
        mode = MODE_WORDS[session.mode] if session else ""
        right: list[Piece] = [
            (0, mode),
            (2, one_line(self._model, 100)),
            (2, f"effort {session.effort}" if session and session.effort else ""),
            (1, self._context_text),
            (3, _dollars(session.usage.cost_usd) if session else ""),
            (4, f"{clients} clients" if clients > 1 else ""),
        ]
        right_text = " · ".join(fitted(right, width - TITLE_CELLS_MIN))
        room = max(0, width - cell_len(right_text) - 2)
        left = cut("  ".join(fitted([(2, "kedge"), (1, one_line(self._directory, 200)), (0, title)], room, "  ")), room)
        line = f"{left}{' ' * max(2, width - cell_len(left) - cell_len(right_text))}{right_text}"
        drawn = Content(line)
        if self._is_full and self._context_text in right_text:
            start = line.rindex(self._context_text)
            drawn = drawn.stylize("bold $warning", start, start + len(self._context_text))
        if mode and right_text.startswith(mode):
            start = len(line) - len(right_text)
            style = "bold $warning" if session and session.mode == "yolo" else "bold"
            drawn = drawn.stylize(style, start, start + len(mode))
        return drawn

    @property
    def _is_full(self) -> bool:
        return self._percent is not None and self._percent >= CONTEXT_FULL_PERCENT

    @property
    def _context_text(self) -> str:
        return "" if self._percent is None else f"ctx {self._percent} %{'!' if self._is_full else ''}"


class RunLine(Widget):
    """The progress of the active Run, and what Esc stops."""

    DEFAULT_CSS = """
    RunLine { height: 1; padding: 0 1; color: $accent; display: none; }
    RunLine.live { display: block; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._pieces: list[Piece] = []

    def set_pieces(self, pieces: list[Piece]) -> None:
        self.set_class(bool(pieces), "live")
        if pieces != self._pieces:
            self._pieces = pieces
            self.refresh()

    def render(self) -> Content:
        width = self.content_size.width
        return Content(cut(" · ".join(fitted(self._pieces, width)), width))


def run_status(
    view: WorkspaceView, session_id: str, now_ms: int, *, can_stop_all: bool, sending: int, editing: bool = False
) -> list[Piece]:
    """Describe the active Run and what Esc stops. `editing`: Esc ends the editing instead."""
    active, queue = view.active(session_id), view.queue(session_id)
    if active is None and not sending and not queue:
        return []
    if can_stop_all:
        count = len(queue) + sending + (active is not None)
        text = f"esc again: stop all {count} runs" if count > 1 else "stopping; esc again: stop all runs"
        return [(0, text)]
    pieces: list[Piece] = []
    if active is None:
        pieces.append((1, "● sending" if sending else "● starting"))
    else:
        pieces += _active_status(active, now_ms, is_waiting=any(ask.run_id == active.run_id for ask in view.asks()))
        pieces += _retry_status(view, session_id, active.run_id)
    if queue:
        pieces.append((2, f"{len(queue)} queued"))
    if not editing and (active is not None or sending):
        pieces.append((0, "esc: stop this run"))
    return pieces


def _active_status(active: m.RunBody, now_ms: int, *, is_waiting: bool) -> list[Piece]:
    seconds = max(0, now_ms - (active.started_at or active.accepted_at)) // 1000
    tokens, cost = active.usage.input_tokens + active.usage.output_tokens, active.usage.cost_usd
    return [
        (1, "● stopping" if active.stopping else "● waiting for you" if is_waiting else "● working"),
        (5, f"step {active.steps}" if active.steps else "starting"),
        (4, duration(seconds)),
        (7, f"{tokens:,} tokens" if active.usage.input_tokens else ""),
        (6, _dollars(cost)),
    ]


def _retry_status(view: WorkspaceView, session_id: str, run_id: str) -> list[Piece]:
    conversation = view.conversations.get(session_id)
    retry = conversation.retries.get(run_id) if conversation else None
    if retry is None:
        return []
    attempt = f"attempt {retry.attempt} of {retry.attempts_max} in {retry.wait_s:g} s"
    return [(8, one_line(retry.error, 40)), (3, attempt)]


def context_percent(view: WorkspaceView, session_id: str, model: m.ModelBody | None) -> int | None:
    """Return how full the model's context was at the last request of the session; None if unknown."""
    conversation = view.conversations.get(session_id)
    if conversation is None or model is None or not model.context_window:
        return None
    checked = ""
    for entry in reversed(conversation.ordered()[-MESSAGES_SEARCHED_MAX:]):
        if entry.body.run_id != checked and (run := view.run(entry.body.run_id)) and run.context_tokens:
            return min(100, round(100 * run.context_tokens / model.context_window))
        checked = entry.body.run_id
    return None


def _dollars(cost: float) -> str:
    """Format a cost; empty below half a cent."""
    return f"${cost:.2f}" if cost >= 0.005 else ""
