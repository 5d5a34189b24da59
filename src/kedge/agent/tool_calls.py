"""The tool calls of one Step: decoded, permitted, run concurrently, each with its result."""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import nullcontext
from functools import partial

import msgspec
from msgspec.structs import replace

from kedge.agent.active_run import ActiveRun, WaitingCall
from kedge.agent.call_approval import permitted, rules_of, still_permits, withdraw
from kedge.agent.hook_calls import hooks_after, hooks_before
from kedge.agent.tool_host import RunToolHost
from kedge.core.approvals import hides_files, is_hidden
from kedge.core.hooks import HookDecision
from kedge.core.step import signature
from kedge.core.transcript import Message, ToolCall, ToolResult, result_without_return
from kedge.core.untrusted_text import one_line, without_surrogates
from kedge.engine.ports import Agents, Machine
from kedge.errors import DirectoryTimeout, KedgeError
from kedge.llm.base import ToolSpec
from kedge.tools.base import Prepared, Tool, ToolContext, ToolFailed, ToolOutput
from kedge.tools.registry import Toolset
from kedge.waiting import retrieve_exception, wait_uncancelled

log = logging.getLogger("kedge.agent")

#: A stored result. Our own tools stay below it; tools of others may not. Characters.
RESULT_CHARS_MAX = 200_000
#: The summary of a result: one line on a wide screen. Characters.
SUMMARY_CHARS_MAX = 200
#: Pictures in the results of one Step: providers take about 30 MB per request. Characters.
PICTURES_CHARS_MAX = 20_000_000


class ToolCalls:
    def __init__(self, tools: Toolset, machine: Machine, agents: Agents) -> None:
        self._tools = tools
        self._machine = machine
        self._agents = agents

    def specs(self, active: ActiveRun) -> tuple[ToolSpec, ...]:
        return tuple(
            ToolSpec(tool.name, tool.description, self._tools.schema(tool)) for tool in self._available(active)
        )

    def described(self, active: ActiveRun, call: ToolCall) -> ToolCall:
        return self._tools.described(call, active.workspace.extensions.tools())

    def _available(self, active: ActiveRun) -> list[Tool]:
        disabled = active.workspace.config.tools.disabled
        options, more = active.run.options, active.workspace.extensions.tools()
        if options.parent_run_id:
            offered = self._tools.offered_to_child(options.agent, more)
        else:
            offered = self._tools.offered(in_plan=active.mode == "plan", more=more)
        return [tool for tool in offered if tool.name not in disabled]

    async def run(self, active: ActiveRun, calls: tuple[ToolCall, ...]) -> None:
        """Run all calls concurrently and write each result when it is there. If cancelled, clean up every call."""
        active.picture_chars = 0
        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(self._run_one(active, call), name=f"call {call.id} of {active.id}") for call in calls]
        for task in tasks:
            task.add_done_callback(retrieve_exception)  # several calls may fail at once; one failure is reported
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            unfinished = [task for task in tasks if not task.done()]
            for task in unfinished:
                task.cancel()
            await wait_uncancelled(unfinished)  # a second cancel must not interrupt the clean-up of a call
        for task in done:
            task.result()

    async def _run_one(self, active: ActiveRun, call: ToolCall) -> None:
        output = _within_picture_limit(active, await self._output(active, call))
        await withdraw(active, call)
        now, run = active.door.clock.now_ms(), active.run
        result = _result(active, call, output)
        message = Message(active.door.ids.new("m"), run.session_id, "tool", (result,), now, now, run.run_id)
        active.check_not_ending()
        active.signatures.append(signature(call, result))
        del active.open_calls[call.id]
        active.partial.pop(call.id, None)
        await active.put_message("created", message)

    async def _output(self, active: ActiveRun, call: ToolCall) -> ToolOutput:
        try:
            tool = next((tool for tool in self._available(active) if tool.name == call.name), None)
            if tool is None:
                names = ", ".join(tool.name for tool in self._available(active))
                raise ToolFailed(f"Tool {call.name} not found. Available tools: {names or 'none'}.")
            context = await self._context(active, call)
            args = self._tools.decoded(tool, call.input)
            if not active.workspace.config.hooks.of_calls:
                return await self._prepared_output(active, call, context, await tool.prepare(args, context))
            return await self._hooked_output(active, call, context, tool)
        except (ToolFailed, DirectoryTimeout) as failed:
            return ToolOutput(str(failed), is_error=True)
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) is None or task.cancelling():
                raise
            return ToolOutput(f"The tool {call.name} was ended before it returned a result.", is_error=True)
        except KedgeError:
            raise  # an error of the store or the Lane fails the Run
        except Exception as error:  # a bug in a tool fails the call, not the Run
            log.exception("run %s: unexpected error in tool %s", active.id, call.name)
            return ToolOutput(f"The tool {call.name} failed ({type(error).__name__}): {error}", is_error=True)

    async def _hooked_output(self, active: ActiveRun, call: ToolCall, context: ToolContext, tool: Tool) -> ToolOutput:
        """Run a call between the hooks before and after it."""
        before = await hooks_before(active, call)
        if before.refusal is not None:
            return before.refusal
        try:
            prepared = await tool.prepare(self._tools.decoded(tool, before.text), context)
            output = await self._prepared_output(active, call, context, prepared, before.decision)
        except (ToolFailed, DirectoryTimeout) as failed:
            output = ToolOutput(str(failed), is_error=True)
        return await hooks_after(active, call, before, output)

    async def _prepared_output(
        self, active: ActiveRun, call: ToolCall, context: ToolContext, prepared: Prepared, hook: HookDecision = ""
    ) -> ToolOutput:
        """Run a prepared call if it is permitted, and still is when its slot is free."""
        while True:
            mode, waiting = active.mode, WaitingCall(prepared.intent, context.processes.can_confine, hook)
            permission = await permitted(active, call, waiting)
            if isinstance(permission, ToolOutput):
                return permission
            async with prepared.slot or nullcontext():
                if not await still_permits(active, permission, mode, waiting):
                    continue  # without the slot: the user may be asked
                context.host.confinement = permission.confinement
                context.host.was_asked = permission.is_answer
                active.begun[call.id] = active.door.clock.now_ms()
                context.host.progress(call.title)
                output = await prepared.run()
            return await _with_diagnostics(active, context, output) if output.written else output

    async def _context(self, active: ActiveRun, call: ToolCall) -> ToolContext:
        workspace, run = active.workspace, active.run
        processes = await self._machine.processes(workspace.config, workspace.record.path, workspace.files)
        return ToolContext(
            root=workspace.root,
            session_id=run.session_id,
            run_id=run.run_id,
            call_id=call.id,
            todos=active.state.session.todos,
            known_files=workspace.known_files(run.session_id),
            background=active.background,
            kept_commands=self._agents.kept_commands(run),
            threads=active.threads,
            processes=processes,
            host=RunToolHost(active, call, self._agents),
            is_hidden=partial(is_hidden, rules_of(active)),
            hides_files=hides_files(rules_of(active)),
            shown_before=standing[0].binding if (standing := active.standing.get(call.id)) else "",
        )


