"""Checks of refusals: a request is refused only for the reason that its error names."""

from __future__ import annotations

from collections.abc import Sequence

from kedge.errors import (
    Invalid,
    KedgeError,
    LaneBusy,
    MessageNotFound,
    QueueFull,
    RunIsFolded,
    RunNotFound,
    RunNotQueued,
    SessionNotFound,
    Starting,
    StoreUnavailable,
    Unavailable,
    Unreachable,
)
from proof.sim.client import Request
from proof.sim.ledger import QueueState, SessionLedger
from proof.sim.plan import Kind
from proof.sim.state import SimState

#: The errors that each kind of request may be refused with.
_REFUSALS: dict[Kind, tuple[type[KedgeError], ...]] = {
    "submit": (LaneBusy, QueueFull, SessionNotFound),
    "cancel": (SessionNotFound,),
    "clear": (SessionNotFound,),
    "delete": (SessionNotFound,),
    "look": (SessionNotFound,),
    "mode": (SessionNotFound,),
    "cancel_run": (RunNotFound, RunIsFolded, SessionNotFound),
    "edit": (RunNotFound, RunNotQueued, SessionNotFound),
    "move": (RunNotFound, RunNotQueued, SessionNotFound),
    "fold": (RunNotFound, RunNotQueued, SessionNotFound),
    "wait": (RunNotFound, SessionNotFound),
    "shell": (SessionNotFound,),
    "rewind": (Invalid, LaneBusy, MessageNotFound, SessionNotFound),
}


class RefusalChecks:
    def __init__(self, state: SimState, ledgers: dict[str, SessionLedger], requests: Sequence[Request]) -> None:
        self._state = state
        self._ledgers = ledgers
        self._submits = {request.act.run: request for request in requests if request.act.kind == "submit"}

    def problem(self, request: Request) -> str | None:
        """Return what is wrong with this refusal, or None."""
        error, act = request.error, request.act
        assert error is not None
        is_sent_once = act.kind in ("shell", "rewind") or (act.kind == "submit" and not act.own_id)
        if is_sent_once and isinstance(error, Unreachable | Unavailable):
            problem = "no fault of server or network had happened" if self._state.is_calm else ""
        elif isinstance(error, StoreUnavailable) and act.kind not in ("cancel", "cancel_run"):
            problem = "" if self._state.counts["store full"] else "the store was away only for a moment"
        elif isinstance(error, Starting) and self._state.counts["store full"] and self._state.was_interrupted:
            problem = ""  # its Runs are recovered, and can be stopped, when the disk has space
        elif act.script == "typed broken" and isinstance(error, Invalid):
            problem = ""
        elif not isinstance(error, _REFUSALS.get(act.kind, ())):
            problem = "that error is not allowed"
        else:
            problem = self._missing_reason(request, error)
        return f"{act.kind} was refused with {type(error).__name__} ({error}): {problem}" if problem else None

    def _missing_reason(self, request: Request, error: KedgeError) -> str:
        """Return why the error's reason does not hold, or an empty text."""
        match error:
            case SessionNotFound():
                # A deletion that the store does not take is in progress until it is given up.
                is_being_deleted = self._state.counts["store full"] and self._state.counts["delete"]
                return "" if self._is_deleted(request) or is_being_deleted else "its session exists"
            case RunNotFound():
                return "" if self._is_deleted(request) or not self._all_known(request) else "it has a receipt"
            case LaneBusy():
                was_busy = any(state.active for state in self.queue_states(request))
                if request.act.kind == "rewind":  # a user's command adds a message as well
                    return "" if was_busy or self._state.typed else "no Run was active"
                return "" if was_busy and request.act.when_busy == "reject" else "no Run was active"
            case Invalid():  # a prompt within another Run: it was cancelled in the queue, or has folded in
                return "" if self._may_have_cancelled() else "nothing was cancelled"
            case MessageNotFound():
                return "" if self._state.cut else "no message was removed"
            case QueueFull():
                queues = [state.queue for state in self.queue_states(request)]
                is_full = any(len(queue) >= self._state.plan.queue_runs_max for queue in queues)
                return "" if is_full else "the queue was not full"
            case RunNotQueued():
                queues = [state.queue for state in self.queue_states(request)]
                always = all(run in queue for queue in queues for run in self._run_ids(request))
                return "it was queued all the time" if always else ""
            case RunIsFolded():
                folded = {run for ledger in self._ledgers.values() for run in ledger.folded}
                return "" if set(self._run_ids(request)) & folded else "it was not folded"
        raise AssertionError(error)

    def _may_have_cancelled(self) -> bool:
        """Return whether an act cancels Runs. A prompt that interrupts does, also those in the queue."""
        counts = self._state.counts
        interrupts = any(act.when_busy == "interrupt" for act in self._state.plan.acts)
        return bool(counts["cancel"] or counts["cancel_run"] or interrupts)

    def queue_states(self, request: Request) -> list[QueueState]:
        """Return the states that the queue of its session may have had when the request was decided."""
        ledger = self._ledgers.get(self.session_of(request))
        if ledger is None:
            return []
        since = request.sent_at
        if self._state.store_failed or request.attempts > 1:
            since = 0.0  # an unconfirmed append is decided later, and an earlier attempt may have acted
        ends = [state.since for state in ledger.queue_states[1:]] + [request.replied_at]
        pairs = zip(ledger.queue_states, ends, strict=True)
        return [state for state, end in pairs if state.since <= request.replied_at and end >= since]

    def session_of(self, request: Request) -> str:
        """Return the session of the Run that the request names, or the session that it names itself."""
        names_a_run = request.act.kind in ("cancel_run", "edit", "move", "fold", "wait")
        submit = self._submits.get(request.act.run) if names_a_run else None
        return self._state.session_ids[(submit or request).act.session]

    def _is_deleted(self, request: Request) -> bool:
        ledger = self._ledgers.get(self.session_of(request))
        return ledger is not None and ledger.is_deleted

    def _run_ids(self, request: Request) -> list[str]:
        return [self._state.run_ids.get(number, "nobody") for number in _prompt_numbers(request)]

    def _all_known(self, request: Request) -> bool:
        return all(self.is_known(number, request) for number in _prompt_numbers(request))

    def is_known(self, number: int, request: Request) -> bool:
        """Had the receipt of this prompt arrived before the request was sent, in the same session?"""
        submit = self._submits.get(number)
        if submit is None or submit.reply is None or submit.replied_at >= request.sent_at:
            return False
        return self._state.session_ids[submit.act.session] == self.session_of(request)


def _prompt_numbers(request: Request) -> list[int]:
    """Return the numbers of the prompts that the request names."""
    act = request.act
    return [act.run] if act.kind != "move" or act.before is None else [act.run, act.before]
