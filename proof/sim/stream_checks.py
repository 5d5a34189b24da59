"""Checks of the events that one client received: all of them, in order, once, in time, and as stored."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kedge.client.event_stream import StreamEvent
from kedge.core.events import (
    Asked,
    AskSettled,
    ErrorReported,
    Event,
    FileChanged,
    MessageChanged,
    RetryReported,
    RunAccepted,
    RunReported,
    SessionChanged,
    SessionRewound,
)
from kedge.errors import AskNotFound, AskWithdrawn, KedgeError, RunNotFound, SessionNotFound, Unavailable
from kedge.store import codec
from proof.sim.client import SimClient, WatchedStream
from proof.sim.ledger import SessionLedger
from proof.sim.state import SimState, sim_time

#: From an append until a connected client that reads has the event; and the same after a store error, which is still
#: before the next heartbeat. Seconds.
ARRIVAL_S_MAX, LATE_ARRIVAL_S_MAX = 5.0, 12.0
#: From the pause of a node until others know that its lease has ended. Seconds.
NODE_LOST_S = 6.0
#: A crash may lose streamed text that was not stored yet, of at most this age. Seconds.
LOST_S_MAX = 1.0
#: The errors of a late answer: another client was faster, or the ask is gone.
_TOO_LATE = (AskWithdrawn, AskNotFound, SessionNotFound, RunNotFound)


def check_client(
    state: SimState, client: SimClient, ledgers: dict[str, SessionLedger], events: list[tuple[int, str, Event]]
) -> list[str]:
    """Return the broken promises."""
    broken: list[str] = []
    for watched in client.watched:
        broken += [f"{client.name} {problem}" for problem in watched.broken]
        if watched.stream is None and not ledgers[watched.session_id or ""].is_deleted:
            broken.append(f"{client.name} was told that {watched.session_id} does not exist, and it does")
        broken += _StreamChecks(state, client, watched, ledgers, events).check()
    return broken + _check_answers(state, client)


class _StreamChecks:
    def __init__(
        self,
        state: SimState,
        client: SimClient,
        watched: WatchedStream,
        ledgers: dict[str, SessionLedger],
        events: list[tuple[int, str, Event]],
    ) -> None:
        self.state = state
        self.client = client
        self.watched = watched
        self.ledgers = ledgers
        self.log = events
        self.broken: list[str] = []

    def check(self) -> list[str]:
        self._check_positions()
        self._check_frames()
        self._check_ends()
        self._check_times()
        self._check_silence()
        self._check_last_messages()
        if self.watched.deltas:
            self._check_deltas()
        return self.broken

    def _report(self, problem: str) -> None:
        self.broken.append(f"{self.client.name} {problem}")

    def _check_positions(self) -> None:
        """Every durable event arrived, in order and once, or there was an explicit gap."""
        after = self.watched.began_at
        seen: list[int] = []
        for event in self.watched.events:
            if event.type == "gap":
                self._compare(after, seen)
                if event.payload["position"]:
                    self._report(f"received a gap ({event.payload['reason']}), and the log is complete")
                # A gap that the client itself adds, after it lost a stream without any Position, has no Position.
                after, seen = event.payload["position"] or None, []
            elif event.position is not None:
                after = event.position - 1 if after is None else after
                seen.append(event.position)
        # Up to the stream's own position: a stream that skips events without a gap is found.
        stream = self.watched.stream
        self._compare(after, seen, (stream.position if stream is not None else None) or 0)

    def _compare(self, after: int | None, seen: list[int], upto: int = 0) -> None:
        if after is None:
            return
        last, only = max([*seen[-1:], upto]), self.watched.session_id
        expected = [at for at, session_id, _ in self.log if only in (None, session_id) and after < at <= last]
        if seen != expected:
            base = self.state.data.logs[self.state.workspace_id].record.base
            missing = [position - base for position in expected if position not in seen]
            extra = [position - base for position in seen if position not in expected]
            twice = len(seen) - len(set(seen))
            self._report(f"received a stream without {missing}, with {extra} too many and {twice} twice")

    def _check_frames(self) -> None:
        """A frame with a Position shows the event at that Position; asks of other sessions are not shown."""
        facts = {position: event for position, _, event in self.log}
        for event in self.watched.events:
            if event.position is None:
                others = self.watched.session_id not in (None, event.payload.get("session_id"))
                if event.type.endswith("_request") and others:
                    self._report(f"received a {event.type} of another session")
            elif (fact := facts.get(event.position)) is not None and not _shows(event, fact):
                self._report(f"has {event.type} {event.change} {event.payload.get('id')} at the Position of {fact}")

    def _check_ends(self) -> None:
        seen: set[str] = set()
        for event in self.watched.events:
            if event.type != "run_complete":
                continue
            run_id, outcome = event.payload["run_id"], event.payload["outcome"]
            if run_id in seen or self.ledgers[event.payload["session_id"]].outcomes.get(run_id) != outcome:
                self._report(f"received the end {outcome} of {run_id}, which is wrong or comes twice")
            seen.add(run_id)

    def _check_times(self) -> None:
        """A connected client that reads gets every event at once, not with the next heartbeat."""
        written = {position: getattr(event, "at", None) for position, _, event in self.log}
        for event, arrived_at in self._timed():
            at = written.get(event.position) if event.position is not None else None
            if at is None:
                continue
            # A cancel has the time of its request, and may be written much later.
            appended_at = max(sim_time(at), self.state.appended_at[event.position or 0])
            connected_at = max((when for when in self.watched.connected_at if when <= arrived_at), default=arrived_at)
            paused_until = max((until for since, until in self._pauses() if since <= arrived_at), default=0.0)
            # A server that restarts while the store fails may take long.
            most_s = ARRIVAL_S_MAX if not self.state.store_failed else LATE_ARRIVAL_S_MAX
            is_excused = self.state.store_failed and self.state.was_interrupted
            if arrived_at - max(appended_at, connected_at, paused_until) > most_s and not is_excused:
                self._report(f"received {event.type} {arrived_at - appended_at:.1f} s late")

    def _check_silence(self) -> None:
        """A connection to a live node gets every event, or is lost soon after the node that it leads to."""
        watched = self.watched
        for connected_at, entered in zip(watched.connected_at, watched.entered, strict=True):
            lost_at = min((at for at in watched.lost_at if at >= connected_at), default=0.0)
            until = max(
                (until for since, until in self._pauses() if connected_at <= until and since <= lost_at), default=0
            )
            for event, arrived_at in self._timed():
                appended_at = self.state.appended_at.get(event.position or 0, 0.0)
                is_missed = connected_at <= appended_at and arrived_at > lost_at
                if is_missed and lost_at - max(appended_at, until) > LATE_ARRIVAL_S_MAX:
                    self._report(f"waited for {event.type} at {entered or 'the server'} until {lost_at:.1f} s")

    def _pauses(self) -> Iterator[tuple[float, float]]:
        """Yield the times between which the client, or a node between it and the log, did not read."""
        yield from self.client.paused
        for node, since, until in self.state.node_pauses:
            # A stream through another node is dropped when that one knows that the lease of this one has ended.
            entered = {
                name for name, at in zip(self.watched.entered, self.watched.connected_at, strict=True) if at <= until
            }
            yield since, until if node in entered else min(until, since + NODE_LOST_S)

    def _check_last_messages(self) -> None:
        """The last version of a message that a client received is the stored one."""
        if self.watched is not self.client.watched[-1] or self.watched.stream is None:
            return
        last: dict[str, StreamEvent] = {}
        for event in self.watched.events:
            if event.type == "message" and event.change != "deleted" and "parts" in event.payload:
                last[event.payload["id"]] = event
        for message_id, event in last.items():
            stored = self.state.data.messages.get((self.state.workspace_id, message_id))
            if stored is None:
                continue
            message = codec.merged(stored.message, stored.tails)
            shown = _text(_texts(event.payload))
            is_finished = any(part["type"] == "finish" for part in event.payload["parts"])
            if shown != message.text or is_finished != (message.finish is not None):
                self._report(f"received {message_id} last as {shown!r}, and stored is {message.text!r}")

    def _check_deltas(self) -> None:
        """Deltas add up to the text of the message; only a crash may lose text that was not stored yet."""
        shown: dict[str, dict[int, str]] = {}
        #: The length of each message over time.
        lengths: dict[str, list[tuple[float, int]]] = {}
        for event, arrived_at in self._timed():
            if event.type == "delta":
                message_id = event.payload["message_id"]
                parts = shown.setdefault(message_id, {})
                parts[event.payload["part"]] = parts.get(event.payload["part"], "") + event.payload["text"]
                lengths.setdefault(message_id, []).append((arrived_at, len(_text(parts))))
            elif event.type == "message" and event.change != "deleted" and "parts" in event.payload:
                message_id = event.payload["id"]
                full = _texts(event.payload)
                before, now = _text(shown.get(message_id, {})), _text(full)
                run_id = event.payload.get("run_id", "")
                if now.startswith(before) or (not now and self._is_summary(message_id)):
                    pass  # a summary that failed has no text
                elif not self._may_lose(run_id, before, now, lengths.get(message_id, []), arrived_at):
                    self._report(f"received {before!r} of a message with the text {now!r}")
                shown[message_id], lengths[message_id] = full, []

    def _is_summary(self, message_id: str) -> bool:
        stored = self.state.data.messages.get((self.state.workspace_id, message_id))
        message = stored.message if stored is not None else self.state.cut.get(message_id)
        return message is not None and message.is_summary

    def _timed(self) -> Iterator[tuple[StreamEvent, float]]:
        return zip(self.watched.events, self.watched.times, strict=True)

    def _may_lose(
        self, run_id: str, before: str, now: str, lengths: list[tuple[float, int]], arrived_at: float
    ) -> bool:
        retries = (event for event in self.watched.events if event.type == "agent_event" and event.position is not None)
        if not now and any(event.payload.get("run_id") == run_id for event in retries):
            return True  # an attempt failed, and its text is withdrawn
        is_late = self.state.counts["store full"] or self.state.counts["slow write"]
        if before.startswith(now) and is_late and self.state.was_interrupted:
            return True  # the process was lost before the disk had taken the text
        lost_since = min((when for when, length in lengths if length > len(now)), default=0.0)
        is_link_lost = self.state.network.cuts or self.state.counts["link between nodes down"]
        is_recent = bool(lengths) and arrived_at - lost_since <= LOST_S_MAX
        if self.state.plan.nodes > 1 and is_link_lost and is_recent and before.startswith(now):
            return True  # a node that cannot reach the serving one shows what is stored
        # A node that is paused has lost what it has not stored, if another one takes over.
        lost_at = [*self.state.crashed_at, *(since for _, since, _ in self.state.node_pauses)]
        if not before.startswith(now) or not lost_at:
            return False
        # Text may still be in transit when the server is gone.
        in_time = any(abs(crash - lost_since) <= LOST_S_MAX for crash in lost_at)
        # A client that paused may read the last text after the crash.
        return in_time or self.state.store_failed or not lengths or bool(self.client.paused)


def _shows(event: StreamEvent, fact: Event) -> bool:
    """Does this frame show that event: the same type, and the same record?"""
    payload, is_gone = event.payload, event.change == "deleted"
    match fact:
        case RunReported() | ErrorReported() | RetryReported():
            kind = "run_complete" if isinstance(fact, RunReported) else "agent_event"
            return event.type == kind and payload["run_id"] == fact.run_id
        case MessageChanged() | SessionChanged():
            kind, name = (
                ("message", fact.message_id) if isinstance(fact, MessageChanged) else ("session", fact.session_id)
            )
            return event.type == kind and payload["id"] == name
        case SessionRewound():
            return event.type == "rewind" and payload["message_id"] == fact.message_id
        case Asked() | AskSettled():
            kind = "_request" if isinstance(fact, Asked) else "_notification"
            is_settled = is_gone and isinstance(fact, AskSettled)  # a client that has the ask sees it withdrawn
            return (event.type.endswith(kind) or is_settled) and payload["id"] == fact.ask_id
        case FileChanged():
            return event.type == "file" and payload["version_id"] == fact.version_id
        case _:
            is_new = event.change == "created"
            return (
                event.type == "run"
                and payload["run_id"] == fact.run_id
                and (is_new == isinstance(fact, RunAccepted) or is_gone)
            )


def _texts(payload: dict[str, Any]) -> dict[int, str]:
    parts = enumerate(payload["parts"])
    return {number: part["data"]["text"] for number, part in parts if part["type"] == "text"}


def _text(parts: dict[int, str]) -> str:
    return "".join(parts[number] for number in sorted(parts))


def _check_answers(state: SimState, client: SimClient) -> list[str]:
    """An accepted answer is the stored one; a late answer gets the error for that."""
    broken: list[str] = []
    for ask_id, answer, reply in client.answered:
        ask = state.data.asks.get(ask_id)
        if isinstance(reply, KedgeError):
            # For as long as the disk is full, an answer cannot be recorded.
            is_excused = isinstance(reply, Unavailable) and state.counts["store full"]
            if not isinstance(reply, _TOO_LATE) and not is_excused:
                broken.append(f"the answer of {client.name} was refused with {type(reply).__name__}: {reply}")
        elif ask is not None and reply.resolved:
            stored = (ask.state, ask.answered_by, ask.answer)
            if stored != ("answered", client.id, answer):
                broken.append(f"{client.name} answered {ask_id} with {answer}, and stored is {stored}")
    return broken
