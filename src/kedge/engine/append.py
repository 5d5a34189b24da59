"""One append: what a plan decides and puts, as one atomic write to the store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from kedge.core.approvals import Ask, Grant
from kedge.core.audit import Action, AuditEntry
from kedge.core.commands import (
    Cancel,
    CancelRun,
    ClearQueue,
    Command,
    EditRun,
    FoldRun,
    MoveRun,
    Submit,
)
from kedge.core.events import (
    Asked,
    AskSettled,
    CancelMarked,
    Change,
    ErrorReported,
    Event,
    FileChanged,
    LaneEvent,
    MessageChanged,
    RunCancelMarked,
    RunEnded,
    RunFolded,
    RunReported,
    RunStarted,
    SessionChanged,
    SessionRewound,
)
from kedge.core.lane import apply_all, decide
from kedge.core.records import (
    AttachmentContent,
    FileVersion,
    LaneRecord,
    RunRecord,
    cancelled_message,
    project,
    user_message,
)
from kedge.core.run_trace import counted
from kedge.core.transcript import Message, ToolResult
from kedge.core.untrusted_text import one_line
from kedge.engine.lane_state import LaneState, PendingCancel
from kedge.engine.ports import Ids
from kedge.errors import RunIsFolded, RunNotActive, SessionNotFound
from kedge.store.base import LaneWrite, Write

#: The title of an untitled session is the start of its first prompt. Characters.
FIRST_TITLE_CHARS_MAX = 60
#: Text of the prompts that one cancel drops from the queue, as messages: a queue may have 64 MiB, which take seconds to
#: write, and a cancel must be fast. Longer texts are cut, each to at least the minimum. Characters.
DROPPED_CHARS_MAX, DROPPED_CHARS_MIN = 250_000, 500
#: The detail of an audit entry. Characters.
DETAIL_CHARS_MAX = 200


class Append:
    """An append under construction. Log entries are in the order of the calls; nothing is written before the end."""

    def __init__(self, state: LaneState, now: int, ids: Ids, *, audits_owner: bool = False) -> None:
        """`audits_owner`: also audit the actions of the owner. Without other users nothing is audited."""
        self.state = state
        self.now = now
        self.new_id = ids.new
        #: The session and its Lane after the append. A plan may replace the session.
        self.session = state.session
        self.lane = state.lane
        #: The Lane events decided so far.
        self.events: tuple[LaneEvent, ...] = ()
        self.log: list[Event] = []
        #: Run records after the append, where they change.
        self.runs: dict[str, RunRecord] = {}
        self.messages: dict[str, Message] = {}
        self.cuts: tuple[tuple[str, str], ...] = ()
        self.asks: dict[str, Ask] = {}
        self.grants: tuple[Grant, ...] = ()
        self.files: tuple[FileVersion, ...] = ()
        #: The contents of new file versions, by id.
        self.originals: dict[str, bytes] = {}
        #: New contents that the Runs of this append name.
        self.attachments: tuple[AttachmentContent, ...] = ()
        self.audit: tuple[AuditEntry, ...] = ()
        self._audits_owner = audits_owner
        self.session_change: Change = "updated"
        self._messages_created = 0
        #: Text of the prompts that were dropped so far. Characters.
        self._dropped_chars = 0
        #: An earlier attempt to write the same plan may have been stored.
        self.is_repeated = False
        #: The pending cancels that this append includes, with their marks.
        self.pending_cancels: list[tuple[PendingCancel, int]] = []

    # --- decisions -----------------------------------------------------------------------------------------------

    def decide(self, command: Command) -> tuple[LaneEvent, ...]:
        """Decide a command and add its events, with the messages and reports that belong to them."""
        events = self._add(decide(self.lane, command))
        if events:
            self._audit_command(command)
        return events

    def decide_pending_cancels(self) -> None:
        """Decide the cancels that could not be written earlier: they come before everything else."""
        for pending in self.state.pending_cancels:
            if pending.mark and self.lane.mark >= pending.mark:
                continue  # the append that included it was stored after all
            try:
                events = self.decide(pending.command)
            except RunIsFolded:  # it joined another Run in an append that was stored after all
                continue
            is_marked = any(isinstance(event, CancelMarked) for event in events)
            self.pending_cancels.append((pending, self.lane.mark if is_marked else 0))

    def accept(self, run: RunRecord, command: Submit) -> None:
        """Decide the Submit of a new Run and add its record."""
        if self._add(decide(self.lane, command), run):
            accepted = self.runs[run.run_id]
            is_active = accepted.state == "active" and not accepted.waits_for_node
            self.change_run(replace(accepted, accepted_state="active" if is_active else "queued"))
            if not run.options.parent_run_id:  # otherwise an agent has submitted it
                mode = f", mode {run.options.mode}" if run.options.mode else ""  # it may need no approvals
                self.record("submit", command.author, run.run_id, command.when_busy + mode)

    def _audit_command(self, command: Command) -> None:
        match command:
            case Cancel(author=author):
                self.record("cancel", author)
            case CancelRun(run_id=run_id, author=author) if not command.is_abandoned:
                self.record("cancel_run", author, run_id)
            case ClearQueue(author=author):
                self.record("clear_queue", author)
            case EditRun(run_id=run_id, author=author):
                self.record("edit_run", author, run_id)
            case MoveRun(run_id=run_id, before=before, author=author):
                self.record("move_run", author, run_id, f"before {before}" if before else "to the end")
            case FoldRun(run_id=run_id, author=author):
                self.record("fold_run", author, run_id)
            case _:
                pass  # a command of the engine

    def record(self, action: Action, author: str, run_id: str = "", detail: str = "") -> None:
        """Add an audit entry for an action of a user. `detail` must not contain prompts: they may have secrets."""
        if author or self._audits_owner:
            session, detail = self.session, one_line(detail, DETAIL_CHARS_MAX)
            entry = AuditEntry(self.now, author, action, session.workspace_id, session.id, run_id, detail)
            self.audit = (*self.audit, entry)

    def _add(self, events: tuple[LaneEvent, ...], *accepted: RunRecord) -> tuple[LaneEvent, ...]:
        if not events:
            return ()  # for example a repeated Submit: the record of its Run must not be replaced
        self.lane = apply_all(self.lane, events)
        self.events += events
        live = self.state.runs | self.runs | {run.run_id: run for run in accepted}
        self.runs |= project(live, events, self.lane)
        for event in events:
            if isinstance(event, RunEnded) and event.reason == "cancelled_in_queue":
                self._put_cancelled(self.runs[event.run_id])
            self.log.append(event)
            match event:
                case RunStarted() | RunFolded():
                    run = self.runs[event.run_id]
                    is_joining = isinstance(event, RunFolded)
                    session = self.session
                    self.session = (session.with_mode_joined if is_joining else session.with_mode_of)(run.options)
                    self.put_message("created", user_message(self.new_id("m"), run, self.now))
                    if not (self.state.has_directory or is_joining):
                        self.change_run(replace(run, waits_for_node=True))
                case RunEnded(run_id=run_id, outcome=outcome, reason=reason, folded_into=into):
                    if into is None and self.runs[run_id].started_at is not None:  # it was the active Run
                        self.session = self.session.with_own_mode()
                    if outcome == "failed":
                        self.log.append(ErrorReported(run_id))
                    self.log.append(RunReported(run_id, outcome, reason))
                case _:
                    pass
        self._withdraw_asks(events)
        return events

    def _put_cancelled(self, run: RunRecord) -> None:
        """Add the messages of a prompt that a cancel dropped from the queue, before its end."""
        room = max(DROPPED_CHARS_MAX - self._dropped_chars, DROPPED_CHARS_MIN)
        self._dropped_chars += len(run.prompt.text)
        self.put_message("created", user_message(self.new_id("m"), run, self.now, room))
        answer = cancelled_message(self.new_id("m"), run, self.now)
        self.put_message("created", answer)
        self.change_run(replace(run, message_id=answer.id))

    def _withdraw_asks(self, events: tuple[LaneEvent, ...]) -> None:
        """Withdraw the pending Asks of Runs that these events stop or end: an answer would come too late."""
        stopped = {event.run_id for event in events if isinstance(event, CancelMarked | RunCancelMarked | RunEnded)}
        for ask in self.state.asks.values():
            if ask.run_id in stopped and self.is_pending(ask.id):
                self.put_ask(replace(ask, state="withdrawn", answered_at=self.now))

    def require_active(self, run_id: str) -> None:
        """Raise RunNotActive unless this Run is active."""
        if self.state.deleted:
            raise SessionNotFound(f"Session {self.session.id} was deleted.")
        if self.lane.active is None or self.lane.active.run_id != run_id:
            raise RunNotActive(f"Run {run_id} has ended and accepts no further output.")

    # --- records -------------------------------------------------------------------------------------------------

    def put_message(self, change: Change, message: Message) -> None:
        self.messages[message.id] = message
        self.log.append(MessageChanged(message.id, change))
        self._messages_created += change == "created"
        if change == "created" and message.role == "tool":
            self._count_tools(message)

    def _count_tools(self, message: Message) -> None:
        """Count the results in the record of their Run: a message is created once, whatever is repeated."""
        if run := self.runs.get(message.run_id) or self.state.runs.get(message.run_id):
            self.change_run(replace(run, tools=counted(run.tools, message.all(ToolResult), message.created_at)))

    def copy_messages(self, messages: Iterable[Message]) -> None:
        """Add the messages of a forked session, which its record already counts and no reader follows yet."""
        self.messages |= {message.id: message for message in messages}

    def cut(self, message_id: str, count: int, summary_id: str, fork_session_id: str) -> None:
        """Remove the messages of the session from this one on. `count`: the number of those before it."""
        self.cuts = ((self.session.id, message_id),)
        self.session = replace(self.session, message_count=count, summary_message_id=summary_id, todos=())
        self.log.append(SessionRewound(self.session.id, message_id, fork_session_id))

    def change_run(self, run: RunRecord) -> None:
        self.runs[run.run_id] = run

    def is_pending(self, ask_id: str) -> bool:
        return ask_id in self.state.asks and ask_id not in self.asks

    def put_ask(self, ask: Ask) -> None:
        self.asks[ask.id] = ask
        self.log.append((Asked if ask.state == "pending" else AskSettled)(ask.run_id, ask.id))

    def put_file(self, version: FileVersion, change: Change) -> None:
        self.files = (*self.files, version)
        self.log.append(FileChanged(version.run_id, version.id, version.path, change, version.undone))

    def keep_content(self, version: FileVersion, content: bytes | None) -> None:
        """Add the content of a file that is about to be reverted. No client shows it, so that there is no event."""
        self.files = (*self.files, version)
        if content is not None:
            self.originals[version.id] = content

    def report(self, event: Event) -> None:
        self.log.append(event)

    # --- the write -----------------------------------------------------------------------------------------------

    def as_write(self) -> Write | None:
        """Complete the session record and return the write; None if nothing changes. Called once, by the door."""
        self._set_first_title()
        is_turning = any(isinstance(event, RunStarted | RunEnded) for event in self.events)
        if is_turning or self.session != self.state.session or self.session_change != "updated":
            self.log.append(SessionChanged(self.session.id, self.session_change))
        if not self.log and not self.files:
            return None
        used = (self.runs[event.run_id].usage for event in self.events if isinstance(event, RunEnded))
        self.session = replace(
            self.session,
            message_count=self.session.message_count + self._messages_created,
            usage=sum(used, self.session.usage),
            updated_at=self.now,
        )
        is_deleted = self.session_change == "deleted"
        return Write(
            self.session.workspace_id,
            tuple((self.session.id, event) for event in self.log),
            self._lane_write() if self.events else None,
            sessions=() if is_deleted else (self.session,),
            runs=tuple(self.runs.values()),
            unchanged_prompts=frozenset(self._unchanged_prompts()),
            attachments=self.attachments,
            messages=tuple(self.messages.values()),
            cuts=self.cuts,
            asks=tuple(self.asks.values()),
            grants=self.grants,
            files=self.files,
            originals=self.originals,
            audit=self.audit,
            deleted_sessions=(self.session.id,) if is_deleted else (),
        )

    def _unchanged_prompts(self) -> Iterator[str]:
        for run_id, run in self.runs.items():
            known = self.state.runs.get(run_id)
            if known is not None and known.prompt is run.prompt:  # identity: comparing would read megabytes
                yield run_id

    def _lane_write(self) -> LaneWrite:
        record = LaneRecord(self.session.id, self.lane.version, self.lane.next_seq, self.lane.mark)
        return LaneWrite(record, self.state.lane.version)

    def _set_first_title(self) -> None:
        if self.session.title:
            return
        if started := next((event for event in self.events if isinstance(event, RunStarted)), None):
            line = " ".join(self.runs[started.run_id].prompt.typed.split())
            if len(line) > FIRST_TITLE_CHARS_MAX:
                line = line[: FIRST_TITLE_CHARS_MAX - 1].rstrip() + "…"
            self.session = replace(self.session, title=line, title_is_makeshift=True)
