"""Records: the current state of sessions and Runs, and how Events change it.

The log contains the events, the records contain the current state. One append writes both, so they never disagree.
`project` is the only function that turns Lane events into changes of Run records. `restore` is its inverse: it builds
the Lane from the records.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Literal, get_args

from msgspec import Struct
from msgspec.structs import force_setattr, replace

from kedge.core.approvals import Ask
from kedge.core.events import (
    CancelMarked,
    FoldMarked,
    LaneEvent,
    Outcome,
    Reason,
    RunAccepted,
    RunCancelMarked,
    RunEdited,
    RunEnded,
    RunFolded,
    RunMoved,
    RunResumed,
    RunStarted,
    StepStarted,
)
from kedge.core.extensions import AgentDefinition
from kedge.core.kept_commands import KeptCommand
from kedge.core.lane import Lane, LaneRun
from kedge.core.modes import Mode, narrower
from kedge.core.run_trace import ToolUse, TraceEntry, extended
from kedge.core.transcript import AttachedFile, FinishPart, Message, Part, Text

OnDisconnect = Literal["continue", "cancel"]
#: Handling of a tool call that needs an approval: ask the attached clients, or end the Run.
OnApproval = Literal["ask", "fail"]
#: answer: answer a prompt. summary: replace the history with a summary, and nothing else.
Purpose = Literal["answer", "summary"]
#: How much a model thinks before it answers; empty: its default.
Effort = Literal["", "low", "medium", "high"]
EFFORTS: tuple[Effort, ...] = get_args(Effort)

#: The built-in model, used where none is configured.
OFFLINE = "kedge/offline"


class Attachment(Struct, frozen=True):
    """A file of a prompt. Its content is stored once in the workspace, under its digest."""

    file_path: str
    file_name: str
    mime_type: str
    #: Bytes.
    size: int = 0
    #: Empty: the client named the path only, and the file has not been read.
    digest: str = ""


class AttachmentContent(Struct, frozen=True):
    digest: str
    data: bytes


def attachment_digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class Prompt(Struct, frozen=True):
    text: str
    attachments: tuple[Attachment, ...] = ()
    #: Text and attachments, for the limits of the queue. Bytes.
    size: int = 0
    #: The prompt command that the user typed, `/review 12`, which `text` is the expansion of. Empty: `text` was typed.
    command: str = ""
    #: Resources of MCP servers that the user typed, `server:uri`. Once accepted, those that were attached.
    references: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        texts = (self.text, self.command)
        text_bytes = sum(len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass")) for text in texts)
        force_setattr(self, "size", text_bytes + sum(file.size for file in self.attachments))

    @property
    def typed(self) -> str:
        return self.command or self.text


class RunOptions(Struct, frozen=True):
    model: str | None = None
    max_steps: int | None = None
    timeout_s: float | None = None
    budget_usd: float | None = None
    on_disconnect: OnDisconnect = "continue"
    on_approval: OnApproval = "ask"
    #: Rules for this Run alone, in addition to the configured ones.
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    #: The mode of the session while this Run is active; None: the session's own.
    mode: Mode | None = None
    purpose: Purpose = "answer"
    #: The Run whose tool call started this one, which ends with it and has the tools of its agent.
    parent_run_id: str = ""
    #: The definition of the agent that it is; None: one with the tools that change nothing.
    agent: AgentDefinition | None = None
    #: None: that of the session, if the Run uses its model.
    effort: Effort | None = None

    def merged_with(self, joined: list[RunOptions]) -> RunOptions:
        """Return the options of a Run that the Runs in `joined` were folded into.

        A deny rule of one applies to all; an allow rule must be in all of them. The user is asked if one of them allows
        that."""
        every = (self, *joined)
        return replace(
            self,
            allow=tuple(rule for rule in self.allow if all(one.mode == "yolo" or rule in one.allow for one in every)),
            deny=tuple(dict.fromkeys(rule for one in every for rule in one.deny)),
            on_approval="fail" if all(one.on_approval == "fail" for one in every) else "ask",
        )


def content_digest(session_id: str, prompt: Prompt, options: RunOptions) -> str:
    """Return a digest of session, prompt and options: equal if and only if two submits request the same Run."""
    return hashlib.sha256(repr((session_id, prompt, options)).encode("utf-8", "surrogatepass")).hexdigest()


class Usage(Struct, frozen=True):
    #: All input, including tokens read from and written to the provider's cache.
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cost_usd + other.cost_usd,
            self.cache_read_tokens + other.cache_read_tokens,
            self.cache_write_tokens + other.cache_write_tokens,
        )


class Todo(Struct, frozen=True):
    content: str
    status: Literal["pending", "in_progress", "completed"] = "pending"
    #: Its text while it is in progress.
    active_form: str = ""


def file_version_id(workspace_id: str, run_id: str, path: str) -> str:
    """Return the id of the one version that a Run keeps of a path."""
    return "f" + hashlib.sha256(repr((workspace_id, run_id, path)).encode()).hexdigest()[:32]


class FileVersion(Struct, frozen=True):
    """A file as it was before the first change by a Run, so that its changes can be undone.

    The content is stored separately: it may have megabytes, and each further change of the file writes this record."""

    id: str
    workspace_id: str
    session_id: str
    run_id: str
    #: Absolute.
    path: str
    #: Digest of the content; empty: the file did not exist.
    before: str
    #: Digests of the contents by this Run that the file may have; empty text: the Run removed it. The last one is that
    #: of the latest change. The one before it is there because a version is stored before its file is written: if that
    #: write fails, the file keeps the previous content.
    after: tuple[str, ...]
    created_at: int
    undone: bool = False
    #: The versions that an undo or rewind took back, whose present content this is; empty: the version of a Run. Then
    #: `run_id` is the id of that undo or rewind.
    reverts: tuple[str, ...] = ()

    def changed(self, now: str, after: str) -> FileVersion:
        """Return the version after a further change of content with the digest `now`. It may be repeated."""
        return replace(self, after=(now, after) if now in self.after and now != after else (after,))

    def is_own(self, digest: str) -> bool:
        """Return whether this content is from the Run or from before it."""
        return digest == self.before or digest in self.after


class WorkspaceRecord(Struct, frozen=True):
    id: str
    path: str
    created_at: int
    #: The Position before the first entry of its log. See `first_position`.
    base: int


class SessionRecord(Struct, frozen=True):
    id: str
    workspace_id: str
    title: str
    created_at: int
    updated_at: int
    parent_session_id: str = ""
    message_count: int = 0
    usage: Usage = Usage()
    todos: tuple[Todo, ...] = ()
    #: The summary that replaces all earlier messages in requests to a model.
    summary_message_id: str = ""
    #: Default model of its Runs; empty: the configured one.
    model: str = ""
    #: Default effort of its Runs with that model.
    effort: Effort = ""
    #: The Run whose subagent uses it; empty: a session of the user.
    parent_run_id: str = ""
    #: The title was taken from the first prompt, until a model or the user sets another.
    title_is_makeshift: bool = False
    mode: Mode = "ask"
    #: The session's own mode, to which the end of the active Run returns; None: `mode` is its own.
    own_mode: Mode | None = None
    #: As last written; see `kept_now`.
    kept_commands: tuple[KeptCommand, ...] = ()

    def effort_of(self, run: RunOptions) -> Effort:
        """Return the effort of a Run. Another model than the session's may not support the effort of the session."""
        if run.effort is not None:
            return run.effort
        return self.effort if run.model in (None, self.model) else ""

    def with_mode(self, mode: Mode) -> SessionRecord:
        """Return the session after a switch by the user, which also ends the mode that a Run brought."""
        return replace(self, mode=mode, own_mode=None)

    def with_mode_of(self, run: RunOptions) -> SessionRecord:
        """Return the session when this Run starts."""
        return self if run.mode is None else replace(self, mode=run.mode, own_mode=self.own_mode or self.mode)

    def with_mode_joined(self, run: RunOptions) -> SessionRecord:
        """Return the session when this Run joins the active one: the narrower mode of both applies."""
        own = self.own_mode or self.mode
        mode = narrower(self.mode, run.mode or own)
        return self if mode == self.mode else replace(self, mode=mode, own_mode=own)

    def with_own_mode(self) -> SessionRecord:
        """Return the session when the active Run has ended."""
        return self if self.own_mode is None else self.with_mode(self.own_mode)


