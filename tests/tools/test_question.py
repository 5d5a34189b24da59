"""The question tool."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kedge.core.approvals import Rules, permit
from kedge.tools.base import Question, QuestionOption, ToolFailed
from kedge.tools.question import OPTIONS_MAX, QUESTION_CHARS_MAX, QuestionTool
from tests.tools.contexts import RecordingHost, call, make_context, prepare


async def test_user_answers_each_question(tmp_path: Path) -> None:
    host = RecordingHost(answers=["blue", "a, b"])
    output = await call(
        QuestionTool(),
        make_context(tmp_path, host=host),
        questions=[
            {"question": "Which colour? ", "options": [{"label": "blue", "description": "like the sky"}]},
            {"question": "Which ones?", "options": [{"label": "a"}, {"label": "b"}], "multiple": True},
        ],
    )
    assert host.asked == [
        (
            Question("Which colour?", (QuestionOption("blue", "like the sky"),)),
            Question("Which ones?", (QuestionOption("a"), QuestionOption("b")), multiple=True),
        )
    ]
    assert output.content == "Which colour?\nAnswer: blue\n\nWhich ones?\nAnswer: a, b"
    assert output.metadata == {"answers": ["blue", "a, b"]}


async def test_people_may_rather_not_answer(tmp_path: Path) -> None:
    output = await call(QuestionTool(), make_context(tmp_path), questions=[{"question": "Well?"}])
    assert "declined to answer" in output.content


async def test_missing_user_is_reported(tmp_path: Path) -> None:
    class Alone(RecordingHost):
        async def ask_user(self, questions: tuple[Question, ...]) -> list[str] | None:
            raise ToolFailed("nobody is attached")

    with pytest.raises(ToolFailed, match="nobody is attached"):
        await call(QuestionTool(), make_context(tmp_path, host=Alone()), questions=[{"question": "Well?"}])


@pytest.mark.parametrize(
    "questions",
    [
        [],
        [{"question": "?"}] * 5,
        [{"question": " "}],
        [{"question": "x" * (QUESTION_CHARS_MAX + 1)}],
        [{"question": "?", "options": [{"label": "x"}] * (OPTIONS_MAX + 1)}],
        [{"question": "?", "options": [{"label": " "}]}],
    ],
    ids=["none", "five", "empty", "long", "options", "label"],
)
async def test_invalid_questions_are_refused(tmp_path: Path, questions: list[dict[str, Any]]) -> None:
    host = RecordingHost()
    with pytest.raises(ToolFailed):
        await call(QuestionTool(), make_context(tmp_path, host=host), questions=questions)
    assert host.asked == []


async def test_asking_needs_no_approval(tmp_path: Path) -> None:
    prepared = await prepare(QuestionTool(), make_context(tmp_path), questions=[{"question": "Which\u202e one?"}])
    assert permit(prepared.intent, Rules(), ()).decision == "allow"
    assert prepared.intent.description == "Which\\u{202e} one?"
