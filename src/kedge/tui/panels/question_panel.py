"""The question panel: questions of the model one after the other, answered together.

The panel takes the focus only when the user moves it there: typing continues in the prompt until then.
"""

from __future__ import annotations

from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from kedge.client.safe_text import visible_line
from kedge.tui.panels.full_text import FullText, ask_lines_max, folded_prose
from kedge.tui.panels.settle_timer import SettleTimer
from kedge.tui.render.themes import Theme
from kedge.wire import models as m
from kedge.wire.limits import MESSAGE_CHARS_MAX

#: Ids of the rows below the options.
_OWN, _DECLINE = "own", "decline"


class QuestionChoices(OptionList):
    """The options of a question, followed by a free-text answer and declining."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space", "mark", show=False),
        Binding("left", "back", show=False),
        *(Binding(str(number), f"number({number})", show=False) for number in range(1, 10)),
    ]

    class Chosen(Message):
        def __init__(self, row: str, *, marks: bool) -> None:
            super().__init__()
            #: `marks`: toggle one of several options; else choose it as the answer.
            self.row, self.marks = row, marks

    class Back(Message):
        """The user requested the previous question."""

    def _post(self, number: int | None, *, marks: bool) -> None:
        if number is not None and number < self.option_count:
            self.highlighted = number
            self.post_message(self.Chosen(self.get_option_at_index(number).id or "", marks=marks))

    def action_mark(self) -> None:
        self._post(self.highlighted, marks=True)

    def action_number(self, number: int) -> None:
        self._post(number - 1, marks=True)

    def action_back(self) -> None:
        self.post_message(self.Back())

    def on_click(self, event: events.Click) -> None:
        event.prevent_default()
        self._post(event.style.meta.get("option"), marks=True)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self._post(event.option_index, marks=False)


class OwnAnswer(Input):
    """An answer in the user's own words."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("up", "to_choices", show=False)]

    def action_to_choices(self) -> None:
        self.screen.query_one(QuestionChoices).focus()


