"""The hooks that change a Run: before and after its tool calls, and when it is about to end."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from kedge.agent.active_run import ActiveRun
from kedge.agent.call_approval import not_run
from kedge.agent.hook_runs import run_hooks
from kedge.core.hooks import (
    NO_ANSWER,
    HookAnswer,
    HookDecision,
    hook_input,
    hook_tool_name,
    own_input,
)
from kedge.core.step import End
from kedge.core.transcript import FinishPart, Message, Text, ToolCall
from kedge.core.untrusted_text import json_object, one_line, without_surrogates
from kedge.tools.base import ToolOutput

#: A changed input as the model sees it: enough to recognise the change. Characters.
CHANGED_CHARS_MAX = 2000
#: The reason of a hook in the summary of a result: one line. Characters.
SUMMARY_CHARS_MAX = 100
#: How often hooks make one Run continue that is about to end: enough to repair something, and not a loop. Items.
HOOK_STOPS_MAX = 3


class BeforeCall(Struct, frozen=True):
    """The decisions of the hooks before a call."""

    #: The input to use, as JSON text.
    text: str
    decision: HookDecision
    #: The result of a call that a hook denied; None: it is not denied.
    refusal: ToolOutput | None
    answer: HookAnswer


async def hooks_before(active: ActiveRun, call: ToolCall) -> BeforeCall:
    """Run the hooks before a call. It is prepared with their input, so that an approval shows what really runs."""
    if not active.workspace.config.hooks.pre_tool_use:
        return BeforeCall(call.input, "", None, NO_ANSWER)
    sent = _input(active, call, call.input)
    answer = await run_hooks(active, "PreToolUse", _of_call(call, sent), call.name)
    if answer.decision == "deny":
        refusal = not_run(f"Not run: a hook of the user denied it. Its reason: {answer.reason}", "denied by a hook")
        return BeforeCall(call.input, "deny", _noted(refusal, answer), answer)
    text = call.input
    if answer.updated_input is not None and answer.updated_input != sent:
        text = msgspec.json.encode(own_input(call.name, answer.updated_input, sent)).decode()
    return BeforeCall(text, answer.decision, None, answer)


async def hooks_after(active: ActiveRun, call: ToolCall, before: BeforeCall, output: ToolOutput) -> ToolOutput:
    """Run the hooks after a call that succeeded, and return its result with the texts of all its hooks."""
    texts = list(before.answer.context)
    if before.text != call.input:
        changed = without_surrogates(before.text[:CHANGED_CHARS_MAX])
        texts.insert(0, f"A hook of the user changed the input of this call to: {changed}")
    after = NO_ANSWER
    if active.workspace.config.hooks.post_tool_use and output.end == "returned" and not output.is_error:
        active.partial[call.id] = lambda: output  # the call has returned: a cancel of the hooks does not cut it off
        fields = _of_call(call, _input(active, call, before.text))
        fields["tool_response"] = {"content": without_surrogates(output.content), "is_error": output.is_error}
        after = await run_hooks(active, "PostToolUse", fields, call.name)
        if after.decision == "deny":
            texts.append(f"A hook of the user objects to this result: {after.reason}")
        texts += after.context
    return _noted(_with_texts(output, texts), before.answer, after)


async def continues(active: ActiveRun, end: End) -> bool:
    """Run the hooks before the end of a Run that has answered. Return whether one of them makes it continue.

    They are a part of the Run's work: a cancel or its timeout ends them, and its end does not wait for them."""
    is_own = active.run.options.purpose == "answer" and not active.run.options.parent_run_id
    draft = active.draft
    if not active.workspace.config.hooks.stop or end.outcome != "completed" or not is_own or draft is None:
        return False
    now, run = active.door.clock.now_ms(), active.run
    fields = {"stop_hook_active": active.hook_stops > 0, "last_assistant_message": draft.message(now).text}
    answer = await run_hooks(active, "Stop", fields)
    if answer.decision != "deny" or active.hook_stops >= HOOK_STOPS_MAX:
        return False
    active.hook_stops += 1
    now = active.door.clock.now_ms()
    active.end_stream()
    active.draft = None
    await active.put_message("updated", draft.message(now).closed(FinishPart(end.finish, now)))
    text = Text(f"A hook of the user requires that you continue. Its reason: {answer.reason}")
    new_id = active.door.ids.new("m")
    await active.put_message("created", Message(new_id, run.session_id, "user", (text,), now, now, run.run_id))
    active.last = None
    return True


def _input(active: ActiveRun, call: ToolCall, text: str) -> dict[str, Any]:
    return hook_input(call.name, json_object(text), active.workspace.record.path)


def _of_call(call: ToolCall, sent: dict[str, Any]) -> dict[str, Any]:
    return {"tool_name": hook_tool_name(call.name), "tool_input": sent, "tool_use_id": call.id}


def _with_texts(output: ToolOutput, texts: list[str]) -> ToolOutput:
    return replace(output, content="\n\n".join((output.content, *texts))) if texts else output


def _noted(output: ToolOutput, *answers: HookAnswer) -> ToolOutput:
    """Return the result with what the hooks report to the user."""
    lines = [line for answer in answers for line in (*answer.messages, *answer.errors)]
    if not lines:
        return output
    summary = output.summary or one_line(lines[0], SUMMARY_CHARS_MAX)
    return replace(output, metadata={**output.metadata, "hooks": lines}, summary=summary)
