"""The judge: is what every client saw and was told the same as what the store holds, and is that as promised?"""

from __future__ import annotations

from typing import Any

from kedge.core.events import LaneEvent
from kedge.core.lane import Lane, apply
from kedge.core.records import restore
from kedge.core.transcript import ToolCall, ToolResult
from kedge.errors import (
    KedgeError,
    LaneBusy,
    QueueFull,
    RunIsFolded,
    RunNotFound,
    RunNotQueued,
    SessionNotFound,
    Unavailable,
    Unreachable,
)
from kedge.store import codec
from kedge.testing.sim.books import Books
from kedge.testing.sim.client import SimClient, Told, Watched
from kedge.testing.sim.plan import Kind
from kedge.testing.sim.scene import Scene
from kedge.wire import models as m

#: The refusals that a client may get for what it asks; anything else is a fault.
_REFUSALS: dict[Kind, tuple[type[KedgeError], ...]] = {
    "submit": (LaneBusy, QueueFull, SessionNotFound),
    "cancel": (SessionNotFound,),
    "clear": (SessionNotFound,),
    "delete": (SessionNotFound,),
    "look": (SessionNotFound,),
    "cancel_run": (RunNotFound, RunIsFolded, SessionNotFound),
    "edit": (RunNotFound, RunNotQueued, SessionNotFound),
    "move": (RunNotFound, RunNotQueued, SessionNotFound),
    "wait": (RunNotFound, SessionNotFound),
}


def judge(scene: Scene, clients: list[SimClient]) -> list[str]:
    return _Case(scene, clients).verdict()


