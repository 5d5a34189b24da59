"""The messages of an open session with the results of their tool calls: a part of the `WorkspaceView`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from kedge.wire import models as m

Ask = m.PermissionRequest | m.QuestionBatch


@dataclass(slots=True)
class ViewChanges:
    """The parts of the view that changed and have to be drawn again."""

    messages: set[str] = field(default_factory=set)
    #: Messages were added, removed or reordered.
    order: bool = False
    runs: bool = False
    sessions: bool = False
    asks: bool = False
    #: Events were missed: all state has to be reloaded.
    gap: bool = False
    ended: list[m.RunComplete] = field(default_factory=list)
    asked: list[Ask] = field(default_factory=list)
    #: The order of the queue has to be reloaded.
    moved: bool = False
    #: Sessions whose changed files have to be reloaded.
    files: set[str] = field(default_factory=set)

    def add(self, other: ViewChanges) -> None:
        self.messages |= other.messages
        self.files |= other.files
        self.ended += other.ended
        self.asked += other.asked
        for flag in ("order", "runs", "sessions", "asks", "gap", "moved"):
            setattr(self, flag, getattr(self, flag) or getattr(other, flag))


@dataclass(slots=True)
class ConversationEntry:
    """A message of an open conversation."""

    body: m.MessageBody
    #: Sort key: loaded messages first, in their order; then the others by the Position of their first event.
    order: tuple[int, int]
    #: The Position of `body`.
    at: int
    #: Whether the text is complete up to the current Delta, so that Deltas can be appended.
    follows: bool
    #: Increases with each change: lines drawn from an older version are stale.
    version: int = 0

    @property
    def is_finished(self) -> bool:
        return any(part.type == "finish" for part in self.body.parts)


class Conversation:
    """The messages of an open session."""

    def __init__(self) -> None:
        self.entries: dict[str, ConversationEntry] = {}
        #: By Run: the retry of a failed model request.
        self.retries: dict[str, m.AgentEvent] = {}
        #: By call id: the messages that contain the call, and its results by the message that contains them. Some
        #: providers reuse call ids in each Step, so there may be several.
        self._callers: dict[str, set[str]] = {}
        self._results: dict[str, dict[str, m.PartBody]] = {}
        #: By Run: its messages with calls.
        self._messages_with_calls: dict[str, set[str]] = {}
        #: By message and call without a result: the progress of the call.
        self._progress: dict[tuple[str, str], str] = {}
        #: By Run: the highest Position of an event of the Run or of its messages.
        self._run_positions: dict[str, int] = {}
        #: By removed message: the Position of its removal.
        self._removed: dict[str, int] = {}
        #: By the first message that a rewind removed: the Position of the rewind.
        self._cuts: dict[str, int] = {}
        self._ordered: list[ConversationEntry] | None = None

    def ordered(self) -> list[ConversationEntry]:
        if self._ordered is None:
            self._ordered = sorted(self.entries.values(), key=lambda entry: entry.order)
        return self._ordered

    def result_of(self, entry: ConversationEntry, call_id: str) -> m.PartBody | None:
        """Return the result of a call of this message: the next one after it, unless a later message repeats the id."""
        results = [
            (self.entries[message_id].order, part)
            for message_id, part in self._results.get(call_id, {}).items()
            if self._follows(message_id, entry)
        ]
        if not results:
            return None
        order, part = min(results, key=lambda result: result[0])
        repeated = (self.entries[caller].order for caller in self._callers[call_id] if self._follows(caller, entry))
        return None if any(other < order for other in repeated) else part

    def _follows(self, message_id: str, entry: ConversationEntry) -> bool:
        other = self.entries[message_id]
        return other.order > entry.order and other.body.run_id == entry.body.run_id

    def progress_of(self, entry: ConversationEntry, call_id: str) -> str:
        return self._progress.get((entry.body.id, call_id), "")

    # --- messages ---------------------------------------------------------------------------------------------------

    def load(self, bodies: Iterable[m.MessageBody], at: int) -> None:
        """Replace all messages with those of a response to a request made at Position `at`."""
        for number, body in enumerate(bodies):
            if self._cuts.get(body.id, -1) > at:
                break  # removed since the request, with all messages after it
            entry = self.entries.get(body.id)
            if entry is not None and entry.at > at:
                entry.order = (0, number)
            elif self._removed.get(body.id, -1) <= at:
                version = entry.version + 1 if entry else 0
                self._delete(body.id)
                self._insert(ConversationEntry(body, (0, number), at, follows=False, version=version))
        self._ordered = None

    def put(self, body: m.MessageBody, position: int | None, changes: ViewChanges) -> None:
        entry = self.entries.get(body.id)
        if position is None:
            # The current state of a streaming message: Deltas can be appended from here.
            if entry is not None and not entry.is_finished:
                self._replace(entry, body, changes)
            return
        self.advance_run(body.run_id, position, changes)
        if position <= self._removed.get(body.id, -1):
            return
        if entry is None:
            entry = ConversationEntry(body, (1, position), position, follows=True)
            self._insert(entry)
            self._ordered, changes.order = None, True
            self._touch(entry, changes)
        else:
            if entry.order > (1, position):
                entry.order, self._ordered, changes.order = (1, position), None, True
                self._touch(entry, changes)
            if position > entry.at:
                entry.at = position
                self._replace(entry, body, changes)

    def _replace(self, entry: ConversationEntry, body: m.MessageBody, changes: ViewChanges) -> None:
        self._touch(entry, changes)  # before the replacement: also the calls whose results the old body contains
        self._delete(body.id)
        entry.body, entry.follows = body, True
        self._insert(entry)
        self._touch(entry, changes)

    def remove(self, message_id: str, position: int, changes: ViewChanges) -> None:
        self._removed[message_id] = max(position, self._removed.get(message_id, -1))
        entry = self.entries.get(message_id)
        if entry is not None and entry.at < position:
            self._touch(entry, changes)
            self._delete(message_id)
            self._ordered, changes.order = None, True

    def cut(self, message_id: str, position: int, changes: ViewChanges) -> None:
        """Remove this message and those after it: a rewind at this Position has removed them."""
        self._cuts[message_id] = position
        first = self.entries.get(message_id)
        if first is not None and first.at < position:
            for entry in [entry for entry in self.entries.values() if entry.order >= first.order]:
                self.remove(entry.body.id, position, changes)

    def _insert(self, entry: ConversationEntry) -> None:
        message_id, run_id = entry.body.id, entry.body.run_id
        self.entries[message_id] = entry
        for part in entry.body.parts:
            if part.type == "tool_call":
                self._callers.setdefault(part.data["id"], set()).add(message_id)
                self._messages_with_calls.setdefault(run_id, set()).add(message_id)
            elif part.type == "tool_result":
                self._results.setdefault(part.data["tool_call_id"], {})[message_id] = part
                for caller in self._callers.get(part.data["tool_call_id"], ()):
                    self._progress.pop((caller, part.data["tool_call_id"]), None)

    def _delete(self, message_id: str) -> None:
        entry = self.entries.pop(message_id, None)
        for part in entry.body.parts if entry else ():
            if part.type == "tool_call":
                self._callers.get(part.data["id"], set()).discard(message_id)
            elif part.type == "tool_result":
                self._results.get(part.data["tool_call_id"], {}).pop(message_id, None)
        if entry is not None:
            self._messages_with_calls.get(entry.body.run_id, set()).discard(message_id)

    def add_delta(self, delta: m.DeltaBody, changes: ViewChanges) -> None:
        entry = self.entries.get(delta.message_id)
        if entry is None or not entry.follows or entry.is_finished:
            return
        parts = entry.body.parts
        while len(parts) <= delta.part:
            kind, key = ("text", "text") if delta.kind == "text" else ("reasoning", "thinking")
            parts.append(m.PartBody(type=kind, data={key: ""}))
        part = parts[delta.part]
        key = "text" if part.type == "text" else "thinking"
        part.data[key] = part.data.get(key, "") + delta.text
        self._end_retry(entry.body.run_id, changes)
        entry.version += 1
        changes.messages.add(delta.message_id)

    # --- messages that have to be drawn again -----------------------------------------------------------------------

    def _touch(self, entry: ConversationEntry, changes: ViewChanges) -> None:
        entry.version += 1
        changes.messages.add(entry.body.id)
        for part in entry.body.parts:
            # A result is drawn with its call.
            if part.type == "tool_result":
                self.touch_call(part.data["tool_call_id"], entry.body.run_id, changes)

    def touch_call(self, call_id: str, run_id: str, changes: ViewChanges) -> None:
        for caller in self._callers.get(call_id, ()):
            if self.entries[caller].body.run_id == run_id:
                self.entries[caller].version += 1
                changes.messages.add(caller)

    def touch_open_calls(self, run_id: str, changes: ViewChanges) -> None:
        """Touch the messages of the Run that contain calls without a result."""
        for message_id in self._messages_with_calls.get(run_id, ()):
            entry = self.entries[message_id]
            if self._has_open_calls(entry):
                entry.version += 1
                changes.messages.add(message_id)

    def touch_run(self, run_id: str, changes: ViewChanges) -> None:
        for entry in self.entries.values():
            if entry.body.run_id == run_id:
                entry.version += 1
                changes.messages.add(entry.body.id)

    def _has_open_calls(self, entry: ConversationEntry) -> bool:
        calls = (part.data["id"] for part in entry.body.parts if part.type == "tool_call")
        return any(self.result_of(entry, call_id) is None for call_id in calls)

    def set_progress(self, progress: m.ProgressBody, changes: ViewChanges) -> None:
        callers = (self.entries[caller] for caller in self._callers.get(progress.tool_call_id, ()))
        of_run = [entry for entry in callers if entry.body.run_id == progress.run_id]
        last = max(of_run, key=lambda entry: entry.order, default=None)
        if last is not None and self.result_of(last, progress.tool_call_id) is None:
            self._progress[last.body.id, progress.tool_call_id] = progress.text
            last.version += 1
            changes.messages.add(last.body.id)

    def advance_run(self, run_id: str, position: int, changes: ViewChanges) -> bool:
        """Record an event of the Run. Returns whether it is the newest; a newer event ends the Run's retry."""
        if position <= self._run_positions.get(run_id, -1):
            return False
        self._run_positions[run_id] = position
        self._end_retry(run_id, changes)
        return True

    def set_retry(self, retry: m.AgentEvent, position: int | None, changes: ViewChanges) -> None:
        """Show a retry until the next event of the Run. Without a position: a write to the store is retried."""
        if position is None or self.advance_run(retry.run_id, position, changes):
            self.retries[retry.run_id] = retry
            self._touch_last(retry.run_id, changes)

    def _end_retry(self, run_id: str, changes: ViewChanges) -> None:
        if self.retries.pop(run_id, None):
            self._touch_last(run_id, changes)

    def _touch_last(self, run_id: str, changes: ViewChanges) -> None:
        """Touch the last message of the Run: its retry is drawn there."""
        changes.runs = True
        for entry in reversed(self.ordered()):
            if entry.body.run_id == run_id:
                entry.version += 1
                changes.messages.add(entry.body.id)
                return
