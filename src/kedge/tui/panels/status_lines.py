"""One line for the Run at work, one for the screen as a whole."""

from __future__ import annotations

from rich.cells import cell_len
from textual.content import Content
from textual.widget import Widget

from kedge.client.safe_text import one_line
from kedge.client.view.workspace_view import WorkspaceView
from kedge.tui.render.cell_width import Piece, cut, fitted
from kedge.wire import models as m

__all__ = ["Piece", "RunLine", "TopLine", "context_percent", "duration", "run_words"]

#: From here on the context is told in another colour: at about this much the history is summarised. Percent.
CONTEXT_FULL_PERCENT = 80
#: So many of the latest messages are asked how much the model holds: the last Run, and those that ended before they
#: asked a model anything. Items.
MESSAGES_LOOKED_AT_MAX = 200
#: The title of the session has so much of the top line at least. Cells.
TITLE_CELLS_MIN = 20
#: On the top line while approvals are skipped.
SKIPPED = "approvals are skipped"


class TopLine(Widget):
    """Where we are: directory and session on the left; model, context, cost and company on the right."""

    DEFAULT_CSS = "TopLine { height: 1; padding: 0 1; background: $panel; color: $foreground; }"

    def __init__(self) -> None:
        super().__init__()
        self._directory = self._model = ""
        self._session: m.SessionBody | None = None
        self._percent: int | None = None
        self._skip = False

    def tell(
        self, directory: str, session: m.SessionBody | None, model: str, percent: int | None, *, skip: bool = False
    ) -> None:
        """`percent`: how full the model's context is; None: that is not known. `skip`: approvals are skipped."""
        told = (directory, session, model, percent, skip)
        if told != (self._directory, self._session, self._model, self._percent, self._skip):
            self._directory, self._session, self._model, self._percent, self._skip = told
            self.refresh()

    def render(self) -> Content:
        width, session = self.content_size.width, self._session
        title = one_line(session.title, 60) if session and session.title else "new session"
        clients = session.attached_clients if session else 0
        right: list[Piece] = [
            (0, SKIPPED if self._skip else ""),
            (2, one_line(self._model, 100)),
            (1, self._context_words),
            (3, _dollars(session.usage.cost_usd) if session else ""),
            (4, f"{clients} clients here" if clients > 1 else ""),
        ]
        told = " · ".join(fitted(right, width - TITLE_CELLS_MIN))
        room = max(0, width - cell_len(told) - 2)
        left = cut("  ".join(fitted([(2, "kedge"), (1, one_line(self._directory, 200)), (0, title)], room, "  ")), room)
        line = f"{left}{' ' * max(2, width - cell_len(left) - cell_len(told))}{told}"
        drawn = Content(line)
        if self._is_full and self._context_words in told:
            start = line.rindex(self._context_words)
            drawn = drawn.stylize("bold $warning", start, start + len(self._context_words))
        if self._skip and told.startswith(SKIPPED):
            start = len(line) - len(told)
            drawn = drawn.stylize("bold $warning", start, start + len(SKIPPED))
        return drawn

    @property
    def _is_full(self) -> bool:
        return self._percent is not None and self._percent >= CONTEXT_FULL_PERCENT

    @property
    def _context_words(self) -> str:
        return "" if self._percent is None else f"ctx {self._percent} %{'!' if self._is_full else ''}"


class RunLine(Widget):
    """The Run at work: how far it is, and what Esc would stop."""

    DEFAULT_CSS = """
    RunLine { height: 1; padding: 0 1; color: $accent; display: none; }
    RunLine.live { display: block; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._pieces: list[Piece] = []

    def tell(self, pieces: list[Piece]) -> None:
        self.set_class(bool(pieces), "live")
        if pieces != self._pieces:
            self._pieces = pieces
            self.refresh()

    def render(self) -> Content:
        width = self.content_size.width
        return Content(cut(" · ".join(fitted(self._pieces, width)), width))


def run_words(
    view: WorkspaceView, session_id: str, now_ms: int, *, again: bool, sending: int, editing: bool = False
) -> list[Piece]:
    """What is at work and what a key would stop: the same words that the key goes by. `editing`: Esc is for that."""
    active, queue = view.active(session_id), view.queue(session_id)
    if active is None and not sending and not queue:
        return []
    if again:
        count = len(queue) + sending + (active is not None)
        words = f"esc again stops all {count} accepted so far" if count > 1 else "stopping; esc again makes sure"
        return [(0, words)]
    pieces: list[Piece] = []
    if active is None:
        pieces.append((1, "● sending" if sending else "● starting"))
    else:
        pieces += _active_words(active, now_ms, waits=any(ask.run_id == active.run_id for ask in view.asks()))
        pieces += _retry_words(view, session_id, active.run_id)
    if queue:
        pieces.append((2, f"{len(queue)} queued"))
    if not editing and (active is not None or sending):
        pieces.append((0, "esc stops this run"))
    return pieces


def _active_words(active: m.RunBody, now_ms: int, *, waits: bool) -> list[Piece]:
    seconds = max(0, now_ms - (active.started_at or active.accepted_at)) // 1000
    tokens, cost = active.usage.input_tokens + active.usage.output_tokens, active.usage.cost_usd
    return [
        (1, "● stopping" if active.stopping else "● waits for you" if waits else "● working"),
        (5, f"step {active.steps}" if active.steps else "starting"),
        (4, duration(seconds)),
        (7, f"{tokens:,} tokens" if active.usage.input_tokens else ""),
        (6, _dollars(cost)),
    ]


def _retry_words(view: WorkspaceView, session_id: str, run_id: str) -> list[Piece]:
    conversation = view.conversations.get(session_id)
    told = conversation.retries.get(run_id) if conversation else None
    if told is None:
        return []
    attempt = f"attempt {told.attempt} of {told.attempts_max} in {told.wait_s:g} s"
    return [(8, one_line(told.error, 40)), (3, attempt)]


def context_percent(view: WorkspaceView, session_id: str, model: m.ModelBody | None) -> int | None:
    """How full the model's context was at the last request of this session; None: that is not known."""
    conversation = view.conversations.get(session_id)
    if conversation is None or model is None or not model.context_window:
        return None
    asked = ""
    for entry in reversed(conversation.ordered()[-MESSAGES_LOOKED_AT_MAX:]):
        if entry.body.run_id != asked and (run := view.run(entry.body.run_id)) and run.context_tokens:
            return min(100, round(100 * run.context_tokens / model.context_window))
        asked = entry.body.run_id
    return None


def _dollars(cost: float) -> str:
    """Less than a cent is not worth a word."""
    return f"${cost:.2f}" if cost >= 0.005 else ""


def duration(seconds: int) -> str:
    return f"{seconds} s" if seconds < 60 else f"{seconds // 60} min {seconds % 60} s"
