"""question: what only people can decide."""

from __future__ import annotations

import json
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from kedge.core.approvals import Intent
from kedge.core.untrusted_text import one_line
from kedge.tools.base import Prepared, Question, QuestionOption, ToolContext, ToolFailed, ToolOutput

#: Of questions at once, and of options for one: what fits on a screen.
QUESTIONS_MAX = 4
OPTIONS_MAX = 8
#: Of a question: a paragraph.
QUESTION_CHARS_MAX = 2000
TITLE_CHARS_MAX = 200


class OptionInput(msgspec.Struct):
    label: Annotated[str, Meta(description="A few words.")]
    description: Annotated[str, Meta(description="What choosing it means.")] = ""


class AskedInput(msgspec.Struct):
    question: Annotated[str, Meta(description="The whole question, ending with a question mark.")]
    options: Annotated[list[OptionInput], Meta(description="Answers to choose from, if there are likely ones.")] = []
    multiple: Annotated[bool, Meta(description="Several options may be chosen.")] = False


class QuestionInput(msgspec.Struct):
    questions: Annotated[list[AskedInput], Meta(description="One to four questions.")]


class QuestionTool:
    name = "question"
    input: type[msgspec.Struct] = QuestionInput
    kind: Literal["look", "change"] = "look"

    async def prepare(self, args: QuestionInput, context: ToolContext) -> Prepared:
        questions = tuple(map(_question, args.questions))
        if not 1 <= len(questions) <= QUESTIONS_MAX:
            raise ToolFailed(f"ask one to {QUESTIONS_MAX} questions at once")
        title = one_line(questions[0].question, TITLE_CHARS_MAX)
        intent = Intent(
            names=("question",),
            action="ask",
            subject="",
            description=title,
            path="",
            params=json.dumps({"questions": [asked.question for asked in questions]}, ensure_ascii=False),
            binding="",
            needs_approval=False,
        )

        async def run() -> ToolOutput:
            answers = await context.host.ask_user(questions)
            if answers is None:
                return ToolOutput(
                    "They would rather not answer. Go on as you think best, or end and say what you need."
                )
            pairs = list(zip(questions, answers, strict=True))
            told = "\n\n".join(f"{asked.question}\nAnswer: {answer}" for asked, answer in pairs)
            return ToolOutput(told, {"answers": answers})

        return Prepared(intent, run, title)


def _question(args: AskedInput) -> Question:
    if not 0 < len(args.question.strip()) <= QUESTION_CHARS_MAX:
        raise ToolFailed(f"a question has at least one character and at most {QUESTION_CHARS_MAX}")
    if len(args.options) > OPTIONS_MAX or not all(option.label.strip() for option in args.options):
        raise ToolFailed(f"a question has at most {OPTIONS_MAX} options, each with a label")
    options = tuple(QuestionOption(option.label.strip(), option.description.strip()) for option in args.options)
    return Question(args.question.strip(), options, args.multiple)
