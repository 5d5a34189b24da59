"""Tool calls of one Step: understood, permitted by rules or people, made side by side, each with its result."""

from __future__ import annotations

import asyncio
import json
import logging
from functools import partial

from msgspec.structs import replace

from kedge.agent.active_run import ActiveRun
from kedge.agent.model_call import Asking
from kedge.agent.tool_host import RunToolHost
from kedge.core.approvals import Ask, Intent, Rules, is_hidden, permit, rule_of
from kedge.core.records import SessionRecord
from kedge.core.step import signature
from kedge.core.transcript import Message, ToolCall, ToolResult
from kedge.core.untrusted_text import one_line, without_surrogates
from kedge.engine.door import Door
from kedge.engine.lane_state import Draught
from kedge.engine.ports import Agents, Clock, Ids, Machine
from kedge.errors import Invalid, KedgeError, RunIsStopping
from kedge.llm.base import ToolSpec
from kedge.store.base import Store
from kedge.tools.base import Prepared, Tool, ToolContext, ToolFailed, ToolOutput
from kedge.tools.registry import Toolset
from kedge.waiting import retrieve_exception, wait_uncancelled

log = logging.getLogger("kedge.engine")

#: Of a result as it is stored: tools keep theirs shorter; this holds for those of others. Characters.
RESULT_CHARS_MAX = 200_000
#: Limit of the summary of a result: one line on a wide screen. Characters.
SUMMARY_CHARS_MAX = 200
#: Commands of a line that are held against the rules on the event loop: with a hundred rules some 10 ms. Items.
COMMANDS_MAX = 50
#: Of the pictures that all calls of one Step give: providers take some 30 MB in one request. Characters.
PICTURES_CHARS_MAX = 20_000_000