class LaneRecord(Struct, frozen=True):
    session_id: str
    version: int = 0
    next_seq: int = 1
    mark: int = 0


class RunRecord(Struct, frozen=True):
    run_id: str
    session_id: str
    workspace_id: str
    seq: int
    prompt: Prompt
    options: RunOptions
    content: str
    accepted_at: int
    #: The Position of its RunAccepted: part of the receipt, which a repeated submit receives again.
    position: int = 0
    state: Literal["queued", "active", "ended"] = "queued"
    #: The state right after acceptance; part of the receipt.
    accepted_state: Literal["queued", "active"] = "queued"
    #: Orders the queue. Equal to seq until a Run is moved or overtakes others.
    queue_order: int = 0
    folds: bool = False
    folded_into: str | None = None
    steps: int = 0
    resumes: int = 0
    #: Stopped by CancelRun alone (`cancelled`), or by any cancel (`stopping`).
    cancelled: bool = False
    stopping: bool = False
    outcome: Outcome | None = None
    reason: Reason = ""
    error: str = ""
    started_at: int | None = None
    ended_at: int | None = None
    message_id: str = ""
    text: str = ""
    usage: Usage = Usage()
    #: Size of the last request to the model and its reply; 0: unknown. Tokens.
    context_tokens: int = 0
    cleanup: Literal["clean", "failed"] = "clean"
    #: The model that was chosen last, `provider/name`; empty: none yet.
    model: str = ""
    #: When the first piece of its first reply arrived.
    first_token_at: int | None = None
    #: The part of `usage` that its child Runs used.
    child_usage: Usage = Usage()
    #: Counted when the result of a call is stored.
    tools: tuple[ToolUse, ...] = ()
    trace: tuple[TraceEntry, ...] = ()
    #: The user who submitted it. Empty: the owner.
    author: str = ""
    #: The user whose cancel stopped or dropped it. Empty: the owner, or it was not cancelled.
    cancelled_by: str = ""
    #: A node without the directory has started it, so it has no task. It begins when a node with the directory resumes
    #: it. Clients see it as queued.
    waits_for_node: bool = False


