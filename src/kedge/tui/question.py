"""What a model asks people: one question after the other."""

from __future__ import annotations

from textual.containers import Vertical
from textual.message import Message

from kedge.tui.model import Ask
from kedge.wire import models as m


class QuestionPanel(Vertical):
    DEFAULT_CSS = "QuestionPanel { height: auto; display: none; }"

    class Answered(Message):
        """All questions of a batch are answered; None: people would rather not."""

        def __init__(self, batch_id: str, responses: list[m.QuestionResponse] | None) -> None:
            super().__init__()
            self.batch_id, self.responses = batch_id, responses

    def tell(self, asks: list[Ask], session_id: str) -> None: ...
