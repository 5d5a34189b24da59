"""question: ask the user to decide."""

from __future__ import annotations

import json
from typing import Annotated

import msgspec
from msgspec import Meta

from kedge.core.approvals import Intent
from kedge.core.transcript import Display
from kedge.core.untrusted_text import one_line
from kedge.tools.base import Prepared, Question, QuestionOption, Tool, ToolContext, ToolFailed, ToolOutput

#: Limits of one call and of one question: what fits on a screen. Items.
QUESTIONS_MAX = 4
OPTIONS_MAX = 8
#: Limit of a question: a paragraph. Characters.
QUESTION_CHARS_MAX = 2000
#: Limit of a question in the description of an approval. Characters.
QUESTION_SHOWN_CHARS_MAX = 200

_DESCRIPTION = """\
Asks the user one to four questions, and waits for the answers.

- Ask if only the user can decide: a preference, one of two ways, a fact that you cannot look up. Do not ask for
  permission to continue.
- Look first, then ask. Put related questions into one call.
- Offer options where there are likely answers, your recommendation first. The user can always answer with free text.
- If no user is available, decide yourself and state your decision.
"""


class OptionInput(msgspec.Struct):
    label: Annotated[str, Meta(description="A few words.")]
    description: Annotated[str, Meta(description="The consequence of this choice.")] = ""


class OneQuestionInput(msgspec.Struct):
    question: Annotated[str, Meta(description="The complete question, ending with a question mark.")]
    options: Annotated[list[OptionInput], Meta(description="Likely answers to choose from.")] = []
    multiple: Annotated[bool, Meta(description="The user may choose several options.")] = False


class QuestionInput(msgspec.Struct):
    questions: Annotated[list[OneQuestionInput], Meta(description="One to four questions.")]


class QuestionTool(Tool):
    name = "question"
    description = _DESCRIPTION
    input: type[msgspec.Struct] = QuestionInput
    read_only = True
    display: Display = "text"

    def title(self, args: QuestionInput) -> str:
        return "question " + " / ".join(question.question for question in args.questions)

    async def prepare(self, args: QuestionInput, context: ToolContext) -> Prepared:
        questions = tuple(map(_question, args.questions))
        if not 1 <= len(questions) <= QUESTIONS_MAX:
            raise ToolFailed(f"ask one to {QUESTIONS_MAX} questions at once")
        intent = Intent(
            names=("question",),
            action="ask",
            subject="",
            description=one_line(questions[0].question, QUESTION_SHOWN_CHARS_MAX),
            path="",
            params=json.dumps({"questions": [question.question for question in questions]}, ensure_ascii=False),
            binding="",
            needs_approval=False,
        )

        async def run() -> ToolOutput:
            answers = await context.host.ask_user(questions)
            if answers is None:
                return ToolOutput("The user declined to answer. Continue as you think best, or stop and say why.")
            pairs = zip(questions, answers, strict=True)
            content = "\n\n".join(f"{question.question}\nAnswer: {answer}" for question, answer in pairs)
            return ToolOutput(content, {"answers": answers})

        return Prepared(intent, run)


def _question(args: OneQuestionInput) -> Question:
    if not 0 < len(args.question.strip()) <= QUESTION_CHARS_MAX:
        raise ToolFailed(f"a question needs at least one character and at most {QUESTION_CHARS_MAX}")
    if len(args.options) > OPTIONS_MAX or not all(option.label.strip() for option in args.options):
        raise ToolFailed(f"a question has at most {OPTIONS_MAX} options, each with a label")
    options = tuple(QuestionOption(option.label.strip(), option.description.strip()) for option in args.options)
    return Question(args.question.strip(), options, args.multiple)
