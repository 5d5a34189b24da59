"""agent: a second agent that looks into something and reports. It may look, not change."""

from __future__ import annotations

import json
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from kedge.core.approvals import Intent
from kedge.core.untrusted_text import one_line
from kedge.tools.base import OUTPUT_CHARS_MAX, Prepared, ToolContext, ToolFailed, ToolOutput

TITLE_CHARS_MAX = 100


class AgentInput(msgspec.Struct):
    prompt: Annotated[str, Meta(description="The whole task: the agent knows nothing of this conversation.")]
    description: Annotated[str, Meta(description="The task in three to five words, for people.")] = ""


class AgentTool:
    name = "agent"
    input: type[msgspec.Struct] = AgentInput
    kind: Literal["look", "change"] = "look"

    async def prepare(self, args: AgentInput, context: ToolContext) -> Prepared:
        if not args.prompt.strip():
            raise ToolFailed("the agent needs a prompt: say what it should find out, and what to report")
        title = one_line(args.description, TITLE_CHARS_MAX) or one_line(args.prompt, TITLE_CHARS_MAX)
        intent = Intent(
            names=("agent",),
            action="agent",
            subject="",
            description=title,
            path="",
            params=json.dumps({"prompt": args.prompt}, ensure_ascii=False),
            binding="",
            needs_approval=False,
        )

        async def run() -> ToolOutput:
            answer = await context.host.run_agent(args.prompt, title)
            if len(answer) > OUTPUT_CHARS_MAX:
                answer = answer[:OUTPUT_CHARS_MAX] + "\n... the rest is left out ..."
            return ToolOutput(answer)

        return Prepared(intent, run, title)
