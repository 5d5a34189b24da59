"""agent: a child agent that does a task and reports. It is read-only unless its definition says otherwise."""

from __future__ import annotations

import json
from typing import Annotated

import msgspec
from msgspec import Meta

from kedge.core.approvals import Intent
from kedge.core.transcript import Display
from kedge.core.untrusted_text import one_line
from kedge.tools.base import OUTPUT_CHARS_MAX, Prepared, Tool, ToolContext, ToolFailed, ToolOutput

#: Limit of a task in one line: the title of the child session. Characters.
TASK_CHARS_MAX = 100

_DESCRIPTION = """\
Gives a task to a second agent that can read, search, list and fetch, but cannot change anything. Returns its report.

- Use it where you must read much to learn little: where something is done, how a part works, what uses a function. What
  it reads does not fill your own context.
- It does not know this conversation. State in `prompt` what to find out, what you already know, and what to report.
- Several calls at once run in parallel. Do not use it where one search or one file is enough.
- The user does not see its report. Repeat the parts that matter.
- `agent` names a defined agent, which has its own instructions and tools, if there are any. Without it, or unless its
  definition gives it more tools, an agent changes nothing.
"""


class AgentInput(msgspec.Struct):
    prompt: Annotated[str, Meta(description="The complete task: the agent does not know this conversation.")]
    description: Annotated[str, Meta(description="The task in three to five words, for the user.")] = ""
    agent: Annotated[str, Meta(description="The name of a defined agent; empty: a read-only one.")] = ""


class AgentTool(Tool):
    name = "agent"
    description = _DESCRIPTION
    input: type[msgspec.Struct] = AgentInput
    read_only = True
    display: Display = "agent"

    def title(self, args: AgentInput) -> str:
        return f"agent {f'{args.agent}: ' if args.agent else ''}{_task(args)}"

    async def prepare(self, args: AgentInput, context: ToolContext) -> Prepared:
        if not args.prompt.strip():
            raise ToolFailed("the prompt is empty; state what the agent should find out and report")
        task = _task(args)
        intent = Intent(
            names=("agent",),
            action="agent",
            subject=args.agent,
            description=task,
            path="",
            params=json.dumps({"prompt": args.prompt, "agent": args.agent}, ensure_ascii=False),
            binding="",
            needs_approval=False,
        )

        async def run() -> ToolOutput:
            answer = await context.host.run_agent(args.prompt, task, args.agent)
            if len(answer) > OUTPUT_CHARS_MAX:
                answer = answer[:OUTPUT_CHARS_MAX] + "\n... the rest is left out ..."
            return ToolOutput(answer)

        return Prepared(intent, run)


def _task(args: AgentInput) -> str:
    return one_line(args.description, TASK_CHARS_MAX) or one_line(args.prompt, TASK_CHARS_MAX)
