"""The judge: is what every client saw and was told the same as what the store holds, and is that as promised?"""

from __future__ import annotations

from kedge.core.events import FoldMarked, LaneEvent, RunAccepted, RunFolded
from kedge.core.lane import Lane, apply
from kedge.core.records import restore
from kedge.core.transcript import ShellCommand
from kedge.store import codec
from kedge.wire import models as m
from proof.sim.books import Books
from proof.sim.client import SimClient, Told
from proof.sim.deeds import check_deeds
from proof.sim.records import check_records
from proof.sim.refusals import Refusals
from proof.sim.scene import Scene, moment
from proof.sim.views import check_client

#: From an end that is in doubt for as long as the store fails until who waits for it is told. Seconds.
TOLD_S_MAX = 15.0


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
            books = self.books.setdefault(session_id, Books(session_id, scene.appended_at))
            books.read(position, event)
        self.told = [told for client in clients for told in client.told]
        self.refusals = Refusals(scene, self.books, self.told)

    def verdict(self) -> list[str]:
        for books in self.books.values():
            books.close()
            self.broken += books.broken
        self._check_lanes()
        self.broken += check_records(self.scene, self.books, self.events)
        self.broken += check_deeds(self.scene, self.events)
        self._check_causes()
        for told in self.told:
            self._check_told(told)
        for client in self.clients:
            self.broken += check_client(self.scene, client, self.books, self.events)
        return self.broken

    # --- the store against its own log ---------------------------------------------------------------------------

    def _check_lanes(self) -> None:
        """The log alone gives the Lane that the records give."""
        for session_id, books in self.books.items():
            if books.is_deleted or (session_id not in self.data.lanes and not books.seqs):
                continue
            if session_id not in self.data.lanes:
                self.broken.append(f"{session_id} has Runs and no Lane")
                continue
            lane = Lane()
            for _, owner, event in self.events:
                if owner == session_id and isinstance(event, LaneEvent):
                    lane = apply(lane, event)
            record = self.data.lanes[session_id][1]
            stored = restore(record, [run for run in self.data.live.values() if run.session_id == session_id])
            if stored != lane:
                self.broken.append(f"the records of {session_id} say {stored}, the log says {lane}")

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
        if self.scene.is_calm and told.attempts > 1:
            self.broken.append(f"{kind} was asked {told.attempts} times, and nothing was in its way")
        if told.error is not None:
            if fault := self.refusals.fault(told):
                self.broken.append(fault)
            if kind == "submit" and told.act.own_id and self._exists(told):
                self.broken.append(f"{told.run_id} was refused ({told.error}) and accepted")
        elif kind == "submit":
            self._check_receipt(told, told.answer)
        elif kind in ("cancel", "cancel_run", "clear"):
            self._check_cancel(told, told.answer)
        elif kind == "move":
            self._check_moved(told)
        elif kind == "edit":
            run = self.data.runs.get((self.scene.workspace_id, told.answer.run_id))
            if run is not None and run.prompt.text != f"p{told.act.run}e:say 2":
                self.broken.append(f"{run.run_id} was edited, and its prompt is {run.prompt.text!r}")
        elif kind == "wait":
            self._check_run(told.answer)
            self._check_waited(told, told.answer)
        elif kind == "shell":
            self._check_typed(told, told.answer)
        elif kind == "look":
            for run in told.answer:
                self._check_run(run)
            missing = self._accepted_before(told) - {run.run_id for run in told.answer}
            if missing:
                self.broken.append(f"a client looked, and was not shown {missing}")
        elif kind == "delete" and not self.books[self.scene.session_ids[told.act.session]].is_deleted:
            self.broken.append("a session was said to be deleted, and is not")
        elif kind == "fold" and not self._was_to_fold(told.answer.run_id):
            self.broken.append(f"{told.answer.run_id} was said to fold, and the log does not know of it")

    def _check_typed(self, told: Told, reply: m.ShellReply) -> None:
        """What a person was told of a command is in the transcript, and there once."""
        session_id = self.scene.session_ids[told.act.session]
        stored = [entry.message for entry in self.data.messages.values() if entry.message.session_id == session_id]
        parts = [part for message in stored for part in message.all(ShellCommand)]
        if not self.books[session_id].is_deleted and parts != [
            ShellCommand(told.act.script, reply.output, reply.exit_code)
        ]:
            self.broken.append(f"{told.act.script} was answered with {reply}, and the transcript has {parts}")

    def _accepted_before(self, told: Told) -> set[str]:
        """The Runs of its session whose receipts were there when this was asked; of one that is deleted, none."""
        if self.books[self.scene.session_ids[told.act.session]].is_deleted:
            return set()
        submits = [other for other in self.told if other.act.kind == "submit" and other.act.session == told.act.session]
        return {other.run_id for other in submits if other.answer is not None and other.answered_at < told.asked_at}

    def _was_to_fold(self, run_id: str) -> bool:
        own = [event for _, _, event in self.events if getattr(event, "run_id", "") == run_id]
        asked = any(isinstance(event, RunAccepted) and event.folds for event in own)
        return asked or any(isinstance(event, FoldMarked | RunFolded) for event in own)

    def _exists(self, told: Told) -> bool:
        books = self.books.get(self.scene.session_ids[told.act.session])
        # In a session that was deleted since, nobody can be told that it had been accepted.
        return books is not None and told.run_id in books.seqs and not books.is_deleted

    def _check_receipt(self, told: Told, receipt: m.Receipt) -> None:
        books = self.books[self.scene.session_ids[told.act.session]]
        said = (receipt.seq, receipt.position)
        if said != (books.seqs.get(receipt.run_id), books.accepted_at.get(receipt.run_id)):
            self.broken.append(f"the receipt of {receipt.run_id} says {said}, the log something else")
        if told.act.when_busy == "reject" and receipt.state != "active":
            self.broken.append(f"{receipt.run_id} was to be rejected if somebody is active, and is {receipt.state}")
        if (receipt.state == "active") != (receipt.run_id in books.started_at_once):
            self.broken.append(f"the receipt of {receipt.run_id} says {receipt.state}, the log something else")

    def _check_run(self, run: m.RunBody) -> None:
        books = self.books[run.session_id]
        if run.state == "ended" and run.outcome != books.outcomes.get(run.run_id):
            self.broken.append(f"a client was told that {run.run_id} ended {run.outcome}")
        if run.seq != books.seqs.get(run.run_id):
            self.broken.append(f"a client was told that {run.run_id} has seq {run.seq}")

    def _check_waited(self, told: Told, run: m.RunBody) -> None:
        """Whoever waits for an end is told of it when it comes, not when the patience of the request is over."""
        ended = self.data.runs.get((self.scene.workspace_id, run.run_id))
        if ended is None or ended.ended_at is None or told.attempts > 1:
            return
        if max(moment(ended.ended_at), told.asked_at) + TOLD_S_MAX < told.answered_at:
            self.broken.append(f"{run.run_id} ended, and who waited for it was told {run.state} long after that")

    def _check_cancel(self, told: Told, reply: m.CancelReply) -> None:
        """A cancel covers exactly the Runs accepted before it: by the clock of those who asked."""
        for covered in reply.covered:
            outcomes = [books.outcomes[covered.run_id] for books in self.books.values() if covered.run_id in books.seqs]
            if outcomes != ["cancelled"]:
                self.broken.append(f"{covered.run_id} was said to be covered and ended {outcomes}")
        if told.act.kind == "cancel_run":
            self._check_cancelled_alone(told)
        elif told.act.kind == "clear":
            self._check_cleared(told)
        if told.act.kind != "cancel":
            return
        session = told.act.session
        books = self.books.get(self.scene.session_ids[session])
        # One that finds only a Run that was told to stop already writes nothing.
        if books is not None and books.cancels and self._is_the_only_cancel(told):
            said = {covered.run_id for covered in reply.covered}
            if said != books.covered:
                self.broken.append(f"a cancel covered {sorted(books.covered)} and said {sorted(said)}")
        for other in self.told:
            if other.act.kind != "submit" or other.act.session != session or other.answer is None or books is None:
                continue
            run_id, seq = other.run_id, books.seqs[other.run_id]
            if other.asked_at > told.answered_at and reply.mark is not None and seq <= reply.mark:
                self.broken.append(f"{run_id} was asked for after the cancel to {reply.mark}, and is covered by it")
            before = other.answered_at < told.asked_at and told.attempts == 1
            if before and (reply.mark is None or seq > reply.mark) and not self._had_ended(run_id, told.answered_at):
                self.broken.append(f"{run_id} was accepted before the cancel to {reply.mark}, and is not covered by it")

    def _check_cancelled_alone(self, told: Told) -> None:
        """Of a Run that goes on behind the answer, that was the end."""
        books, run_id = self.books[self.refusals.session_of(told)], self.scene.run_ids.get(told.act.run, "")
        goes_on = self.refusals.is_known(told.act.run, told) and books.ended_at[run_id] > told.answered_at
        if goes_on and told.attempts == 1 and books.outcomes[run_id] != "cancelled":
            self.broken.append(f"{run_id} was cancelled by name, and ended {books.outcomes[run_id]}")

    def _check_cleared(self, told: Told) -> None:
        """Nobody waits behind the answer who had waited before the question."""
        lines = self.books[self.refusals.session_of(told)].lines
        before = {run for line in lines if line.at < told.asked_at for run in line.queue}
        behind = next((line for line in reversed(lines) if line.at <= told.answered_at), lines[0])
        if left := before & set(behind.queue) & self._accepted_before(told):
            self.broken.append(f"the queue was cleared, and {sorted(left)} of it waited on")

    def _check_moved(self, told: Told) -> None:
        run_id = self.scene.run_ids.get(told.act.run, "")
        before = None if told.act.before is None else self.scene.run_ids.get(told.act.before, "")
        if run_id in self.books[self.refusals.session_of(told)].moved or before == run_id:
            return
        queues = [line.queue for line in self.refusals.lines(told) if run_id in line.queue]
        followers = [[*queue, None][queue.index(run_id) + 1] for queue in queues]
        if before not in followers:
            self.broken.append(f"{run_id} was said to be moved before {before}, and is not")

    def _is_the_only_cancel(self, told: Told) -> bool:
        asked = [other for other in self.told if other.act.session == told.act.session]
        cancels = sum(other.attempts for other in asked if other.act.kind in ("cancel", "delete"))
        return cancels == 1 and not any(other.act.when_busy == "interrupt" for other in asked)

    def _had_ended(self, run_id: str, at: float) -> bool:
        run = self.data.runs.get((self.scene.workspace_id, run_id))
        return run is None or (run.ended_at is not None and moment(run.ended_at) <= at)
