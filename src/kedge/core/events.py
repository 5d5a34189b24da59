"""Events: durable facts. One Event is one entry of a workspace's log, with one Position, and one frame on the stream.

The first group is what the Lane decides; `lane.apply` understands these and no others. The second group tells readers
which record changed; the log names the record, it does not repeat its body.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Outcome = Literal["completed", "failed", "cancelled", "interrupted"]
#: created: readers see the record for the first time. updated: it has other content. deleted: it is gone.
Change = Literal["created", "updated", "deleted"]


@dataclass(frozen=True, slots=True)
class RunAccepted:
    """The prompt has its seq; from here on it will end. `folds`: it waits to join the active Run."""

    run_id: str
    seq: int
    folds: bool
    at: int


@dataclass(frozen=True, slots=True)
class RunStarted:
    run_id: str
    at: int


@dataclass(frozen=True, slots=True)
class RunResumed:
    """The Run was active when its process was lost, and goes on in this one."""

    run_id: str
    at: int


@dataclass(frozen=True, slots=True)
class StepStarted:
    run_id: str
    step: int
    at: int


@dataclass(frozen=True, slots=True)
class RunFolded:
    """A waiting prompt has joined the active Run `into`, and ends with it."""

    run_id: str
    into: str
    at: int


@dataclass(frozen=True, slots=True)
class RunEdited:
    run_id: str
    at: int


@dataclass(frozen=True, slots=True)
class RunMoved:
    """A queued Run now stands before another one, or last."""

    run_id: str
    before: str | None
    at: int


@dataclass(frozen=True, slots=True)
class FoldMarked:
    """A queued Run now waits to join the active one."""

    run_id: str
    at: int


@dataclass(frozen=True, slots=True)
class CancelMarked:
    """Every Run with seq <= mark is covered. `run_id` is the active one, which is told to stop."""

    mark: int
    run_id: str
    at: int


@dataclass(frozen=True, slots=True)
class RunCancelMarked:
    """This one active Run is told to stop; no other is touched."""

    run_id: str
    at: int


@dataclass(frozen=True, slots=True)
class RunEnded:
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


@dataclass(frozen=True, slots=True)
class RunReported:
    """Follows each RunEnded in the same append: `run_complete` on the wire, where RunEnded is a change of the Run."""

    run_id: str
    outcome: Outcome
    reason: str


@dataclass(frozen=True, slots=True)
class ErrorReported:
    """A Run failed: `agent_event` on the wire, for clients that show errors as they happen."""

    run_id: str


@dataclass(frozen=True, slots=True)
class SessionChanged:
    session_id: str
    change: Change


@dataclass(frozen=True, slots=True)
class MessageChanged:
    message_id: str
    change: Change


@dataclass(frozen=True, slots=True)
class RetryReported:
    """A request to the model failed and is made again after a pause: for people, who would wonder why nothing comes."""

    run_id: str
    attempt: int
    attempts_max: int
    wait_s: float
    error: str


@dataclass(frozen=True, slots=True)
class Asked:
    """An Ask is pending: people are to see it."""

    run_id: str
    ask_id: str


@dataclass(frozen=True, slots=True)
class AskSettled:
    """It was answered, or withdrawn with its Run: whoever shows it takes it away."""

    run_id: str
    ask_id: str


@dataclass(frozen=True, slots=True)
class FileChanged:
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