class _Case:
    def __init__(self, scene: Scene, clients: list[SimClient]) -> None:
        self.scene = scene
        self.clients = clients
        self.data = scene.data
        self.log = scene.data.logs[scene.workspace_id]
        self.broken: list[str] = []
        self.events = [(row.position, row.session_id, codec.decode_event(row.payload)) for row in self.log.rows]
        self.books: dict[str, Books] = {}
        for position, session_id, event in self.events:
            self.books.setdefault(session_id, Books(session_id)).read(position, event)
        self.told = [told for client in clients for told in client.told]

    def verdict(self) -> list[str]:
        for books in self.books.values():
            books.close()
            self.broken += books.broken
        self._check_lanes()
        self._check_records()
        self._check_causes()
        for told in self.told:
            self._check_told(told)
        for client in self.clients:
            for watched in client.watched:
                self._check_stream(client, watched)
            self._check_answers(client)
        return self.broken

    # --- the store against its own log ---------------------------------------------------------------------------

    def _check_lanes(self) -> None:
        """The log alone gives the Lane that the records give."""
        for session_id, books in self.books.items():
            if books.is_deleted or session_id not in self.data.lanes:
                continue
            lane = Lane()
            for _, owner, event in self.events:
                if owner == session_id and isinstance(event, LaneEvent):
                    lane = apply(lane, event)
            record = self.data.lanes[session_id][1]
            stored = restore(record, [run for run in self.data.live.values() if run.session_id == session_id])
            if stored != lane:
                self.broken.append(f"the records of {session_id} say {stored}, the log says {lane}")

    def _check_records(self) -> None:
        for run in self.data.runs.values():
            books = self.books[run.session_id]
            if run.outcome != books.outcomes.get(run.run_id) or run.seq != books.seqs.get(run.run_id):
                self.broken.append(f"the record of {run.run_id} says {run.outcome} {run.seq}, the log something else")
            if run.position != books.accepted_at.get(run.run_id):
                self.broken.append(f"the record of {run.run_id} has another Position than its RunAccepted")
        for session_id, transcript in self.data.transcripts.items():
            session = self.data.sessions.get(session_id)
            if session is None:
                self.broken.append(f"messages of {session_id} are left, which is gone")
                continue
            messages = [codec.merged(stored.message, stored.tails) for stored in transcript.values()]
            if session.message_count != len(messages):
                self.broken.append(f"{session_id} counts {session.message_count} messages and has {len(messages)}")
            calls = sorted(call.id for message in messages for call in message.all(ToolCall))
            results = sorted(result.tool_call_id for message in messages for result in message.all(ToolResult))
            if calls != results:
                self.broken.append(f"{session_id}: calls {calls}, results {results}")
            for message in messages:
                if message.role == "assistant" and message.finish is None:
                    self.broken.append(f"{message.id} of {message.run_id} has no end")
        for ask in self.data.asks.values():
            if ask.state == "pending":
                self.broken.append(f"{ask.id} of {ask.run_id} is still pending")

    # --- who asked for it ----------------------------------------------------------------------------------------

    def _check_causes(self) -> None:
        """Nobody is stopped whom nobody wanted to stop."""
        plan, ids = self.scene.plan, self.scene.session_ids
        wanted_alone = {told.act.run for told in self.told if told.act.kind == "cancel_run"}
        names = {self.scene.run_ids.get(number) for number in wanted_alone}
        bound = {self.scene.run_ids.get(act.run) for act in plan.acts if act.is_bound_to_client}
        for number, session_id in enumerate(ids):
            books = self.books.get(session_id)
            if books is None:
                continue
            asked = [told for told in self.told if told.act.session == number]
            kinds = {told.act.kind for told in asked}
            interrupts = sum(told.act.when_busy == "interrupt" for told in asked if told.act.kind == "submit")
            cancels = sum(told.attempts for told in asked if told.act.kind in ("cancel", "delete"))
            if books.cancels > cancels + interrupts:
                self.broken.append(f"{session_id} has {books.cancels} cancels; {cancels + interrupts} were asked for")
            for run_id in books.told_alone - names - bound:
                self.broken.append(f"{run_id} was cancelled, and nobody asked for that")
            if "clear" not in kinds:
                for run_id in books.dropped - names - bound:
                    self.broken.append(f"{run_id} was taken from the queue, and nobody asked for that")

    def _check_told(self, told: Told) -> None:
        kind = told.act.kind
        if told.error is not None:
            passing = kind == "submit" and not told.act.own_id and isinstance(told.error, Unreachable | Unavailable)
            if not passing and not isinstance(told.error, _REFUSALS.get(kind, ())):
                self.broken.append(f"{kind} was refused with {type(told.error).__name__}: {told.error}")
            elif kind == "submit" and told.act.own_id and self._exists(told):
                self.broken.append(f"{told.run_id} was refused ({told.error}) and accepted")
        elif kind == "submit":
            self._check_receipt(told, told.answer)
        elif kind in ("cancel", "cancel_run", "clear"):
            self._check_cancel(told, told.answer)
        elif kind == "wait":
            self._check_run(told.answer)
        elif kind == "look":
            for run in told.answer:
                self._check_run(run)

    def _exists(self, told: Told) -> bool:
        books = self.books.get(self.scene.session_ids[told.act.session])
        # In a session that was deleted since, nobody can be told that it had been accepted.
        return books is not None and told.run_id in books.seqs and not books.is_deleted

    def _check_receipt(self, told: Told, receipt: m.Receipt) -> None:
        books = self.books[self.scene.session_ids[told.act.session]]
        said = (receipt.seq, receipt.position)
        if said != (books.seqs.get(receipt.run_id), books.accepted_at.get(receipt.run_id)):
            self.broken.append(f"the receipt of {receipt.run_id} says {said}, the log something else")

    def _check_run(self, run: m.RunBody) -> None:
        books = self.books[run.session_id]
        if run.state == "ended" and run.outcome != books.outcomes.get(run.run_id):
            self.broken.append(f"a client was told that {run.run_id} ended {run.outcome}")
        if run.seq != books.seqs.get(run.run_id):
            self.broken.append(f"a client was told that {run.run_id} has seq {run.seq}")

    def _check_cancel(self, told: Told, reply: m.CancelReply) -> None:
        """A cancel covers exactly the Runs accepted before it: by the clock of those who asked."""
        for covered in reply.covered:
            outcomes = [books.outcomes[covered.run_id] for books in self.books.values() if covered.run_id in books.seqs]
            if outcomes != ["cancelled"]:
                self.broken.append(f"{covered.run_id} was said to be covered and ended {outcomes}")
        if told.act.kind != "cancel":
            return
        session = told.act.session
        books = self.books.get(self.scene.session_ids[session])
        for other in self.told:
            if other.act.kind != "submit" or other.act.session != session or other.answer is None or books is None:
                continue
            run_id, seq = other.run_id, books.seqs[other.run_id]
            if other.asked_at > told.answered_at and reply.mark is not None and seq <= reply.mark:
                self.broken.append(f"{run_id} was asked for after the cancel to {reply.mark}, and is covered by it")
            before = other.answered_at < told.asked_at and told.attempts == 1
            if before and (reply.mark is None or seq > reply.mark) and not self._had_ended(run_id, told.answered_at):
                self.broken.append(f"{run_id} was accepted before the cancel to {reply.mark}, and is not covered by it")

    def _had_ended(self, run_id: str, at: float) -> bool:
        run = self.data.runs.get((self.scene.workspace_id, run_id))
        return run is None or (run.ended_at is not None and run.ended_at <= self.scene.clock.ms_at(at))

    # --- what clients saw ----------------------------------------------------------------------------------------

    def _check_stream(self, client: SimClient, watched: Watched) -> None:
        wanted = [position for position, session_id, _ in self.events if watched.session_id in (None, session_id)]
        place = watched.began_at
        seen: list[int] = []
        for event in watched.events:
            if event.type == "gap":
                self._compare(client, wanted, place, seen)
                # One that the client makes up itself, having lost a stream before it knew any Position, names none.
                place, seen = event.payload["position"] or None, []
            elif event.position is not None:
                if place is None:
                    place = event.position - 1
                seen.append(event.position)
        self._compare(client, wanted, place, seen)
        self._check_ends_seen(client, watched)
        if watched.deltas:
            self._check_texts(client, watched)

    def _compare(self, client: SimClient, wanted: list[int], place: int | None, seen: list[int]) -> None:
        if not seen or place is None:
            return
        expected = [position for position in wanted if place < position <= seen[-1]]
        if seen != expected:
            base = self.log.record.base
            lacks = [position - base for position in expected if position not in seen]
            extra = [position - base for position in seen if position not in expected]
            twice = len(seen) - len(set(seen))
            self.broken.append(f"the stream of {client.name} lacks {lacks}, has {extra} too many and {twice} twice")

    def _check_ends_seen(self, client: SimClient, watched: Watched) -> None:
        seen: set[str] = set()
        for event in watched.events:
            if event.type != "run_complete":
                continue
            run_id, outcome = event.payload["run_id"], event.payload["outcome"]
            books = self.books[event.payload["session_id"]]
            if run_id in seen or books.outcomes.get(run_id) != outcome:
                self.broken.append(f"{client.name} saw {run_id} end {outcome}, or saw it twice")
            seen.add(run_id)

    def _check_texts(self, client: SimClient, watched: Watched) -> None:
        """What Deltas add up to is how the message goes on; only a crash may take back what was not stored yet."""
        shown: dict[str, dict[int, str]] = {}
        for event in watched.events:
            if event.type == "delta":
                parts = shown.setdefault(event.payload["message_id"], {})
                parts[event.payload["part"]] = parts.get(event.payload["part"], "") + event.payload["text"]
            elif event.type == "message" and event.change != "deleted" and "parts" in event.payload:
                whole = {
                    number: part["data"]["text"]
                    for number, part in enumerate(event.payload["parts"])
                    if part["type"] == "text"
                }
                before, now = _text(shown.get(event.payload["id"], {})), _text(whole)
                taken_back = not now or (self.scene.counted["crash"] and before.startswith(now))
                if not now.startswith(before) and not taken_back:
                    self.broken.append(f"{client.name} was shown {before!r} of a message that says {now!r}")
                shown[event.payload["id"]] = whole

    def _check_answers(self, client: SimClient) -> None:
        """An answer that was taken is the one that stands."""
        for ask_id, reply in client.answered:
            ask: Any = self.data.asks.get(ask_id)
            if isinstance(reply, KedgeError) or ask is None or not reply.resolved:
                continue
            if ask.state != "answered" or ask.answered_by != client.id:
                self.broken.append(f"{client.name} answered {ask_id}, which is {ask.state} by {ask.answered_by!r}")


def _text(parts: dict[int, str]) -> str:
    return "".join(parts[number] for number in sorted(parts))