class QuestionPanel(Vertical):
    DEFAULT_CSS = """
    QuestionPanel { height: auto; border: round $accent; padding: 0 1; display: none; border-title-color: $accent;
                    border-subtitle-color: $muted; }
    QuestionPanel.asked { display: block; }
    QuestionPanel:focus-within { border: heavy $accent; }
    QuestionPanel QuestionChoices { height: auto; border: none; padding: 0; background: $background; }
    QuestionPanel QuestionChoices:focus { border: none; background: $background; }
    QuestionPanel OwnAnswer { display: none; border: none; padding: 0; height: 1; background: $surface; }
    QuestionPanel OwnAnswer.shown { display: block; }
    QuestionPanel #keys { height: auto; color: $muted; }
    QuestionPanel.settling #keys { text-style: dim; }
    """

    class Answered(Message):
        """All questions of a batch are answered; None: the user declines to answer."""

        def __init__(self, batch_id: str, responses: list[m.QuestionResponse] | None) -> None:
            super().__init__()
            self.batch_id, self.responses = batch_id, responses

    class Left(Message):
        """The panel no longer needs the focus."""

    def __init__(self, theme: Theme) -> None:
        super().__init__(id="question")
        self._full_text = FullText(theme)
        self._settle_timer = SettleTimer(self, self._update_settled)
        #: The batch on the screen.
        self.asked: m.QuestionBatch | None = None
        self._origin, self._is_sent = "", False
        self._number = 0
        self._marked: list[set[str]] = []
        self._own_answers: list[str] = []

    def compose(self) -> ComposeResult:
        yield self._full_text
        yield QuestionChoices(markup=False, compact=True)
        yield OwnAnswer(compact=True, placeholder="your answer", max_length=MESSAGE_CHARS_MAX)
        yield Static(id="keys", markup=False)

    def on_mount(self) -> None:
        self.app.screen_change_signal.subscribe(self, lambda _: self._settle_timer.on_screen_change())

    def set_theme(self, theme: Theme) -> None:
        self._full_text.set_theme(theme)

    # --- display ----------------------------------------------------------------------------------------------

    def show_ask(self, batch: m.QuestionBatch | None, origin: str = "", *, is_sent: bool = False) -> None:
        """Show a batch of questions, or none. `origin`: its number among several, and its session."""
        previous, self.asked = self.asked, batch
        was_sent, self._is_sent, self._origin = self._is_sent, is_sent, origin
        had_focus = self.has_focus_within
        self.set_class(batch is not None, "asked")
        if (batch is None or is_sent) and had_focus:
            self.post_message(self.Left())
        if batch is None:
            self._settle_timer.stop()
        elif previous is None or previous.id != batch.id:
            self._marked = [set() for _ in batch.questions]
            self._own_answers = ["" for _ in batch.questions]
            self._ask(0)
        else:
            self._update_title()
            if was_sent != is_sent:
                self._update_keys()

    def take_focus(self) -> bool:
        """Focus the answer; return whether there is a question to answer."""
        if self.asked is None or self._is_sent:
            return False
        self.query_one(QuestionChoices if self._question.options else OwnAnswer).focus()
        return True

    def page(self, by: int) -> None:
        self._full_text.page(by)

    @property
    def _question(self) -> m.QuestionBody:
        assert self.asked is not None, "called only while a batch is shown"
        return self.asked.questions[self._number]

    def _ask(self, number: int) -> None:
        had_focus = self.has_focus_within
        self._number = number
        question = self._question
        self._full_text.show(lambda width: list(folded_prose(question.question, width, "k.text")), *self._space())
        choices, own = self.query_one(QuestionChoices), self.query_one(OwnAnswer)
        choices.styles.max_height = ask_lines_max(self.app.size.height)
        self._update_options(0)
        own.value = self._own_answers[number]
        own.set_class(bool(own.value) or not question.options, "shown")
        self._update_title()
        self._update_keys()
        self._settle_timer.start()
        if had_focus:
            self.take_focus()

    def _update_title(self) -> None:
        count = len(self.asked.questions) if self.asked else 0
        which = f"Question {self._number + 1} of {count}" if count > 1 else "Question"
        self.border_title = Content(f"{which}{self._origin}")

    def _update_options(self, highlighted: int | None) -> None:
        choices, question = self.query_one(QuestionChoices), self._question
        marked = self._marked[self._number]
        rows: list[tuple[str, Content]] = []
        for option in question.options:
            box = ("[x] " if option.id in marked else "[ ] ") if question.multiple else ""
            description = f"  {visible_line(option.description)}" if option.description else ""
            label = Content.styled(visible_line(option.label), "bold")
            rows.append((option.id, Content.assemble(box, label, description)))
        if question.options:
            rows.append((_OWN, Content("type another answer")))
        rows.append((_DECLINE, Content("decline to answer")))
        choices.clear_options()
        choices.add_options([Option(Content.assemble(f"{n}  ", text), row) for n, (row, text) in enumerate(rows, 1)])
        choices.highlighted = highlighted

    def _update_keys(self) -> None:
        if self.asked is None:
            return
        if self._is_sent:
            text = "sending your answer …"
        elif not self.has_focus_within:
            text = "tab or ctrl-a: answer"
        elif self.query_one(OwnAnswer).has_focus:
            text = "enter: answer, or skip if empty · up: options · tab: back to the prompt"
        else:
            choose = "space or number: mark · enter: answer" if self._question.multiple else "enter or number: answer"
            back = " · left: previous question" if self._number else ""
            text = f"up, down · {choose}{back} · tab: back to the prompt"
        self.query_one("#keys", Static).update(text)

    def _space(self) -> tuple[int, int]:
        """Return columns and lines for the question: the options need room too."""
        width, height = self.app.size
        return width - 4, max(2, height // 4)

    def on_resize(self) -> None:
        if self.asked is not None:
            self._full_text.fit(*self._space())

    def _update_settled(self) -> None:
        self.set_class(not self._settle_timer.is_settled, "settling")

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        if self.asked is None or self._is_sent:
            self.post_message(self.Left())  # the terminal restores the focus to a panel that is done
        else:
            self.call_after_refresh(self._update_keys)

    def on_descendant_blur(self, event: events.DescendantBlur) -> None:
        self.call_after_refresh(self._update_keys)

    # --- answers -------------------------------------------------------------------------------------------

    def can_answer(self) -> bool:
        """Return whether keys take effect: the question has settled and is not answered yet."""
        return self.asked is not None and not self._is_sent and self._settle_timer.is_settled

    def on_question_choices_chosen(self, event: QuestionChoices.Chosen) -> None:
        if not self.can_answer():
            return
        marked = self._marked[self._number]
        if event.row == _DECLINE:
            self.action_decline()
        elif event.row == _OWN:
            own = self.query_one(OwnAnswer)
            own.add_class("shown")
            own.focus()
        elif not self._question.multiple:
            self._marked[self._number] = {event.row}
            self._own_answers[self._number] = ""
            self._next()
        elif event.marks:
            marked ^= {event.row}
            self._update_options(self.query_one(QuestionChoices).highlighted)
        else:
            marked |= set() if marked else {event.row}
            self._next()

    def on_question_choices_back(self) -> None:
        if self.can_answer() and self._number:
            self._ask(self._number - 1)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        if self.can_answer():
            self._own_answers[self._number] = event.value.strip()
            if not self._question.multiple:
                self._marked[self._number] = set()
            self._next()

    def action_decline(self) -> None:
        if self.can_answer() and self.asked is not None:
            self.post_message(self.Answered(self.asked.id, None))

    def _next(self) -> None:
        assert self.asked is not None, "called only while a batch is shown"
        if self._number + 1 < len(self.asked.questions):
            self._ask(self._number + 1)
            return
        responses = [
            m.QuestionResponse(
                request_id=question.request_id,
                selected_ids=[option.id for option in question.options if option.id in marked],
                fill_in_text=text,
            )
            for question, marked, text in zip(self.asked.questions, self._marked, self._own_answers, strict=True)
        ]
        has_answer = any(response.selected_ids or response.fill_in_text for response in responses)
        self.post_message(self.Answered(self.asked.id, responses if has_answer else None))
