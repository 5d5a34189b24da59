"""The messages of a session that was opened, and what came of their calls. A part of the view: see `model`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from kedge.wire import models as m

Ask = m.PermissionRequest | m.QuestionBatch


@dataclass(slots=True)
class ViewChanges:
    """What has to be drawn anew."""

    messages: set[str] = field(default_factory=set)
    #: Messages were added, removed or have another order.
    order: bool = False
    runs: bool = False
    sessions: bool = False
    asks: bool = False
    #: Events were missed: all that is shown has to be read again.
    gap: bool = False
    #: Runs that have just ended, with their ends.
    ended: list[m.RunComplete] = field(default_factory=list)
    #: An Ask that has just been put.
    asked: list[Ask] = field(default_factory=list)
    #: Runs changed places: the order of the queue has to be read again.
    moved: bool = False

    def add(self, other: ViewChanges) -> None:
        self.messages |= other.messages
        self.ended += other.ended
        self.asked += other.asked
        for flag in ("order", "runs", "sessions", "asks", "gap", "moved"):
            setattr(self, flag, getattr(self, flag) or getattr(other, flag))


@dataclass(slots=True)
class ConversationEntry:
    """A message of an open conversation."""

    body: m.MessageBody
    #: Where it stands: those that were read come first, in their order; then each where it was first told of.
    place: tuple[int, int]
    #: The Position its body is of.
    at: int
    #: Whether its text is known so exactly that Deltas can be added.
    follows: bool
    #: Grows with each change: whoever has drawn an older one draws it anew.
    version: int = 0

    @property
    def is_finished(self) -> bool:
        return any(part.type == "finish" for part in self.body.parts)


class Conversation:
    """The messages of a session that was opened."""

    def __init__(self) -> None:
        self.entries: dict[str, ConversationEntry] = {}
        #: By Run: a request to its model that failed and is made again.
        self.retries: dict[str, m.AgentEvent] = {}
        #: By call: the messages that make it, and what came of it by the message that says so. Some providers number
        #: the calls of each Step anew, so there may be several.
        self._makers: dict[str, set[str]] = {}
        self._results: dict[str, dict[str, m.PartBody]] = {}
        #: By Run: its messages with calls.
        self._callers: dict[str, set[str]] = {}
        #: By message and call that has no result yet: what it is doing.
        self._progress: dict[tuple[str, str], str] = {}
        #: By Run: the highest Position that told of it or of a message of it.
        self._told: dict[str, int] = {}
        self._gone: dict[str, int] = {}
        self._ordered: list[ConversationEntry] | None = None

    def ordered(self) -> list[ConversationEntry]:
        if self._ordered is None:
            self._ordered = sorted(self.entries.values(), key=lambda entry: entry.place)
        return self._ordered

    def result_of(self, entry: ConversationEntry, call_id: str) -> m.PartBody | None:
        """What came of a call of this message: the next result behind it, unless the call is made again before that."""
        found = [
            (self.entries[message_id].place, part)
            for message_id, part in self._results.get(call_id, {}).items()
            if self._is_behind(message_id, entry)
        ]
        if not found:
            return None
        place, part = min(found, key=lambda one: one[0])
        again = (self.entries[one].place for one in self._makers[call_id] if self._is_behind(one, entry))
        return None if any(other < place for other in again) else part

    def _is_behind(self, message_id: str, entry: ConversationEntry) -> bool:
        other = self.entries[message_id]
        return other.place > entry.place and other.body.run_id == entry.body.run_id

    def progress_of(self, entry: ConversationEntry, call_id: str) -> str:
        return self._progress.get((entry.body.id, call_id), "")

    # --- messages ---------------------------------------------------------------------------------------------------

    def load(self, bodies: Iterable[m.MessageBody], at: int) -> None:
        """All messages, read by a request made at this Position."""
        for number, body in enumerate(bodies):
            entry = self.entries.get(body.id)
            if entry is not None and entry.at > at:
                entry.place = (0, number)
            elif self._gone.get(body.id, -1) <= at:
                self._take_out(body.id)
                self._put_in(
                    ConversationEntry(body, (0, number), at, follows=False, version=entry.version + 1 if entry else 0)
                )
        self._ordered = None

    def put(self, body: m.MessageBody, position: int | None, changed: ViewChanges) -> None:
        entry = self.entries.get(body.id)
        if position is None:
            # The server tells how a streaming message stands: from here on Deltas can be added.
            if entry is not None and not entry.is_finished:
                self._change(entry, body, changed)
            return
        self.tell_of(body.run_id, position, changed)
        if position <= self._gone.get(body.id, -1):
            return
        if entry is None:
            entry = ConversationEntry(body, (1, position), position, follows=True)
            self._put_in(entry)
            self._ordered, changed.order = None, True
            self._touch(entry, changed)
        else:
            if entry.place > (1, position):
                entry.place, self._ordered, changed.order = (1, position), None, True
                self._touch(entry, changed)
            if position > entry.at:
                entry.at = position
                self._change(entry, body, changed)

    def _change(self, entry: ConversationEntry, body: m.MessageBody, changed: ViewChanges) -> None:
        self._touch(entry, changed)  # also what came of calls according to the body that goes
        self._take_out(body.id)
        entry.body, entry.follows = body, True
        self._put_in(entry)
        self._touch(entry, changed)

    def remove(self, message_id: str, position: int, changed: ViewChanges) -> None:
        self._gone[message_id] = max(position, self._gone.get(message_id, -1))
        entry = self.entries.get(message_id)
        if entry is not None and entry.at < position:
            self._touch(entry, changed)
            self._take_out(message_id)
            self._ordered, changed.order = None, True

    def _put_in(self, entry: ConversationEntry) -> None:
        message_id, run_id = entry.body.id, entry.body.run_id
        self.entries[message_id] = entry
        for part in entry.body.parts:
            if part.type == "tool_call":
                self._makers.setdefault(part.data["id"], set()).add(message_id)
                self._callers.setdefault(run_id, set()).add(message_id)
            elif part.type == "tool_result":
                self._results.setdefault(part.data["tool_call_id"], {})[message_id] = part
                for maker in self._makers.get(part.data["tool_call_id"], ()):
                    self._progress.pop((maker, part.data["tool_call_id"]), None)

    def _take_out(self, message_id: str) -> None:
        entry = self.entries.pop(message_id, None)
        for part in entry.body.parts if entry else ():
            if part.type == "tool_call":
                self._makers.get(part.data["id"], set()).discard(message_id)
            elif part.type == "tool_result":
                self._results.get(part.data["tool_call_id"], {}).pop(message_id, None)
        if entry is not None:
            self._callers.get(entry.body.run_id, set()).discard(message_id)

    def add_delta(self, delta: m.DeltaBody, changed: ViewChanges) -> None:
        entry = self.entries.get(delta.message_id)
        if entry is None or not entry.follows or entry.is_finished:
            return
        parts = entry.body.parts
        while len(parts) <= delta.part:
            kind, text = ("text", "text") if delta.kind == "text" else ("reasoning", "thinking")
            parts.append(m.PartBody(type=kind, data={text: ""}))
        part = parts[delta.part]
        name = "text" if part.type == "text" else "thinking"
        part.data[name] = part.data.get(name, "") + delta.text
        self._end_retry(entry.body.run_id, changed)
        entry.version += 1
        changed.messages.add(delta.message_id)

    # --- what is drawn with a message -------------------------------------------------------------------------------

    def _touch(self, entry: ConversationEntry, changed: ViewChanges) -> None:
        entry.version += 1
        changed.messages.add(entry.body.id)
        for part in entry.body.parts:
            # The result of a call is drawn where the call is.
            if part.type == "tool_result":
                self.touch_call(part.data["tool_call_id"], entry.body.run_id, changed)

    def touch_call(self, call_id: str, run_id: str, changed: ViewChanges) -> None:
        for maker in self._makers.get(call_id, ()):
            if self.entries[maker].body.run_id == run_id:
                self.entries[maker].version += 1
                changed.messages.add(maker)

    def touch_open_calls(self, run_id: str, changed: ViewChanges) -> None:
        """Those of the Run that have no result yet."""
        for message_id in self._callers.get(run_id, ()):
            entry = self.entries[message_id]
            if self._has_open_calls(entry):
                entry.version += 1
                changed.messages.add(message_id)

    def _has_open_calls(self, entry: ConversationEntry) -> bool:
        calls = (part.data["id"] for part in entry.body.parts if part.type == "tool_call")
        return any(self.result_of(entry, call_id) is None for call_id in calls)

    def tell_progress(self, told: m.ProgressBody, changed: ViewChanges) -> None:
        makers = (self.entries[maker] for maker in self._makers.get(told.tool_call_id, ()))
        of_run = [maker for maker in makers if maker.body.run_id == told.run_id]
        last = max(of_run, key=lambda entry: entry.place, default=None)
        if last is not None and self.result_of(last, told.tool_call_id) is None:
            self._progress[last.body.id, told.tool_call_id] = told.text
            last.version += 1
            changed.messages.add(last.body.id)

    def tell_of(self, run_id: str, position: int, changed: ViewChanges) -> bool:
        """Whether this is the newest of the Run. If it is, then a retry that was told before is over."""
        if position <= self._told.get(run_id, -1):
            return False
        self._told[run_id] = position
        self._end_retry(run_id, changed)
        return True

    def tell_retry(self, told: m.AgentEvent, position: int, changed: ViewChanges) -> None:
        if self.tell_of(told.run_id, position, changed):
            self.retries[told.run_id] = told
            self._touch_last(told.run_id, changed)

    def _end_retry(self, run_id: str, changed: ViewChanges) -> None:
        if self.retries.pop(run_id, None):
            self._touch_last(run_id, changed)

    def _touch_last(self, run_id: str, changed: ViewChanges) -> None:
        """The message in which the Run's model speaks: a retry is told there."""
        changed.runs = True
        for entry in reversed(self.ordered()):
            if entry.body.run_id == run_id:
                entry.version += 1
                changed.messages.add(entry.body.id)
                return
