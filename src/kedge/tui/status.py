"""One line for the Run at work, one for the screen as a whole."""

from __future__ import annotations

from textual.widgets import Static

from kedge.client.text import one_line
from kedge.tui.model import View
from kedge.wire import models as m


class TopLine(Static):
    """Where we are: directory and session on the left; model, cost and company on the right."""

    DEFAULT_CSS = "TopLine { height: 1; padding: 0 1; background: $panel; color: $foreground; }"

    def tell(self, directory: str, session: m.SessionBody | None, model: str, context: str) -> None:
        title = one_line(session.title, 60) if session and session.title else "new session"
        right = [model, context]
        if session is not None and session.cost:
            right.append(f"${session.cost:.2f}")
        if session is not None and session.attached_clients > 1:
            right.append(f"{session.attached_clients} clients here")
        told = " · ".join(word for word in right if word)
        left = f"kedge  {directory}  {title}"
        room = max(1, self.size.width - 2 - len(told) - 2)
        left = left if len(left) <= room else left[: room - 1] + "…"
        self.update(f"{left}{' ' * max(2, self.size.width - 2 - len(left) - len(told))}{told}")


class RunLine(Static):
    """The Run at work: how far it is, and what Esc would stop."""

    DEFAULT_CSS = """
    RunLine { height: 1; padding: 0 1; color: $accent; display: none; }
    RunLine.live { display: block; }
    """

    def tell(self, words: str) -> None:
        self.set_class(bool(words), "live")
        self.update(words)


def run_words(view: View, session_id: str, now_ms: int, *, again: bool, sending: int) -> str:
    """What is at work and what a key would stop: the same words that the key goes by."""
    active, queue = view.active(session_id), view.queue(session_id)
    if active is None and not sending and not queue:
        return ""
    if again:
        count = len(queue) + sending + (active is not None)
        return f"esc again stops all {count} accepted so far" if count > 1 else "stopping; esc again makes sure"
    words: list[str] = []
    if active is None:
        words.append("● sending")
    else:
        seconds = max(0, now_ms - (active.started_at or active.accepted_at)) // 1000
        words.append("● stopping" if active.stopping else "● working")
        words.append(f"step {active.steps}" if active.steps else "starting")
        words.append(duration(seconds))
        if active.usage.input_tokens:
            words.append(f"{active.usage.input_tokens + active.usage.output_tokens:,} tokens")
        if active.usage.cost_usd:
            words.append(f"${active.usage.cost_usd:.2f}")
        if retry := _retry(view, session_id, active.run_id):
            words.append(retry)
    if queue:
        words.append(f"{len(queue)} queued")
    words.append("esc stops this run")
    return " · ".join(words)


def _retry(view: View, session_id: str, run_id: str) -> str:
    conversation = view.conversations.get(session_id)
    told = conversation.retries.get(run_id) if conversation else None
    if told is None:
        return ""
    return f"{one_line(told.error, 40)}; attempt {told.attempt} of {told.attempts_max} in {told.wait_s:g} s"


def duration(seconds: int) -> str:
    return f"{seconds} s" if seconds < 60 else f"{seconds // 60} min {seconds % 60} s"