async def _with_diagnostics(active: ActiveRun, context: ToolContext, output: ToolOutput) -> ToolOutput:
    """Return the output with what language servers report about the files that the call wrote."""
    context.host.if_cut_off(lambda: output)  # the files are written, even if the Run is stopped now
    report = await active.workspace.extensions.edited(output.written, context.is_hidden)
    if not report.text:
        return output
    metadata = {**output.metadata, "diagnostics": msgspec.to_builtins(report.diagnostics)}
    return replace(output, content=f"{output.content}\n\n{report.text}", metadata=metadata)


def unreturned_results(active: ActiveRun) -> tuple[ToolResult, ...]:
    """Return the results of the calls that returned none, once the Run has stopped them."""
    results: list[ToolResult] = []
    for call in active.open_calls.values():
        result = result_without_return(call, has_begun=call.id in active.begun)
        result = replace(result, started_at=active.begun.get(call.id, 0))
        if output := active.partial.get(call.id):
            try:
                result = _result(active, call, output())
            except Exception:  # a bug in a tool must not keep the Run from ending
                log.exception("run %s: unexpected error in tool %s", active.id, call.name)
        results.append(result)
    return tuple(results)


def _result(active: ActiveRun, call: ToolCall, output: ToolOutput) -> ToolResult:
    return ToolResult(
        call.id,
        call.name,
        without_surrogates(output.content[:RESULT_CHARS_MAX]),
        without_surrogates(json.dumps(output.metadata, ensure_ascii=False)) if output.metadata else "",
        output.is_error,
        output.images,
        one_line(output.summary, SUMMARY_CHARS_MAX),
        output.end,
        active.begun.get(call.id, 0),
    )


def _within_picture_limit(active: ActiveRun, output: ToolOutput) -> ToolOutput:
    """Return the output, or an error if the pictures of this Step exceed the limit."""
    chars = sum(map(len, output.images))
    if active.picture_chars + chars <= PICTURES_CHARS_MAX:
        active.picture_chars += chars
        return output
    mega = PICTURES_CHARS_MAX // 1_000_000
    return ToolOutput(
        f"Not shown: the pictures of one step are larger than {mega} MB; view them one by one.", is_error=True
    )
