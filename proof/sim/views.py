"""The judge's look at what one client saw: all of it, in order, once, in time, and as it is stored."""

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
)
from kedge.errors import AskIsOver, AskNotFound, KedgeError, RunNotFound, SessionNotFound
from kedge.store import codec
from proof.sim.books import Books
from proof.sim.client import SimClient, Watched
from proof.sim.scene import Scene, moment

#: From an append until a client that is connected and reads has it; and where the store failed on the way, which is
#: still before the next heartbeat. Seconds.
SEEN_S_MAX, LATE_S_MAX = 5.0, 12.0
#: What was shown may be lost in a crash if it was not stored yet: no more than that of the text. Seconds.
LOST_S_MAX = 1.0
#: What an answer may be refused with: somebody was quicker, or there is nothing left to answer.
_TOO_LATE = (AskIsOver, AskNotFound, SessionNotFound, RunNotFound)


def check_client(
    scene: Scene, client: SimClient, books: dict[str, Books], events: list[tuple[int, str, Event]]
) -> list[str]:
    broken: list[str] = []
    for watched in client.watched:
        broken += [f"{client.name} {what}" for what in watched.broken]
        if watched.stream is None and not books[watched.session_id or ""].is_deleted:
            broken.append(f"{client.name} was told that {watched.session_id} is not there, and it is")
        broken += _View(scene, client, watched, books, events).check()
    return broken + _answers(scene, client)


