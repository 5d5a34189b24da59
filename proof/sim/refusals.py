"""The judge's look at refusals: nobody is refused but for the reason that the error names."""

from __future__ import annotations

from collections.abc import Sequence

from kedge.errors import (
    Invalid,
    KedgeError,
    LaneBusy,
    QueueFull,
    RunIsFolded,
    RunNotFound,
    RunNotQueued,
    SessionNotFound,
    Unavailable,
    Unreachable,
)
from proof.sim.books import Books, Line
from proof.sim.client import Told
from proof.sim.plan import Kind
from proof.sim.scene import Scene

#: What a client may be refused with, by what it asks for; anything else is a fault.
_REFUSALS: dict[Kind, tuple[type[KedgeError], ...]] = {
    "submit": (LaneBusy, QueueFull, SessionNotFound),
    "cancel": (SessionNotFound,),
    "clear": (SessionNotFound,),
    "delete": (SessionNotFound,),
    "look": (SessionNotFound,),
    "cancel_run": (RunNotFound, RunIsFolded, SessionNotFound),
    "edit": (RunNotFound, RunNotQueued, SessionNotFound),
    "move": (RunNotFound, RunNotQueued, SessionNotFound),
    "fold": (RunNotFound, RunNotQueued, SessionNotFound),
    "wait": (RunNotFound, SessionNotFound),
    "shell": (SessionNotFound,),
}


class Refusals:
    def __init__(self, scene: Scene, books: dict[str, Books], told: Sequence[Told]) -> None:
        self._scene = scene
        self._books = books
        self._submits = {other.act.run: other for other in told if other.act.kind == "submit"}

    def fault(self, told: Told) -> str | None:
        """What is wrong with this refusal; None: nothing is."""
        error, act = told.error, told.act
        assert error is not None
        is_said_once = act.kind == "shell" or (act.kind == "submit" and not act.own_id)
        if is_said_once and isinstance(error, Unreachable | Unavailable):
            why = "" if not self._scene.is_calm else "nothing had happened to the server or the network"
        elif act.script == "typed broken" and isinstance(error, Invalid):
            why = ""
        elif not isinstance(error, _REFUSALS.get(act.kind, ())):
            why = "this is no answer to that"
        else:
            why = self._without_reason(told, error)
        return f"{act.kind} was refused with {type(error).__name__} ({error}), and {why}" if why else None

    def _without_reason(self, told: Told, error: KedgeError) -> str:
        match error:
            case SessionNotFound():
                return "" if self._is_deleted(told) else "its session is there"
            case RunNotFound():
                return "" if self._is_deleted(told) or not self._all_known(told) else "there was a receipt of it"
            case LaneBusy():
                was_busy = any(line.active for line in self.lines(told))
                return "" if was_busy and told.act.when_busy == "reject" else "nobody was in its way"
            case QueueFull():
                is_full = any(len(line.queue) >= self._scene.plan.queue_runs_max for line in self.lines(told))
                return "" if is_full else "there was room"
            case RunNotQueued():
                always = all(run in line.queue for line in self.lines(told) for run in self._named(told))
                return "it was waiting all the time" if always else ""
            case RunIsFolded():
                folded = {run for books in self._books.values() for run in books.folded}
                return "" if set(self._named(told)) & folded else "it has joined nobody"
        raise AssertionError(error)

    def lines(self, told: Told) -> list[Line]:
        """How the line of its session may have stood when this was decided."""
        books = self._books.get(self.session_of(told))
        if books is None:
            return []
        since = told.asked_at
        if self._scene.store_failed or told.attempts > 1:
            since = 0.0  # what is in doubt is decided later, and of what is asked twice the first may have come
        ends = [line.at for line in books.lines[1:]] + [told.answered_at]
        return [
            line for line, end in zip(books.lines, ends, strict=True) if line.at <= told.answered_at and end >= since
        ]

    def session_of(self, told: Told) -> str:
        """The session of the Run it names, or else the one it names itself."""
        names_a_run = told.act.kind in ("cancel_run", "edit", "move", "fold", "wait")
        submit = self._submits.get(told.act.run) if names_a_run else None
        return self._scene.session_ids[(submit or told).act.session]

    def _is_deleted(self, told: Told) -> bool:
        books = self._books.get(self.session_of(told))
        return books is not None and books.is_deleted

    def _named(self, told: Told) -> list[str]:
        return [self._scene.run_ids.get(run, "nobody") for run in _numbers(told)]

    def _all_known(self, told: Told) -> bool:
        """Every Run it names had a receipt before it was asked, and is of this session."""
        return all(self.is_known(run, told) for run in _numbers(told))

    def is_known(self, run: int, told: Told) -> bool:
        submit = self._submits.get(run)
        if submit is None or submit.answer is None or submit.answered_at >= told.asked_at:
            return False
        return self._scene.session_ids[submit.act.session] == self.session_of(told)


def _numbers(told: Told) -> list[int]:
    """The prompts it speaks of."""
    act = told.act
    return [act.run] if act.kind != "move" or act.before is None else [act.run, act.before]
