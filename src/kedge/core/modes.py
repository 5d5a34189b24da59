"""Modes: how much a session's agent may do without asking. Pure, around `permit`.

    plan     read-only: a call that changes something is refused
    ask      as the rules and grants say; everything else asks
    edits    changes of the workspace's files pass, except for guarded files
    auto     as edits, and commands run without asking, confined to the workspace and without a network
    yolo     nothing asks

A command that must leave the confinement of a mode or rule (`Intent.escalation`) asks in every mode but plan, which
refuses it, and yolo. Deny rules hold in every mode. The mode is read when a call is decided, so the next one obeys it.
"""

from __future__ import annotations

from typing import Literal, get_args

from kedge.core.approvals import Grant, Intent, Permit, Rules, permit

#: From the narrowest to the widest.
Mode = Literal["plan", "ask", "edits", "auto", "yolo"]
MODES: tuple[Mode, ...] = get_args(Mode)

#: Actions that only read. Those outside of the workspace still ask.
_READING = frozenset({"read", "fetch"})
PLAN_REFUSAL = (
    "this session is in plan mode, in which nothing is changed and only read-only commands run; "
    "investigate, then present a plan"
)
NO_SANDBOX = "mode auto needs a sandbox, which this machine does not have (see kedge doctor); use edits or ask"


def narrower(one: Mode, other: Mode) -> Mode:
    """Return the mode that allows less."""
    return min(one, other, key=MODES.index)


def permit_in_mode(mode: Mode, intent: Intent, rules: Rules, grants: tuple[Grant, ...], *, can_confine: bool) -> Permit:
    """Decide on an Intent. `can_confine`: this machine can confine commands as mode auto needs it."""
    decided = permit(intent, rules, grants, skip=mode == "yolo")
    if decided.decision == "deny":
        return decided
    if mode == "plan" and (_changes_something(intent) or intent.escalation):
        return Permit("refuse", PLAN_REFUSAL)
    if mode == "yolo":
        return _unconfined(decided, intent)
    if intent.escalation:
        return Permit("refuse", f"it needs an approval, but {intent.unshown}") if intent.unshown else Permit("ask")
    if decided.decision == "allow":
        return decided
    if mode in ("edits", "auto") and _is_plain_edit(intent):
        return Permit("allow", f"mode {mode} allows it")
    if mode == "auto" and intent.action == "execute":
        return Permit("allow", "mode auto allows it", "workspace") if can_confine else Permit("refuse", NO_SANDBOX)
    return decided


def _unconfined(decided: Permit, intent: Intent) -> Permit:
    """Return the permission of mode yolo, in which no wildcard rule confines a command. A read-only one stays so."""
    stays = decided.confinement == "read_only" and not intent.escalation
    return Permit(decided.decision, decided.reason, "read_only" if stays else "configured")


def _changes_something(intent: Intent) -> bool:
    return intent.needs_approval and intent.action not in _READING


def _is_plain_edit(intent: Intent) -> bool:
    """Return True for a change of a file in the workspace that is not guarded. The subject of others is absolute."""
    return intent.action == "write" and not intent.exact_only and not intent.subject.startswith("/")