class RunSpan(Struct, frozen=True):
    """The Runs of a session with a lower seq that were live at some time of an interval, which includes its ends."""

    before_seq: int = 2**63 - 1
    since: int = 0
    until: int = 2**63 - 1


EVERY_RUN = RunSpan()


class SessionView(Struct, frozen=True):
    """A session and its live state, which is not stored."""

    session: SessionRecord
    is_busy: bool = False
    attached_clients: int = 0


#: The records that an event can name in a field such as `run_id`.
RecordKind = Literal["session", "run", "message", "ask"]
Record = SessionView | RunRecord | Message | Ask
#: Records by kind and id.
Records = Mapping[RecordKind, Mapping[str, Record]]


#: Size of the random start of a log: with 48 bits the ranges of two logs practically never overlap, and Positions stay
#: far below 2**53, so that every JSON reader represents them exactly. Bytes.
_BASE_BYTES = 6


def first_position(workspace_id: str) -> int:
    """Return the Position before the first entry of this workspace's log. It differs between logs, so that a
    Position of another workspace, or of an earlier store, is recognised as foreign."""
    return int.from_bytes(hashlib.sha256(workspace_id.encode()).digest()[:_BASE_BYTES])


def restore(record: LaneRecord, live: list[RunRecord]) -> Lane:
    """Return the Lane of these records."""
    hosts = [run for run in live if run.state == "active" and run.folded_into is None]
    folded = sorted((run for run in live if run.state == "active" and run.folded_into), key=lambda run: run.seq)
    queue = sorted((run for run in live if run.state == "queued"), key=lambda run: run.queue_order)
    return Lane(
        next_seq=record.next_seq,
        mark=record.mark,
        active=_lane_run(hosts[0]) if hosts else None,
        queue=tuple(map(_lane_run, queue)),
        folded=tuple(map(_lane_run, folded)),
        version=record.version,
    )


def _lane_run(run: RunRecord) -> LaneRun:
    return LaneRun(run.run_id, run.seq, run.folds, run.steps, run.resumes, run.cancelled, run.author)


