"""Permission for tool calls: rules and grants first, then the user.

A call that waits for the user is decided again when there is a new grant or mode. If that permits the call, its Ask is
settled as allowed by rule. So the user is not asked for what an answer to another Ask allows.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from msgspec.structs import replace

from kedge.agent.active_run import ActiveRun, WaitingCall
from kedge.agent.hook_runs import on_asked
from kedge.core.approvals import BY_RULE, Ask, Grant, Intent, Permit, Rules
from kedge.core.hooks import HookDecision
from kedge.core.modes import Mode, narrower, permit_in_mode, remedy
from kedge.core.transcript import ToolCall
from kedge.core.untrusted_text import without_surrogates
from kedge.engine.append import Append
from kedge.errors import Invalid, KedgeError, RunIsStopping
from kedge.tools.base import ToolFailed, ToolOutput

log = logging.getLogger("kedge.agent")

#: Commands of a line that are matched on the event loop: with a hundred rules about 10 ms. Items.
MATCHED_COMMANDS_MAX = 50


async def permitted(active: ActiveRun, call: ToolCall, waiting: WaitingCall) -> Permit | ToolOutput:
    """Return the permission of a call that may run, or the result of one that may not."""
    permission = await _permission(active, waiting.intent, waiting.can_confine, waiting.hook)
    standing = active.standing.get(call.id)
    if permission.decision != "ask" and standing is not None and standing[0].kind == "approval":
        await withdraw(active, call, permission)
    match permission.decision:
        case "allow":
            return permission
        case "deny":
            return not_run(f"Not allowed: {permission.reason}. Do not try to get around it.", permission.reason)
        case "refuse":
            return not_run(f"Not run: {permission.reason}.", permission.reason)
        case "ask":
            return await _ask_user(active, call, waiting, permission)


async def still_permits(active: ActiveRun, permission: Permit, mode: Mode, waiting: WaitingCall) -> bool:
    """Return whether a permission that was decided in `mode` holds now.

    The mode may have become narrower while the call waited for its slot."""
    if narrower(active.mode, mode) == mode:
        return True
    now = await _permission(active, waiting.intent, waiting.can_confine, waiting.hook)
    if permission.is_answer:
        return now.decision in ("allow", "ask")  # the user has allowed exactly this call
    return now.decision == "allow" and now.confinement == permission.confinement


async def _permission(active: ActiveRun, intent: Intent, can_confine: bool, hook: HookDecision) -> Permit:
    grants = await _grants(active)
    # Read last, since the call above waits: a switch that was answered before this decision is obeyed.
    return await _decide(active, active.mode, grants, intent, can_confine, hook)


async def _grants(active: ActiveRun) -> tuple[Grant, ...]:
    grants = await active.with_store(partial(active.door.store.grants, active.workspace.id))
    return tuple(grant for grant in grants if grant.session_id in ("", active.run.session_id))


async def _decide(
    active: ActiveRun, mode: Mode, grants: tuple[Grant, ...], intent: Intent, can_confine: bool, hook: HookDecision
) -> Permit:
    decide = partial(permit_in_mode, mode, intent, rules_of(active), grants, can_confine=can_confine, hook=hook)
    # Each command is matched against each rule, which takes a while for a long line.
    return await active.threads.run(decide) if len(intent.commands) > MATCHED_COMMANDS_MAX else decide()


async def _ask_user(active: ActiveRun, call: ToolCall, waiting: WaitingCall, asking: Permit) -> Permit | ToolOutput:
    """`asking`: the decision to ask, with the confinement of a call that the user allows."""
    if active.options.on_approval == "fail":
        active.unapproved = active.unapproved or _unapproved(waiting.intent, waiting.can_confine)
        return not_run("Not run: this call needs an approval, and no user can be asked.", "needs approval")
    ask = await _approval(active, call, waiting)
    if ask.is_allowed:
        by_rule = waiting.permission if ask.answered_by == BY_RULE else None
        return by_rule or Permit("allow", "the user allowed it", asking.confinement, is_answer=True)
    if ask.state == "withdrawn":
        raise RunIsStopping(f"Run {active.id} is being cancelled.")
    why = f" Their reason: {ask.message}" if ask.message else ""
    return replace(not_run(f"Not run: the user denied it.{why}", "denied"), metadata={"denied": True})


def not_run(content: str, why: str) -> ToolOutput:
    return ToolOutput(content, is_error=True, summary=f"not run: {why}", end="not_run")


async def _approval(active: ActiveRun, call: ToolCall, waiting: WaitingCall) -> Ask:
    """Return the settled Ask. After a crash the same Ask may still be pending: it is not put twice."""
    standing, answer = active.standing.pop(call.id, (None, None))
    is_same = standing is not None and standing.binding == waiting.intent.binding
    ask = standing if standing is not None and is_same else _new_ask(active, call, waiting.intent)
    active.waiting[ask.id] = waiting
    if active.settling is None:
        active.settling = asyncio.get_running_loop().create_task(settle_permitted(active), name=f"permits {active.id}")
    try:
        if is_same and answer is not None:
            active.reconsider.set()  # for a grant since the decision above
            return await answer
        return await put_ask(active, ask, replaces=standing)
    finally:
        del active.waiting[ask.id]


def _new_ask(active: ActiveRun, call: ToolCall, intent: Intent) -> Ask:
    run, door = active.run, active.door
    return Ask(
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
    on_asked(active, ask)
    active.reconsider.set()  # there may be a grant that is newer than the decision to ask
    return await settled


async def settle_permitted(active: ActiveRun) -> None:
    """Settle the Asks of waiting calls whenever a grant or the mode comes to permit them. Runs until cancelled."""
    while True:
        await active.reconsider.wait()
        active.reconsider.clear()
        try:
            await _settle_permitted(active)
        except (KedgeError, ToolFailed) as error:  # the user can still answer
            log.info("run %s: its pending approvals were not decided again: %s", active.id, error)


async def _settle_permitted(active: ActiveRun) -> None:
    if not active.waiting:
        return
    grants = await _grants(active)
    mode, permitted = active.mode, dict[str, Permit]()
    for ask_id, waiting in tuple(active.waiting.items()):
        permission = await _decide(active, mode, grants, waiting.intent, waiting.can_confine, waiting.hook)
        if permission.decision == "allow":
            permitted[ask_id] = permission

    async def plan(tx: Append) -> None:
        if active.mode != mode:
            active.reconsider.set()
            return
        for ask_id, permission in permitted.items():
            if tx.is_pending(ask_id) and (waiting := active.waiting.get(ask_id)):
                # Else not put yet, or answered meanwhile: the first answer wins.
                waiting.permission = permission
                tx.put_ask(tx.state.asks[ask_id].allowed_by_rule(permission.reason, tx.now))

    if permitted:
        await active.write(plan)


async def withdraw(active: ActiveRun, call: ToolCall, permission: Permit | None = None) -> None:
    """Withdraw the Ask that the last process put for this call, if it is still pending.

    `permission`: of the call by now. If it is allowed, the Ask records that: recovery reports a call as not run if none
    of its Asks was allowed."""
    standing, _ = active.standing.pop(call.id, (None, None))
    if standing is None:
        return

    async def plan(tx: Append) -> None:
        if not tx.is_pending(standing.id):
            return  # answered meanwhile
        if permission is not None and permission.decision == "allow":
            tx.put_ask(standing.allowed_by_rule(permission.reason, tx.now))
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
