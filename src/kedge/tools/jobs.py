"""jobs: inspect the commands that bash keeps running in the background."""

from __future__ import annotations

import json
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from kedge.core.approvals import Intent
from kedge.core.kept_commands import state_text
from kedge.core.untrusted_text import one_line
from kedge.tools.background import RunningCommand
from kedge.tools.base import OUTPUT_CHARS_MAX, Prepared, Tool, ToolContext, ToolOutput, count_of
from kedge.tools.shell import COMMAND_SHOWN_CHARS_MAX, exit_line, output_for_screen

#: The longest that a call may wait for output. Seconds.
JOBS_WAIT_S_MAX = 30


class JobsInput(msgspec.Struct):
    action: Annotated[
        Literal["list", "output", "kill"],
        Meta(description="list: all commands; output: new output of one command; kill: end one command."),
    ]
    id: Annotated[str, Meta(description="The id of a command, e.g. b1. For output and kill.")] = ""
    wait_s: Annotated[
        float,
        Meta(
            description="For output: wait up to this many seconds (at most 30) for new output.",
            ge=0,
            le=JOBS_WAIT_S_MAX,
        ),
    ] = 0


_JOBS_DESCRIPTION = """\
Inspects the commands that bash keeps running in the background.

- `list`: their ids, states and exit codes.
- `output`: the output of one command since your last call; `wait_s` waits for new output (up to 30 s), so that you need
  not poll.
- `kill`: ends one command with all its processes, and returns its last output.

Background commands (b1, b2) end when this run ends. Kept ones (k...), also those of earlier runs, do not.
"""


class JobsTool(Tool):
    name = "jobs"
    description = _JOBS_DESCRIPTION
    input: type[msgspec.Struct] = JobsInput

    def title(self, args: JobsInput) -> str:
        return " ".join(filter(None, ("jobs", args.action, args.id)))

    async def prepare(self, args: JobsInput, context: ToolContext) -> Prepared:
        if args.action != "list":
            _command(args.id, context)
        intent = Intent(
            names=("jobs",),
            action=args.action,
            subject=args.id,
            description=self.title(args),
            path="",
            params=json.dumps({"action": args.action, "id": args.id}),
            binding="",
            needs_approval=False,
        )

        async def run() -> ToolOutput:
            return await _inspect(args, context)

        return Prepared(intent, run)


async def _inspect(args: JobsInput, context: ToolContext) -> ToolOutput:
    if args.action == "list":
        lines = [
            f"{id_}  {_state(running)}  $ {one_line(running.command, COMMAND_SHOWN_CHARS_MAX)}"
            for id_, running in context.background.list().items()
        ]
        lines += [
            f"{entry.id}  kept, {state_text(entry)}  $ {one_line(entry.command, COMMAND_SHOWN_CHARS_MAX)}"
            for entry in context.kept_commands.list()
        ]
        return ToolOutput("\n".join(lines) or "No background commands.", summary=count_of(len(lines), "command"))
    if args.action == "kill":
        had_ended = _command(args.id, context).has_ended
        commands = context.kept_commands if _is_kept(args.id) else context.background
        running = await commands.end_one(args.id)
        state = "had already ended" if had_ended else "was ended"
    else:
        running = _command(args.id, context)
        await running.wait_for_output(args.wait_s)
        state = _state(running)
    output = running.take()
    excerpt = output.excerpt(OUTPUT_CHARS_MAX)
    metadata = {
        "id": args.id,
        "exit_code": running.exit_code,
        "truncated": excerpt.is_cut,
        "output": output_for_screen(output),
    }
    if not running.has_ended:
        summary = "running"
    else:
        summary = "ended" if running.exit_code is None else f"exit {running.exit_code}"
    content = f"{args.id} {state}. Its output since the last call:\n{excerpt.for_model}"
    return ToolOutput(content, metadata, summary=summary)


def _is_kept(id_: str) -> bool:
    return id_.startswith("k")


def _command(id_: str, context: ToolContext) -> RunningCommand:
    return context.kept_commands.get(id_) if _is_kept(id_) else context.background.get(id_)


def _state(running: RunningCommand) -> str:
    if not running.has_ended:
        return "is running"
    return "has ended" if running.exit_code is None else f"has ended ({exit_line(running.exit_code)})"
