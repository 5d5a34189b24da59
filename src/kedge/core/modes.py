"""Modes: how much a session's agent may do without asking. Pure, around `permit`.

    plan     read-only: a call that changes something is refused
    ask      as the rules and grants say; everything else asks
    edits    changes of the workspace's files pass, except for guarded files
    auto     as edits, and commands run without asking, confined to the workspace and without a network; one that names
             credentials asks
    yolo     nothing asks

A command that must leave the confinement of a mode or rule (`Intent.escalation`) asks in every mode but plan, which
refuses it, and yolo. Deny rules hold in every mode. The mode is read when a call is decided, so the next one obeys it.
"""

from __future__ import annotations

from typing import Literal, get_args

from kedge.core.approvals import Confinement, Grant, Intent, Permit, Rules, parse_rules, permit
from kedge.core.patterns import has_wildcard
from kedge.errors import Invalid

#: From the narrowest to the widest.
Mode = Literal["plan", "ask", "edits", "auto", "yolo"]
MODES: tuple[Mode, ...] = get_args(Mode)

#: Rules that one message suggests: more are not read. Items.
REMEDY_RULES_MAX = 8
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


def permit_in_mode(
    mode: Mode,
    intent: Intent,
    rules: Rules,
    grants: tuple[Grant, ...],
    *,
    can_confine: bool,
    hook: Literal["", "allow", "ask", "deny"] = "",
) -> Permit:
    """Decide on an Intent. `can_confine`: this machine can confine commands as mode auto needs it.

    `hook`: the decision of the user's hooks. Their "ask" asks in every mode; their "allow" is as an allow rule."""
    decided = _permit(mode, intent, rules, grants, can_confine=can_confine, hook_allows=hook == "allow")
    if hook != "ask" or decided.decision != "allow":
        return decided
    return _asking(intent, decided.confinement)


def _asking(intent: Intent, confinement: Confinement = "configured") -> Permit:
    if intent.unshown:
        return Permit("refuse", f"it needs an approval, but {intent.unshown}")
    return Permit("ask", confinement=confinement)


def _permit(
    mode: Mode, intent: Intent, rules: Rules, grants: tuple[Grant, ...], *, can_confine: bool, hook_allows: bool
) -> Permit:
    decided = permit(intent, rules, grants, skip=mode == "yolo", hook_allows=hook_allows)
    if decided.decision == "deny":
        return decided
    if mode == "plan" and (_changes_something(intent) or intent.escalation):
        return Permit("refuse", PLAN_REFUSAL)
    if mode == "yolo":
        return _unconfined(decided, intent)
    if intent.escalation:
        return _asking(intent)
    if decided.decision == "allow":
        return decided
    if mode in ("edits", "auto") and _is_plain_edit(intent):
        return Permit("allow", f"mode {mode} allows it")
    if mode == "auto" and intent.action == "execute":
        if not can_confine:
            return Permit("refuse", NO_SANDBOX)
        if intent.exact_only:  # the sandbox does not keep files from being read
            return _asking(intent, "workspace")
        return Permit("allow", "mode auto allows it", "workspace")
    return decided


def remedy(intent: Intent, *, can_confine: bool) -> str:
    """Return the narrowest options of `kedge run` that allow this Intent without asking. Each is tried, not assumed; a
    rule for every command is never among them."""
    options = [" ".join(f"--allow '{rule}'" for rule in rules)] if (rules := _narrowest_rules(intent)) else []
    modes: tuple[Mode, ...] = ("edits", "auto")
    options += [
        f"--mode {mode}"
        for mode in modes
        if permit_in_mode(mode, intent, Rules(), (), can_confine=can_confine).decision == "allow"
    ][:1]
    if options:
        return f"Allow it with {' or '.join(options)}."
    return "No rule covers it: run it on a terminal and approve it there, or allow everything with --mode yolo."


def _narrowest_rules(intent: Intent) -> list[str]:
    """Return the rules that allow this Intent and nothing else; none if there are no such rules."""
    if intent.action == "execute":
        literal = [command for command in intent.commands[:REMEDY_RULES_MAX] if command and None not in command]
        rules = list(dict.fromkeys(f"bash({' '.join(map(str, command))})" for command in literal))
    else:
        rules = [f"{intent.names[-1]}({intent.subject})"]
    if any("'" in rule or not rule.isprintable() for rule in rules) or not _allow(rules, intent):
        return []
    for rule in tuple(rules):  # without those for read-only parts of the line, which need none
        fewer = [other for other in rules if other != rule]
        rules = fewer if _allow(fewer, intent) else rules
    return rules


def _allow(rules: list[str], intent: Intent) -> bool:
    try:
        parsed = parse_rules(rules, [])
    except Invalid:  # too long, or not a rule
        return False
    is_narrow = not any(has_wildcard(rule.pattern or "*") for rule in parsed.allow)
    return is_narrow and not intent.escalation and permit(intent, parsed, ()).decision == "allow"


def _unconfined(decided: Permit, intent: Intent) -> Permit:
    """Return the permission of mode yolo, in which no wildcard rule confines a command. A read-only one stays so."""
    stays = decided.confinement == "read_only" and not intent.escalation
    return Permit(decided.decision, decided.reason, "read_only" if stays else "configured")


def _changes_something(intent: Intent) -> bool:
    return intent.needs_approval and intent.action not in _READING


def _is_plain_edit(intent: Intent) -> bool:
    """Return True for a change of a file in the workspace that is not guarded. The subject of others is absolute."""
    return intent.action == "write" and not intent.exact_only and not intent.subject.startswith("/")
