"""Checks of permissions: a command starts only if an answer, a grant, a rule or the mode at its decision allowed it."""

from __future__ import annotations

from collections.abc import Iterator

from kedge.core.approvals import BY_RULE, Confinement
from kedge.core.modes import Mode
from proof.sim.machine import COMMANDS, ProcessStart
from proof.sim.state import SimState, sim_time

#: From the decision on a call to the start of its process. Seconds.
DECIDED_S = 1.0


def check_permissions(state: SimState) -> Iterator[str]:
    """Yield the broken promises. Deleted sessions take their answers and grants along, so no session is deleted."""
    for start in state.starts:
        if start.call_id and not _is_permitted(state, start):
            yield f"{start} was permitted by nothing; the modes were {_modes_at(state, start)}"
    for session in state.data.sessions.values():
        if session.own_mode is not None and not state.data.live:
            yield f"{session.id} has no Run, and the mode {session.mode} of one instead of its own, {session.own_mode}"


def _is_permitted(state: SimState, start: ProcessStart) -> bool:
    modes = _modes_at(state, start)
    permitted: set[tuple[Mode, Confinement]] = {("yolo", "configured"), ("auto", "workspace")}
    if any((mode, start.confinement) in permitted for mode in modes):
        return True
    asks = [ask for ask in state.data.asks.values() if ask.tool_call_id == start.call_id and ask.kind == "approval"]
    if start.confinement != "configured":
        return False
    if any(ask.is_allowed and ask.answered_by != BY_RULE for ask in asks):
        return True
    session_id = _session_of(state, start)
    grants = [grant for grant in state.data.grants.values() if grant.session_id in ("", session_id)]
    is_granted = any(sim_time(grant.created_at) <= start.at for grant in grants)
    is_left_to_rules = not asks or any(ask.answered_by == BY_RULE for ask in asks)
    return is_left_to_rules and modes != {"plan"} and (start.command in COMMANDS or is_granted)


def _modes_at(state: SimState, start: ProcessStart) -> set[Mode]:
    """Return the modes that the session may have had when the call was decided."""
    # A switch that the store failed to confirm may be obeyed any time later.
    since = 0.0 if state.store_failed else start.at - DECIDED_S
    changes = [(at, mode) for at, mode in state.modes.get(_session_of(state, start), ()) if at <= start.at]
    earlier = [mode for at, mode in changes if at <= since]
    return {*earlier[-1:], *(mode for at, mode in changes if at > since)}


def _session_of(state: SimState, start: ProcessStart) -> str:
    return state.data.runs[(state.workspace_id, start.run_id)].session_id