class _View:
    def __init__(
        self,
        scene: Scene,
        client: SimClient,
        watched: Watched,
        books: dict[str, Books],
        events: list[tuple[int, str, Event]],
    ) -> None:
        self.scene = scene
        self.client = client
        self.watched = watched
        self.books = books
        self.log = events
        self.broken: list[str] = []

    def check(self) -> list[str]:
        self._check_positions()
        self._check_said()
        self._check_ends()
        self._check_times()
        self._check_last()
        if self.watched.deltas:
            self._check_texts()
        return self.broken

    def _say(self, what: str) -> None:
        self.broken.append(f"{self.client.name} {what}")

    def _check_positions(self) -> None:
        """Every durable event there was, in order and once, or an explicit gap."""
        place = self.watched.began_at
        seen: list[int] = []
        for event in self.watched.events:
            if event.type == "gap":
                self._compare(place, seen)
                if event.payload["position"]:
                    self._say(f"was given a gap ({event.payload['reason']}), and nothing of the log is gone")
                # One that the client makes up itself, having lost a stream before it knew any Position, names none.
                place, seen = event.payload["position"] or None, []
            elif event.position is not None:
                place = event.position - 1 if place is None else place
                seen.append(event.position)
        # Where the stream says that it is: one that jumps there, and tells nothing of what it has left out, is found.
        stream = self.watched.stream
        self._compare(place, seen, (stream.position if stream is not None else None) or 0)

    def _compare(self, place: int | None, seen: list[int], upto: int = 0) -> None:
        if place is None:
            return
        last, only = max([*seen[-1:], upto]), self.watched.session_id
        expected = [at for at, session_id, _ in self.log if only in (None, session_id) and place < at <= last]
        if seen != expected:
            base = self.scene.data.logs[self.scene.workspace_id].record.base
            lacks = [position - base for position in expected if position not in seen]
            extra = [position - base for position in seen if position not in expected]
            twice = len(seen) - len(set(seen))
            self._say(f"lacks {lacks} in its stream, has {extra} too many and {twice} twice")

    def _check_said(self) -> None:
        """A frame with a Position tells what the log has there; nobody is asked about a session they do not watch."""
        facts = {place: event for place, _, event in self.log}
        for event in self.watched.events:
            if event.position is None:
                others = self.watched.session_id not in (None, event.payload.get("session_id"))
                if event.type.endswith("_request") and others:
                    self._say(f"was shown a {event.type} of another session")
            elif (fact := facts.get(event.position)) is not None and not _tells_of(event, fact):
                self._say(f"has {event.type} {event.change} {event.payload.get('id')} at the Position of {fact}")

    def _check_ends(self) -> None:
        seen: set[str] = set()
        for event in self.watched.events:
            if event.type != "run_complete":
                continue
            run_id, outcome = event.payload["run_id"], event.payload["outcome"]
            if run_id in seen or self.books[event.payload["session_id"]].outcomes.get(run_id) != outcome:
                self._say(f"saw {run_id} end {outcome}, or saw it twice")
            seen.add(run_id)

    def _check_times(self) -> None:
        """A client that is connected and reads has everything at once, not with the next heartbeat."""
        written = {place: getattr(event, "at", None) for place, _, event in self.log}
        for event, came_at in zip(self.watched.events, self.watched.times, strict=True):
            at = written.get(event.position) if event.position is not None else None
            if at is None:
                continue
            appended_at = moment(at)
            connected_at = max((when for when in self.watched.connected_at if when <= came_at), default=came_at)
            paused_until = max((until for since, until in self.client.paused if since <= came_at), default=0.0)
            # A server that starts again while the store fails may be long in coming back.
            most_s = SEEN_S_MAX if not self.scene.store_failed else LATE_S_MAX
            is_excused = self.scene.store_failed and self.scene.was_interrupted
            if came_at - max(appended_at, connected_at, paused_until) > most_s and not is_excused:
                self._say(f"saw {event.type} {came_at - appended_at:.1f} s late")

    def _check_last(self) -> None:
        """What a client that has read everything saw last of a message is how it is stored."""
        if self.watched is not self.client.watched[-1] or self.watched.stream is None:
            return
        last: dict[str, StreamEvent] = {}
        for event in self.watched.events:
            if event.type == "message" and event.change != "deleted" and "parts" in event.payload:
                last[event.payload["id"]] = event
        for message_id, event in last.items():
            stored = self.scene.data.messages.get((self.scene.workspace_id, message_id))
            if stored is None:
                continue
            message = codec.merged(stored.message, stored.tails)
            shown = _text(_texts(event.payload))
            is_finished = any(part["type"] == "finish" for part in event.payload["parts"])
            if shown != message.text or is_finished != (message.finish is not None):
                self._say(f"saw {message_id} last as {shown!r}, and it is {message.text!r}")

    def _check_texts(self) -> None:
        """What Deltas add up to is how the message goes on; only a crash may take back what was not stored yet."""
        shown: dict[str, dict[int, str]] = {}
        #: How long each message was, and when.
        grew: dict[str, list[tuple[float, int]]] = {}
        for event, came_at in self._timed():
            if event.type == "delta":
                message_id = event.payload["message_id"]
                parts = shown.setdefault(message_id, {})
                parts[event.payload["part"]] = parts.get(event.payload["part"], "") + event.payload["text"]
                grew.setdefault(message_id, []).append((came_at, len(_text(parts))))
            elif event.type == "message" and event.change != "deleted" and "parts" in event.payload:
                message_id = event.payload["id"]
                whole = _texts(event.payload)
                before, now = _text(shown.get(message_id, {})), _text(whole)
                run_id = event.payload.get("run_id", "")
                if not now.startswith(before) and not self._may_lose(run_id, before, now, grew.get(message_id, [])):
                    self._say(f"was shown {before!r} of a message that says {now!r}")
                shown[message_id], grew[message_id] = whole, []

    def _timed(self) -> Iterator[tuple[StreamEvent, float]]:
        return zip(self.watched.events, self.watched.times, strict=True)

    def _may_lose(self, run_id: str, before: str, now: str, grew: list[tuple[float, int]]) -> bool:
        told = (event for event in self.watched.events if event.type == "agent_event")
        if not now and any(event.payload.get("run_id") == run_id for event in told):
            return True  # an attempt failed, and what it said is taken back
        if not before.startswith(now) or not self.scene.crashed_at:
            return False
        lost_since = min((when for when, length in grew if length > len(now)), default=0.0)
        # Words may still be on their way when the server is gone.
        in_time = any(abs(crash - lost_since) <= LOST_S_MAX for crash in self.scene.crashed_at)
        # Who did not read for a while was shown the last words after the crash.
        return in_time or self.scene.store_failed or not grew or bool(self.client.paused)


def _tells_of(event: StreamEvent, fact: Event) -> bool:
    """Whether this frame is of that event: of its kind, and of the same thing."""
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
        case Asked() | AskSettled():
            kind = "_request" if isinstance(fact, Asked) else "_notification"
            is_settled = is_gone and isinstance(fact, AskSettled)  # to a client that has it, it is withdrawn
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


def _answers(scene: Scene, client: SimClient) -> list[str]:
    """An answer that was taken is the one that stands, and one that came too late is told so."""
    broken: list[str] = []
    for ask_id, said, reply in client.answered:
        ask = scene.data.asks.get(ask_id)
        if isinstance(reply, KedgeError):
            if not isinstance(reply, _TOO_LATE):
                broken.append(f"the answer of {client.name} was refused with {type(reply).__name__}: {reply}")
        elif (
            ask is not None
            and reply.resolved
            and (ask.state, ask.answered_by, ask.answer)
            != (
                *("answered", client.id),
                said,
            )
        ):
            broken.append(
                f"{client.name} said {said} to {ask_id}, which is {ask.state} {ask.answer} {ask.answered_by!r}"
            )
    return broken
