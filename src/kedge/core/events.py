"""Events: durable facts.

An Event is one entry of a workspace's log, with one Position, and becomes one frame on the stream. The Lane decides the
events of the first group, and `lane.apply` understands only these. The events of the second group name a record that
changed; the log does not repeat the record's body.
"""

from __future__ import annotations

from typing import Literal, get_args

from msgspec import Struct

Outcome = Literal["completed", "failed", "cancelled", "interrupted"]
#: created: the record is new to readers. updated: its content changed. deleted: it no longer exists.
Change = Literal["created", "updated", "deleted"]

#: Why a Run ended, beyond its outcome. Empty: it completed. The second group are codes of errors.
Reason = Literal[
    "",
    "approval_needed",
    "budget",
    "cancelled",
    "cancelled_in_queue",
    "context_full",
    "loop",
    "max_steps",
    "removed",
    "server_lost",
    "shutdown",
    "timeout",
    "bad_config",
    "directory_timeout",
    "internal",
    "invalid",
    "model_failed",
    "process_failed",
    "store_damaged",
    "store_error",
    "store_unavailable",
    "warden_failed",
]

#: A sentence for users per reason. A Run that failed also has an error text with the details.
REASON_TEXTS: dict[Reason, str] = {
    "": "",
    "approval_needed": "a tool call needed an approval and no user could be asked",
    "budget": "the run used up its budget",
    "cancelled": "cancelled",
    "cancelled_in_queue": "cancelled before it started",
    "context_full": "the prompt is too long for the model",
    "loop": "the model repeated the same call",
    "max_steps": "the run used up its steps",
    "removed": "removed from the queue",
    "server_lost": "the server process was lost",
    "shutdown": "the server was shut down",
    "timeout": "the run took longer than its time limit",
    "bad_config": "the configuration is not valid",
    "directory_timeout": "the directory of the workspace did not answer",
    "internal": "unexpected error",
    "invalid": "the request is not valid",
    "model_failed": "the model provider failed",
    "process_failed": "a process could not be started",
    "store_damaged": "stored data is damaged",
    "store_error": "the store refused the data",
    "store_unavailable": "the store did not answer",
    "warden_failed": "the process keeper failed",
}


def reason_of(code: str) -> Reason:
    """Return the reason for a Run that failed with an error of this code."""
    return next((reason for reason in REASON_TEXTS if reason == code), "internal")


class RunAccepted(Struct, frozen=True, omit_defaults=True):
    """The prompt has a seq and will end. `folds`: it waits to join the active Run."""

    run_id: str
    seq: int
    folds: bool
    at: int
    #: The queued Run that it was placed before; None: at the end. The log keeps the place, so that it does not depend
    #: on the rule.
    before: str | None = None
    #: The user who sent the prompt. Empty: the owner.
    author: str = ""


class RunStarted(Struct, frozen=True):
    run_id: str
    at: int


class RunResumed(Struct, frozen=True):
    """The Run was active when its process was lost, and continues in this one."""

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
    """A queued Run moved before another one, or to the end of the queue."""

    run_id: str
    before: str | None
    at: int


class FoldMarked(Struct, frozen=True):
    """A queued Run now waits to join the active one."""

    run_id: str
    at: int


class CancelMarked(Struct, frozen=True, omit_defaults=True):
    """Every Run with seq <= mark is covered. `run_id` is the active Run, which has to stop."""

    mark: int
    run_id: str
    at: int
    author: str = ""


class RunCancelMarked(Struct, frozen=True, omit_defaults=True):
    """The active Run has to stop; no other Run is covered."""

    run_id: str
    at: int
    author: str = ""


class RunEnded(Struct, frozen=True, omit_defaults=True):
    """The terminal event. A unique index in the store allows at most one per Run."""

    run_id: str
    outcome: Outcome
    reason: Reason
    at: int
    folded_into: str | None = None
    #: The user who cancelled it while it was queued. Empty: the owner, or it was not.
    author: str = ""


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
    reason: Reason


class ErrorReported(Struct, frozen=True):
    """A Run failed: `agent_event` on the wire, for clients that show errors as they happen."""

    run_id: str


class SessionChanged(Struct, frozen=True):
    session_id: str
    change: Change


class MessageChanged(Struct, frozen=True):
    message_id: str
    change: Change


class SessionRewound(Struct, frozen=True):
    """The messages of a session from this one on were removed. The fork has the whole conversation."""

    session_id: str
    message_id: str
    fork_session_id: str


class RetryReported(Struct, frozen=True):
    """A request to the model failed and is retried after `wait_s`: lets clients explain the silence."""

    run_id: str
    attempt: int
    attempts_max: int
    wait_s: float
    error: str


class Asked(Struct, frozen=True):
    """An Ask is pending: clients show it."""

    run_id: str
    ask_id: str


class AskSettled(Struct, frozen=True):
    """An Ask was answered, or withdrawn with its Run: clients remove it."""

    run_id: str
    ask_id: str


class FileChanged(Struct, frozen=True):
    """A tool call of the Run changed a file, or all its changes of the file were undone."""

    run_id: str
    #: The same for all changes of this file by the Run.
    version_id: str
    path: str
    change: Change
    undone: bool = False


ReportEvent = (
    RunReported
    | ErrorReported
    | SessionChanged
    | SessionRewound
    | MessageChanged
    | RetryReported
    | Asked
    | AskSettled
    | FileChanged
)
Event = LaneEvent | ReportEvent

#: The log stores an event under its class name.
EVENT_TYPES: dict[str, type[Event]] = {kind.__name__: kind for kind in get_args(Event)}
