"""Commands: requests to change a Lane. A command carries everything its decision needs, including the time.

The `author` of a command is the name of the user who sent it. Empty: the owner, or the engine."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from kedge.core.events import Reason

#: Queued Runs per session, unless configured otherwise: more than a user submits by hand. Items.
QUEUE_RUNS_MAX = 100
#: Queued Runs of one named user per session, unless configured otherwise: five users fill a queue. Items.
QUEUE_RUNS_PER_USER_MAX = 20
#: A Run that keeps crashing its process is ended after this many resumptions. Items.
RESUMES_MAX = 2

WhenBusy = Literal["queue", "fold", "reject", "interrupt"]
OnCrash = Literal["resume", "end"]
#: The report of the supervisor of a Run. There is no `cancelled`: the Lane decides that.
VerdictOutcome = Literal["completed", "failed", "stopped"]


def when_busy_default(*, has_own_run_id: bool) -> WhenBusy:
    """Return the default for a prompt.

    A client that names its Run waits for the end of that Run; one that does not is steering the active Run."""
    return "queue" if has_own_run_id else "fold"


class Submit(Struct, frozen=True):
    run_id: str
    #: Digest of the request: equal if and only if the same prompt is sent again.
    content: str
    when_busy: WhenBusy
    now: int
    #: The content accepted earlier under this run_id, live or ended, if any.
    accepted_content: str | None = None
    queue_runs_max: int = QUEUE_RUNS_MAX
    author: str = ""
    #: For an author with a name.
    queue_runs_per_user_max: int = QUEUE_RUNS_PER_USER_MAX


class Cancel(Struct, frozen=True):
    """Stop every Run accepted so far."""

    now: int
    author: str = ""


class CancelRun(Struct, frozen=True):
    """Stop the active Run or remove a queued one."""

    run_id: str
    now: int
    #: Its client is gone. Otherwise the user removes a queued Run, which leaves no messages.
    is_abandoned: bool = False
    author: str = ""


class ClearQueue(Struct, frozen=True):
    """Remove all queued Runs and leave the active one alone."""

    now: int
    author: str = ""


class EditRun(Struct, frozen=True):
    run_id: str
    now: int
    author: str = ""


class MoveRun(Struct, frozen=True):
    run_id: str
    #: The queued Run to move before; None: to the end.
    before: str | None
    now: int
    author: str = ""


class FoldRun(Struct, frozen=True):
    """Let a queued Run join the active one, as if submitted with `fold`."""

    run_id: str
    now: int
    author: str = ""


class BeginStep(Struct, frozen=True):
    """From the engine: the active Run is about to send a request to the model."""

    run_id: str
    now: int
    #: Whether Runs that wait to fold join now. A Step that only writes a summary answers no prompt.
    folds: bool = True


class Finish(Struct, frozen=True):
    """From the engine: the Run's task and all its processes are gone.

    `stopped`: the Run was stopped before its end. The Lane decides why: a cancel covers it, or the server shuts down.
    """

    run_id: str
    outcome: VerdictOutcome
    reason: Reason
    now: int


class Recover(Struct, frozen=True):
    """From the engine: it takes over a Lane whose process was lost."""

    on_crash: OnCrash
    now: int
    resumes_max: int = RESUMES_MAX


Command = Submit | Cancel | CancelRun | ClearQueue | EditRun | MoveRun | FoldRun | BeginStep | Finish | Recover
