"""present_plan: end plan mode with a plan that the user accepts."""

from __future__ import annotations

import json
from typing import Annotated

import msgspec
from msgspec import Meta

from kedge.core.approvals import Intent
from kedge.core.modes import Mode
from kedge.core.transcript import Display
from kedge.core.untrusted_text import one_line
from kedge.tools.base import Prepared, Question, QuestionOption, Tool, ToolContext, ToolFailed, ToolOutput

#: Limit of a plan: what a user reads before a decision. Characters.
PLAN_CHARS_MAX = 10_000
#: Limit of a plan in one line. Characters.
PLAN_SHOWN_CHARS_MAX = 100

_DESCRIPTION = """\
This session is in plan mode: you can read, search and run read-only commands; everything else is refused. Investigate,
ask what only the user can decide, then call this tool with your plan. Do not start to carry it out before.

- The user accepts the plan, which ends plan mode so that you can carry it out in this run, or asks for changes.
- Write what you will change, file by file, in which order, and how you will check it. Leave out what the user knows.
- A question that needs no change needs no plan: answer it.
"""
_ACCEPT = QuestionOption("Accept", "continue in mode ask: changes and commands ask")
_ACCEPT_EDITS = QuestionOption("Accept, and let edits pass", "continue in mode edits: commands ask")
_REFINE = QuestionOption("Refine", "stay in plan mode; write what to change")
_MODES: dict[str, Mode] = {_ACCEPT.label: "ask", _ACCEPT_EDITS.label: "edits"}


class PlanInput(msgspec.Struct):
    plan: Annotated[str, Meta(description="The plan, as Markdown.")]


class PlanTool(Tool):
    name = "present_plan"
    description = _DESCRIPTION
    input: type[msgspec.Struct] = PlanInput
    read_only = True
    only_in_plan = True
    display: Display = "text"

    def title(self, args: PlanInput) -> str:
        return f"plan {one_line(args.plan, PLAN_SHOWN_CHARS_MAX)}"

    async def prepare(self, args: PlanInput, context: ToolContext) -> Prepared:
        if not 0 < len(args.plan.strip()) <= PLAN_CHARS_MAX:
            raise ToolFailed(f"a plan needs at least one character and at most {PLAN_CHARS_MAX}")
        intent = Intent(
            names=("present_plan",),
            action="ask",
            subject="",
            description=self.title(args),
            path="",
            params=json.dumps({"plan": args.plan}, ensure_ascii=False),
            binding="",
            needs_approval=False,
        )

        async def run() -> ToolOutput:
            question = Question(f"{args.plan.strip()}\n\nCarry out this plan?", (_ACCEPT, _ACCEPT_EDITS, _REFINE))
            try:
                answers = await context.host.ask_user((question,))
            except ToolFailed:
                return ToolOutput("No user is available to accept the plan. End with the plan as your answer.")
            if answers is None:
                return ToolOutput("The user did not accept the plan. Stay in plan mode: stop, and wait for the user.")
            if (accepted := _MODES.get(answers[0])) is None:
                return ToolOutput(f"The user asks for changes; plan mode continues. Answer: {answers[0]}")
            mode = await context.host.leave_plan_mode(accepted)
            return ToolOutput(
                f"The user accepted this plan. The session is in mode {mode} now: carry the plan out.\n\n{args.plan}",
                summary=f"accepted, mode {mode}",
            )

        return Prepared(intent, run)
