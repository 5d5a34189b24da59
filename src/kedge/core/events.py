"""Events: durable facts. One Event is one entry of a workspace's log, with one Position, and one frame on the stream.

The first group is what the Lane decides; `lane.apply` understands these and no others. The second group tells readers
which record changed; the log names the record, it does not repeat its body.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Outcome = Literal["completed", "failed", "cancelled", "interrupted"]
#: created: readers see the record for the first time. updated: it has other content. deleted: it is gone.
Change = Literal["created", "updated", "deleted"]


class RunAccepted(Struct, frozen=True):
    """The prompt has its seq; from here on it will end. `folds`: it waits to join the active Run."""

    run_id: str
    seq: int
    folds: bool
    at: int


class RunStarted(Struct, frozen=True):
    run_id: str
    at: int


class RunResumed(Struct, frozen=True):
    """The Run was active when its process was lost, and goes on in this one."""

    run_id: str
    at: int


class StepStarted(Struct, frozen=True):
    run_id: str
    step: int
    at: int


class RunFolded(Struct, frozen=True):
    """A waiting prompt has joined the active Run `into`, and ends with it."""

    run_id: str
    into: str
    at: int


class RunEdited(Struct, frozen=True):
    run_id: str
    at: int


class RunMoved(Struct, frozen=True):
    """A queued Run now stands before another one, or last."""

    run_id: str
    before: str | None
    at: int


class FoldMarked(Struct, frozen=True):
    """A queued Run now waits to join the active one."""

    run_id: str
    at: int


class CancelMarked(Struct, frozen=True):
    """Every Run with seq <= mark is covered. `run_id` is the active one, which is told to stop."""

    mark: int
    run_id: str
    at: int


class RunCancelMarked(Struct, frozen=True):
    """This one active Run is told to stop; no other is touched."""

    run_id: str
    at: int


class RunEnded(Struct, frozen=True):
    """The terminal event. The store keeps a unique index over it: at most one per Run, whatever happens above."""

    run_id: str
    outcome: Outcome
    reason: str
    at: int
    folded_into: str | None = None


LaneEvent = (
    RunAccepted
    | RunStarted
    | RunResumed
    | StepStarted
    | RunFolded
    | RunEdited
    | RunMoved
    | FoldMarked
    | CancelMarked
    | RunCancelMarked
    | RunEnded
)


class RunReported(Struct, frozen=True):
    """Follows each RunEnded in the same append: `run_complete` on the wire, where RunEnded is a change of the Run."""

    run_id: str
    outcome: Outcome
    reason: str


class ErrorReported(Struct, frozen=True):
    """A Run failed: `agent_event` on the wire, for clients that show errors as they happen."""

    run_id: str


class SessionChanged(Struct, frozen=True):
    session_id: str
    change: Change


class MessageChanged(Struct, frozen=True):
    message_id: str
    change: Change


class RetryReported(Struct, frozen=True):
    """A request to the model failed and is made again after a pause: for people, who would wonder why nothing comes."""

    run_id: str
    attempt: int
    attempts_max: int
    wait_s: float
    error: str


class Asked(Struct, frozen=True):
    """An Ask is pending: people are to see it."""

    run_id: str
    ask_id: str


class AskSettled(Struct, frozen=True):
    """It was answered, or withdrawn with its Run: whoever shows it takes it away."""

    run_id: str
    ask_id: str


class FileChanged(Struct, frozen=True):
    """A tool call of the Run changed a file, or the change was undone."""

    run_id: str
    version_id: str
    path: str
    change: Change


ReportEvent = (
    RunReported | ErrorReported | SessionChanged | MessageChanged | RetryReported | Asked | AskSettled | FileChanged
)
Event = LaneEvent | ReportEvent

#: The log stores an event under its class name.
EVENT_TYPES: dict[str, type[Event]] = {
    kind.__name__: kind
    for kind in (
        *(RunAccepted, RunStarted, RunResumed, StepStarted, RunFolded, RunEdited, RunMoved, FoldMarked),
        *(CancelMarked, RunCancelMarked, RunEnded, RunReported, ErrorReported, SessionChanged, MessageChanged),
        *(RetryReported, Asked, AskSettled, FileChanged),
    )
}