def project(runs: dict[str, RunRecord], events: tuple[LaneEvent, ...], after: Lane) -> dict[str, RunRecord]:
    """Return the Run records that these events change, in their new state. `runs`: all live Runs of the Lane, including
    the one being accepted."""
    changed: dict[str, RunRecord] = {}
    for event in events:
        record = changed.get(event.run_id) or runs[event.run_id]
        changed[event.run_id] = _advanced(record, event)
        if isinstance(event, RunMoved) or (isinstance(event, RunAccepted) and event.before is not None):
            _put_in_order(runs, changed, after)
        if isinstance(event, RunEnded) and (host := changed.get(event.folded_into or "")):
            changed[event.run_id] = replace(changed[event.run_id], cancelled_by=host.cancelled_by)
    for waiting in after.queue:
        record = changed.get(waiting.run_id) or runs[waiting.run_id]
        if record.folds != waiting.folds:
            changed[waiting.run_id] = replace(record, folds=waiting.folds)
    return changed


def _advanced(record: RunRecord, event: LaneEvent) -> RunRecord:
    match event:
        case RunAccepted(seq=seq, folds=folds, at=at):
            return replace(record, seq=seq, queue_order=seq, folds=folds, accepted_at=at, author=event.author)
        case RunStarted(at=at):
            return replace(record, state="active", started_at=at, folds=False)
        case RunResumed(at=at) if record.waits_for_node:
            return replace(record, resumes=record.resumes + 1, waits_for_node=False, started_at=at)
        case RunResumed(at=at):
            return replace(record, resumes=record.resumes + 1, trace=extended(record.trace, TraceEntry("resume", at)))
        case StepStarted(step=step):
            return replace(record, steps=step)
        case RunFolded(into=into, at=at):
            return replace(record, state="active", folded_into=into, started_at=at)
        case CancelMarked(mark=mark, at=at):
            return _stopped(record, TraceEntry("cancel", at, mark, author=event.author))
        case RunCancelMarked(at=at):
            return replace(_stopped(record, TraceEntry("cancel_run", at, author=event.author)), cancelled=True)
        case RunEnded(outcome=outcome, reason=reason, at=at, folded_into=into):
            ended = replace(record, state="ended", outcome=outcome, reason=reason, ended_at=at, folded_into=into)
            return replace(ended, cancelled_by=event.author or record.cancelled_by)
        case RunMoved(before=before, at=at):
            return replace(record, trace=extended(record.trace, TraceEntry("move", at, before=before)))
        case FoldMarked(at=at):
            return replace(record, trace=extended(record.trace, TraceEntry("fold", at)))
        case RunEdited():
            return record


def _stopped(record: RunRecord, cancel: TraceEntry) -> RunRecord:
    """Return the record of an active Run that a cancel stops. Later cancels do not change `cancelled_by`."""
    by = record.cancelled_by if record.stopping else cancel.author
    return replace(record, stopping=True, cancelled_by=by, trace=extended(record.trace, cancel))


def _put_in_order(runs: dict[str, RunRecord], changed: dict[str, RunRecord], after: Lane) -> None:
    """Reassign the existing order numbers of the queue: without new numbers, nothing can overflow or collide."""
    queue = [changed.get(run.run_id) or runs[run.run_id] for run in after.queue]
    for order, record in zip(sorted(record.queue_order for record in queue), queue, strict=True):
        if record.queue_order != order:
            changed[record.run_id] = replace(record, queue_order=order)


def cancelled_message(message_id: str, run: RunRecord, now: int) -> Message:
    """Return the answer to a prompt that a cancel dropped from the queue."""
    return Message(message_id, run.session_id, "assistant", (FinishPart("canceled", now),), now, now, run.run_id)


def user_message(message_id: str, run: RunRecord, now: int, chars_max: int | None = None) -> Message:
    """Return the prompt as a message of the transcript. The request for a summary is not sent to models later.

    `chars_max`: a longer text is cut."""
    text, command = run.prompt.text, run.prompt.command
    if chars_max is not None and len(text) > chars_max:
        text = f"{text[:chars_max]}\n[The run has the complete prompt of {len(text)} characters.]"
    parts: list[Part] = [Text(text, command[:chars_max])] if text else []
    parts += [AttachedFile(file.file_path, file.mime_type, file.size, file.digest) for file in run.prompt.attachments]
    is_summary = run.options.purpose == "summary"
    return Message(message_id, run.session_id, "user", tuple(parts), now, now, run.run_id, is_summary=is_summary)