class Calls:
    def __init__(
        self,
        door: Door,
        store: Store,
        clock: Clock,
        ids: Ids,
        asking: Asking,
        tools: Toolset,
        machine: Machine,
        agents: Agents,
    ) -> None:
        self._door = door
        self._store = store
        self._clock = clock
        self._ids = ids
        self._asking = asking
        self._tools = tools
        self._machine = machine
        self._agents = agents

    def specs(self, active: ActiveRun) -> tuple[ToolSpec, ...]:
        return tuple(ToolSpec(tool.name, tool.description, self._tools.schema(tool)) for tool in self._for(active))

    def _for(self, active: ActiveRun) -> list[Tool]:
        disabled = active.workspace.config.tools.disabled
        is_child = bool(active.run.options.parent_run_id)
        return [tool for tool in self._tools.offered(to_child=is_child) if tool.name not in disabled]

    def described(self, call: ToolCall) -> ToolCall:
        return self._tools.described(call)

    async def make(self, active: ActiveRun, calls: tuple[ToolCall, ...]) -> None:
        """Make them all, side by side; each result is put when it is there. Cancelled: every call has cleaned up."""
        active.picture_chars = 0
        tasks = [asyncio.get_running_loop().create_task(self._make_one(active, call)) for call in calls]
        for task in tasks:
            task.add_done_callback(retrieve_exception)  # several calls may fail at once; one failure is reported
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            left = [task for task in tasks if not task.done()]
            for task in left:
                task.cancel()
            await wait_uncancelled(left)  # a second cancel of this Run must not leave a call behind in its clean-up
        for task in done:
            task.result()

    async def _make_one(self, active: ActiveRun, call: ToolCall) -> None:
        output = _with_room(active, await self._outcome(active, call))
        await self._withdraw(active, call)
        now, run = self._clock.now_ms(), active.run
        result = ToolResult(
            call.id,
            call.name,
            without_surrogates(output.content[:RESULT_CHARS_MAX]),
            without_surrogates(json.dumps(output.metadata, ensure_ascii=False)) if output.metadata else "",
            output.is_error,
            output.images,
            one_line(output.summary, SUMMARY_CHARS_MAX),
        )
        message = Message(self._ids.new("m"), run.session_id, "tool", (result,), now, now, run.run_id)
        active.check_not_ending()
        active.signatures.append(signature(call, result))
        del active.open_calls[call.id]
        await self._asking.put(active, "created", message)

    async def _outcome(self, active: ActiveRun, call: ToolCall) -> ToolOutput:
        try:
            tool = next((tool for tool in self._for(active) if tool.name == call.name), None)
            if tool is None:
                names = ", ".join(tool.name for tool in self._for(active))
                raise ToolFailed(f"There is no tool named {call.name}. There are: {names or 'none'}.")
            context = await self._context(active, call)
            prepared = await tool.prepare(self._tools.decoded(tool, call.input), context)
            refusal = await self._refusal(active, call, prepared)
            if refusal is not None:
                return refusal
            context.host.progress(call.title)
            return await prepared.run()
        except ToolFailed as failed:
            return ToolOutput(str(failed), is_error=True)
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) is None or task.cancelling():
                raise
            return ToolOutput(f"The tool {call.name} was ended before it gave a result.", is_error=True)
        except KedgeError:
            raise  # of the store or the Lane: the Run's own matter
        except Exception as error:  # a fault of a tool ends the call, not the Run
            log.exception("run %s: the tool %s failed in a way nobody foresaw", active.run.run_id, call.name)
            return ToolOutput(f"The tool {call.name} failed ({type(error).__name__}): {error}", is_error=True)

    async def _context(self, active: ActiveRun, call: ToolCall) -> ToolContext:
        workspace, run = active.workspace, active.run
        processes = await self._machine.processes(workspace.config, workspace.record.path)
        return ToolContext(
            root=workspace.root,
            session_id=run.session_id,
            run_id=run.run_id,
            call_id=call.id,
            todos=active.lane.session.todos,
            known_files=workspace.known_files(run.session_id),
            background=active.background,
            threads=active.threads,
            processes=processes,
            host=RunToolHost(active, call, self, self._door, self._agents, self._clock, self._ids),
            is_hidden=partial(is_hidden, _rules(active)),
            shown_before=standing[0].binding if (standing := active.standing.get(call.id)) else "",
        )

    # --- leave ---------------------------------------------------------------------------------------------------

    async def _refusal(self, active: ActiveRun, call: ToolCall, prepared: Prepared) -> ToolOutput | None:
        """Why the call may not be made; None: it may."""
        intent, options = prepared.intent, active.options
        workspace, rules = active.workspace, _rules(active)
        grants = [
            grant for grant in await self._store.grants(workspace.id) if grant.session_id in ("", active.run.session_id)
        ]
        skip = options.skip_approvals or workspace.skip_approvals
        decide = partial(permit, intent, rules, tuple(grants), skip=skip)
        # Each command is held against each rule: of a long line that takes a while.
        found = await active.threads.run(decide) if len(intent.commands) > COMMANDS_MAX else decide()
        standing = active.standing.get(call.id)
        if found.decision != "ask" and standing is not None and standing[0].kind == "approval":
            await self._withdraw(active, call)
        if found.decision == "allow":
            return None
        if found.decision == "deny":
            return ToolOutput(f"Not allowed: {found.reason}. Do not try to get around it.", is_error=True)
        if found.decision == "refuse":
            return ToolOutput(f"Not done: {found.reason}.", is_error=True)
        if options.on_approval == "fail":
            active.unapproved = active.unapproved or _nobody_to_ask(intent)
            return ToolOutput("Not done: it needs an approval, and there is nobody to ask.", is_error=True)
        answered = await self._approval(active, call, intent)
        if answered.is_allowed:
            return None
        if answered.state == "withdrawn":
            raise RunIsStopping(f"run {active.run.run_id} is told to stop")
        why = f" They say: {answered.message}" if answered.message else ""
        return ToolOutput(f"Not done: the user denied it.{why}", {"denied": True}, is_error=True, summary="denied")

    async def _approval(self, active: ActiveRun, call: ToolCall, intent: Intent) -> Ask:
        """What people answered. After a crash the same question may still stand before them: it is not asked twice."""
        standing, answer = active.standing.pop(call.id, (None, None))
        if standing is not None and answer is not None and standing.binding == intent.binding:
            return await answer
        run = active.run
        ask = Ask(
            id=self._ids.new("ask"),
            workspace_id=run.workspace_id,
            session_id=run.session_id,
            run_id=run.run_id,
            tool_call_id=call.id,
            tool=call.name,
            kind="approval",
            asked_at=self._clock.now_ms(),
            description=without_surrogates(intent.description),
            params=without_surrogates(intent.params),
            action=intent.action,
            path=without_surrogates(intent.path),
            grant=without_surrogates(intent.grant),
            binding=intent.binding,
        )
        return await self.put_ask(active, ask, instead_of=standing)

    async def _withdraw(self, active: ActiveRun, call: ToolCall) -> None:
        """What people were asked for this call by the last process, and need not answer any more."""
        standing, _ = active.standing.pop(call.id, (None, None))
        if standing is None:
            return
        withdrawn = replace(standing, state="withdrawn", answered_at=self._clock.now_ms())

        def withdrawing(draught: Draught, session: SessionRecord) -> SessionRecord:
            if withdrawn.id in active.lane.asks:  # nobody has answered meanwhile
                draught.put_ask(withdrawn)
            return session

        await self._door.put(active.lane, withdrawing, of_run=active.run.run_id)

    async def put_ask(self, active: ActiveRun, ask: Ask, instead_of: Ask | None = None) -> Ask:
        """Put it to people, durably, and wait for what comes of it."""

        def asking(draught: Draught, session: SessionRecord) -> SessionRecord:
            lane = active.lane.lane
            if lane.active is not None and lane.covers(lane.active):
                raise RunIsStopping(f"run {ask.run_id} is told to stop and asks nobody")
            if instead_of is not None and instead_of.id in active.lane.asks:
                draught.put_ask(replace(instead_of, state="withdrawn", answered_at=ask.asked_at))
            draught.put_ask(ask)
            return session

        settled = active.lane.end_of_ask(ask.id)
        try:
            await self._door.put(active.lane, asking, of_run=ask.run_id)
        except BaseException:
            active.lane.settled.pop(ask.id, None)  # refused, in doubt or cancelled: nobody waits for it
            raise
        return await settled


def _with_room(active: ActiveRun, output: ToolOutput) -> ToolOutput:
    """Without its pictures if those of this Step are too much already."""
    chars = sum(map(len, output.images))
    if active.picture_chars + chars <= PICTURES_CHARS_MAX:
        active.picture_chars += chars
        return output
    mega = PICTURES_CHARS_MAX // 1_000_000
    return ToolOutput(
        f"Not shown: the pictures of one step are larger than {mega} MB; look at them one by one.", is_error=True
    )


def _rules(active: ActiveRun) -> Rules:
    options = active.options
    try:
        return active.workspace.config.permissions.rules(options.allow, options.deny)
    except Invalid as error:
        raise ToolFailed(f"The permissions cannot be read: {error}") from None


def _nobody_to_ask(intent: Intent) -> str:
    rule = rule_of(intent.grant) or intent.names[0]
    return (
        f"{intent.names[0]} needs an approval and nobody is there to give it ({intent.description[:200]}); "
        f"allow it with --allow '{rule}', or everything with --yolo."
    )
