"""Permission for tool calls: rules and grants first, then the user."""

from __future__ import annotations

from functools import partial

from msgspec.structs import replace

from kedge.agent.active_run import ActiveRun
from kedge.core.approvals import Ask, Intent, Permit, Rules
from kedge.core.modes import permit_in_mode, remedy
from kedge.core.transcript import ToolCall
from kedge.core.untrusted_text import without_surrogates
from kedge.engine.append import Append
from kedge.errors import Invalid, RunIsStopping
from kedge.tools.base import ToolFailed, ToolOutput

#: Commands of a line that are matched on the event loop: with a hundred rules about 10 ms. Items.
MATCHED_COMMANDS_MAX = 50


async def permitted(active: ActiveRun, call: ToolCall, intent: Intent, *, can_confine: bool) -> Permit | ToolOutput:
    """Return the permission of a call that may run, or the result of one that may not.

    `can_confine`: see `permit_in_mode`."""
    permission = await _permission(active, intent, can_confine)
    standing = active.standing.get(call.id)
    if permission.decision != "ask" and standing is not None and standing[0].kind == "approval":
        await withdraw(active, call, is_allowed=permission.decision == "allow")
    match permission.decision:
        case "allow":
            return permission
        case "deny":
            return _not_run(f"Not allowed: {permission.reason}. Do not try to get around it.", permission.reason)
        case "refuse":
            return _not_run(f"Not run: {permission.reason}.", permission.reason)
        case "ask":
            return await _ask_user(active, call, intent, can_confine) or permission


async def _permission(active: ActiveRun, intent: Intent, can_confine: bool) -> Permit:
    workspace = active.workspace
    grants = [
        grant
        for grant in await active.with_store(partial(active.door.store.grants, workspace.id))
        if grant.session_id in ("", active.run.session_id)
    ]
    # Read last, since the calls above wait: a switch that was answered before this decision is obeyed.
    decide = partial(permit_in_mode, active.mode, intent, rules_of(active), tuple(grants), can_confine=can_confine)
    # Each command is matched against each rule, which takes a while for a long line.
    return await active.threads.run(decide) if len(intent.commands) > MATCHED_COMMANDS_MAX else decide()


async def _ask_user(active: ActiveRun, call: ToolCall, intent: Intent, can_confine: bool) -> ToolOutput | None:
    if active.options.on_approval == "fail":
        active.unapproved = active.unapproved or _unapproved(intent, can_confine)
        return _not_run("Not run: this call needs an approval, and no user can be asked.", "needs approval")
    ask = await _approval(active, call, intent)
    if ask.is_allowed:
        return None
    if ask.state == "withdrawn":
        raise RunIsStopping(f"Run {active.id} is being cancelled.")
    why = f" Their reason: {ask.message}" if ask.message else ""
    return replace(_not_run(f"Not run: the user denied it.{why}", "denied"), metadata={"denied": True})


def _not_run(content: str, why: str) -> ToolOutput:
    return ToolOutput(content, is_error=True, summary=f"not run: {why}", end="not_run")


async def _approval(active: ActiveRun, call: ToolCall, intent: Intent) -> Ask:
    """Return the settled Ask. After a crash the same Ask may still be pending: it is not put twice."""
    standing, answer = active.standing.pop(call.id, (None, None))
    if standing is not None and answer is not None and standing.binding == intent.binding:
        return await answer
    run, door = active.run, active.door
    ask = Ask(
        id=door.ids.new("ask"),
        workspace_id=run.workspace_id,
        session_id=run.session_id,
        run_id=run.run_id,
        tool_call_id=call.id,
        tool=call.name,
        kind="approval",
        asked_at=door.clock.now_ms(),
        description=without_surrogates(_lifted(active, intent) + intent.description),
        params=without_surrogates(intent.params),
        action=intent.action,
        path=without_surrogates(intent.path),
        grant=without_surrogates(intent.grant),
        offers=intent.offers,
        parts=(intent.parts or ()) if intent.offers else (),
        binding=intent.binding,
    )
    return await put_ask(active, ask, replaces=standing)


async def put_ask(active: ActiveRun, ask: Ask, replaces: Ask | None = None) -> Ask:
    """Write an Ask and wait until it is answered or withdrawn."""

    async def plan(tx: Append) -> None:
        if tx.is_repeated and await active.door.store.ask(ask.workspace_id, ask.id) is not None:
            return  # the append before was stored; the ask may be answered by now
        if tx.lane.active is not None and tx.lane.covers(tx.lane.active):
            raise RunIsStopping(f"Run {ask.run_id} is being cancelled.")
        if replaces is not None and tx.is_pending(replaces.id):
            tx.put_ask(replace(replaces, state="withdrawn", answered_at=tx.now))
        tx.put_ask(replace(ask, asked_at=tx.now))  # the store may have been away for a while

    settled = active.state.end_of_ask(ask.id)
    try:
        await active.write(plan)
    except BaseException:
        active.state.settled.pop(ask.id, None)  # refused, uncertain or cancelled: no task waits for it
        raise
    return await settled


async def withdraw(active: ActiveRun, call: ToolCall, *, is_allowed: bool = False) -> None:
    """Withdraw the Ask that the last process put for this call, if it is still pending.

    `is_allowed`: a rule or grant allows the call by now. The Ask records that: recovery reports a call as not run if
    none of its Asks was allowed."""
    standing, _ = active.standing.pop(call.id, (None, None))
    if standing is None:
        return

    async def plan(tx: Append) -> None:
        if not tx.is_pending(standing.id):
            return  # answered meanwhile
        if is_allowed:
            answered = replace(standing, state="answered", answer="allow", answered_by="rule", answered_at=tx.now)
            tx.put_ask(answered)
        else:
            tx.put_ask(replace(standing, state="withdrawn", answered_at=tx.now))

    await active.write(plan)


def rules_of(active: ActiveRun) -> Rules:
    options = active.options
    try:
        return active.workspace.config.permissions.rules(options.allow, options.deny)
    except Invalid as error:
        raise ToolFailed(f"The permission rules are not valid: {error}") from None


def _lifted(active: ActiveRun, intent: Intent) -> str:
    """Return what an escalation lifts, as the start of a description."""
    if not intent.escalation:
        return ""
    sandbox = active.workspace.config.sandbox
    if sandbox.mode == "off":
        return "WITHOUT SANDBOX (writes to any file, network): "
    network = "" if sandbox.network is False else ", network"
    return f"ONLY IN THE CONFIGURED SANDBOX (writes to guarded files{network}): "


def _unapproved(intent: Intent, can_confine: bool) -> str:
    needed = f"{intent.names[0]} needs approval, and there is no user to ask ({intent.description[:200]})."
    return f"{needed} {remedy(intent, can_confine=can_confine)}"
