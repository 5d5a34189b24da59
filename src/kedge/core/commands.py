"""Commands: wishes put to a Lane. Everything a decision needs comes in with them, the time included."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

WhenBusy = Literal["queue", "fold", "reject", "interrupt"]
OnCrash = Literal["resume", "end"]

#: Queued Runs of one session, unless the configuration sets another limit.
QUEUE_RUNS_MAX = 100
#: Resumptions of one Run: a Run that keeps crashing its process ends after this many.
RESUMES_MAX = 3


def when_busy_default(*, has_own_run_id: bool) -> WhenBusy:
    """A client that names its Run waits for that Run's own end; one that does not is steering the work under way."""
    return "queue" if has_own_run_id else "fold"


class Submit(Struct, frozen=True):
    run_id: str
    #: Digest of what the Run is asked to do: equal for a repeated request, different for another one.
    content: str
    when_busy: WhenBusy
    now: int
    #: The content accepted earlier under this run_id, live or ended, if any.
    accepted_content: str | None = None
    queue_runs_max: int = QUEUE_RUNS_MAX


class Cancel(Struct, frozen=True):
    """Stop everything accepted so far."""

    now: int


class CancelRun(Struct, frozen=True):
    """Stop or remove this one Run."""

    run_id: str
    now: int


class ClearQueue(Struct, frozen=True):
    """Remove all queued Runs; leave the active one alone."""

    now: int


class EditRun(Struct, frozen=True):
    run_id: str
    now: int


class MoveRun(Struct, frozen=True):
    run_id: str
    #: The queued Run to stand before; None: last.
    before: str | None
    now: int


class FoldRun(Struct, frozen=True):
    """Have a queued Run join the active one, as if it had been submitted so."""

    run_id: str
    now: int


class BeginStep(Struct, frozen=True):
    """By the engine: the active Run is about to ask the model."""

    run_id: str
    now: int
    #: Whether those who wait to fold join now. A Step that only sums up the past answers nobody.
    folds: bool = True


class Finish(Struct, frozen=True):
    """By the engine, once the Run's task and all its processes are gone.

    There is no outcome `cancelled` here: whether a Run was cancelled is for the Lane to say."""

    run_id: str
    outcome: Literal["completed", "failed", "interrupted"]
    reason: str
    now: int


class Recover(Struct, frozen=True):
    """By the engine, when it takes over a Lane whose process was lost."""

    on_crash: OnCrash
    now: int
    resumes_max: int = RESUMES_MAX


Command = Submit | Cancel | CancelRun | ClearQueue | EditRun | MoveRun | FoldRun | BeginStep | Finish | Recover
