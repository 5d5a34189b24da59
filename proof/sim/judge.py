"""The judge: what every client saw and received agrees with the store, and the store keeps the promises."""

from __future__ import annotations

from collections.abc import Callable

from kedge.core.events import FoldMarked, LaneEvent, RunAccepted, RunFolded, SessionRewound
from kedge.core.lane import Lane, apply
from kedge.core.records import restore
from kedge.core.transcript import ShellCommand
from kedge.store import codec
from kedge.wire import models as m
from kedge.wire.reversal_models import RewindReply
from proof.sim.action_checks import check_actions
from proof.sim.client import Request, SimClient
from proof.sim.ledger import SessionLedger
from proof.sim.plan import Kind
from proof.sim.record_checks import check_records
from proof.sim.refusal_checks import RefusalChecks
from proof.sim.state import SimState, sim_time
from proof.sim.stream_checks import check_client

#: From the end of a Run, which is unknown while the store fails, until a waiting client gets its reply. Seconds.
WAIT_REPLY_S_MAX = 15.0
#: Writes that began before a cancel was kept are done within this time. Seconds.
UNDER_WAY_S = 0.2


def judge(state: SimState, clients: list[SimClient]) -> list[str]:
    """Return the broken promises."""
    return _Judge(state, clients).verdict()


class _Judge:
    def __init__(self, state: SimState, clients: list[SimClient]) -> None:
        self.state = state
        self.clients = clients
        self.data = state.data
        self.broken: list[str] = []
        rows = state.data.logs[state.workspace_id].rows
        self.events = [(row.position, row.session_id, codec.decode_event(row.payload)) for row in rows]
        self.ledgers: dict[str, SessionLedger] = {}
        for position, session_id, event in self.events:
            ledger = self.ledgers.setdefault(session_id, SessionLedger(session_id, state.appended_at))
            ledger.read(position, event)
        self.requests = [request for client in clients for request in client.requests]
        self.refusals = RefusalChecks(state, self.ledgers, self.requests)

    def verdict(self) -> list[str]:
        for ledger in self.ledgers.values():
            ledger.close()
            self.broken += ledger.broken
        self._check_lanes()
        self.broken += check_records(self.state, self.ledgers, self.events)
        self.broken += check_actions(self.state, self.events)
        self._check_cancels_have_a_cause()
        for request in self.requests:
            self._check_request(request)
        for client in self.clients:
            self.broken += check_client(self.state, client, self.ledgers, self.events)
        return self.broken

    def _report(self, problem: str) -> None:
        self.broken.append(problem)

    # --- the store against its own log ---------------------------------------------------------------------------

    def _check_lanes(self) -> None:
        """The log alone gives the same Lane as the records."""
        for session_id, ledger in self.ledgers.items():
            if ledger.is_deleted or (session_id not in self.data.lanes and not ledger.seqs):
                continue
            if session_id not in self.data.lanes:
                self._report(f"{session_id} has Runs and no Lane")
                continue
            lane = Lane()
            for _, owner, event in self.events:
                if owner == session_id and isinstance(event, LaneEvent):
                    lane = apply(lane, event)
            record = self.data.lanes[session_id][1]
            stored = restore(record, [run for run in self.data.live.values() if run.session_id == session_id])
            if stored != lane:
                self._report(f"{session_id}: the records give {stored}, the log gives {lane}")

    # --- causes --------------------------------------------------------------------------------------------------

    def _check_cancels_have_a_cause(self) -> None:
        """No Run is stopped or removed unless a client asked for it."""
        run_ids = self.state.run_ids
        cancelled = {run_ids.get(request.act.run) for request in self.requests if request.act.kind == "cancel_run"}
        bound = {run_ids.get(act.run) for act in self.state.plan.acts if act.is_bound_to_client}
        for index, session_id in enumerate(self.state.session_ids):
            ledger = self.ledgers.get(session_id)
            if ledger is None:
                continue
            own = [request for request in self.requests if request.act.session == index]
            asked = _cancel_requests(own)
            if ledger.cancel_count > asked:
                self._report(f"{session_id} has {ledger.cancel_count} cancels; {asked} were requested")
            for run_id in ledger.cancelled_by_id - cancelled - bound:
                self._report(f"{run_id} was cancelled, and no client asked for that")
            if not any(request.act.kind == "clear" for request in own):
                for run_id in ledger.removed - cancelled - bound:
                    self._report(f"{run_id} was removed from the queue, and no client asked for that")

    # --- replies -------------------------------------------------------------------------------------------------

    def _check_request(self, request: Request) -> None:
        kind = request.act.kind
        if self.state.is_calm and request.attempts > 1:
            self._report(f"{kind} was sent {request.attempts} times, and no fault had happened")
        if request.error is not None:
            self._check_refused(request)
        elif kind in _REPLY_CHECKS:
            _REPLY_CHECKS[kind](self, request)

    def _check_refused(self, request: Request) -> None:
        if problem := self.refusals.problem(request):
            self._report(problem)
        if request.act.kind == "submit" and request.act.own_id and self._was_accepted(request):
            self._report(f"{request.run_id} was refused ({request.error}) and accepted")

    def _was_accepted(self, request: Request) -> bool:
        """Was it accepted? False in a deleted session: no client can learn of it any more."""
        ledger = self.ledgers.get(self._session_id(request))
        return ledger is not None and request.run_id in ledger.seqs and not ledger.is_deleted

    def _check_receipt(self, request: Request) -> None:
        receipt: m.Receipt = request.reply
        ledger = self.ledgers[self._session_id(request)]
        numbers = (receipt.seq, receipt.position)
        if numbers != (ledger.seqs.get(receipt.run_id), ledger.accepted_positions.get(receipt.run_id)):
            self._report(f"the receipt of {receipt.run_id} has seq and position {numbers}, the log differs")
        if request.act.when_busy == "reject" and receipt.state != "active":
            self._report(f"{receipt.run_id} should be active or rejected, and is {receipt.state}")
        if (receipt.state == "active") != (receipt.run_id in ledger.started_at_once):
            self._report(f"the receipt of {receipt.run_id} says {receipt.state}, the log differs")

    def _check_edited(self, request: Request) -> None:
        run = self.data.runs.get((self.state.workspace_id, request.reply.run_id))
        if run is not None and run.prompt.text != f"p{request.act.run}e:say 2":
            self._report(f"{run.run_id} was edited, and its prompt is {run.prompt.text!r}")

    def _check_folded(self, request: Request) -> None:
        run_id = request.reply.run_id
        own = [event for _, _, event in self.events if getattr(event, "run_id", "") == run_id]
        is_folding = any(isinstance(event, RunAccepted) and event.folds for event in own)
        if not is_folding and not any(isinstance(event, FoldMarked | RunFolded) for event in own):
            self._report(f"a fold of {run_id} was confirmed, and is not in the log")

    def _check_deleted(self, request: Request) -> None:
        if not self.ledgers[self._session_id(request)].is_deleted:
            self._report("a deletion was confirmed, and the session exists")

    def _check_moved(self, request: Request) -> None:
        run_id = self.state.run_ids.get(request.act.run, "")
        before = None if request.act.before is None else self.state.run_ids.get(request.act.before, "")
        if run_id in self.ledgers[self.refusals.session_of(request)].moved or before == run_id:
            return
        queues = [state.queue for state in self.refusals.queue_states(request) if run_id in state.queue]
        followers = [[*queue, None][queue.index(run_id) + 1] for queue in queues]
        if before not in followers:
            self._report(f"a move of {run_id} before {before} was confirmed, and did not happen")

    def _check_shell(self, request: Request) -> None:
        """The user's command is in the transcript exactly once, with the output of the reply."""
        reply: m.ShellReply = request.reply
        session_id = self._session_id(request)
        messages = [entry.message for entry in self.data.messages.values() if entry.message.session_id == session_id]
        parts = [part for message in messages for part in message.all(ShellCommand)]
        expected = [ShellCommand(request.act.script, reply.output, reply.exit_code)]
        parts += [part for message in self.state.cut.values() for part in message.all(ShellCommand)]
        if not self.ledgers[session_id].is_deleted and parts != expected:
            self._report(f"{request.act.script} was answered with {reply}, and the transcript has {parts}")

    def _check_rewound(self, request: Request) -> None:
        """The session was rewound once, and the fork of the reply is there."""
        reply: RewindReply | None = request.reply
        if reply is None:
            return
        events = [event for _, _, event in self.events if isinstance(event, SessionRewound)]
        own = [event for event in events if event.fork_session_id == reply.fork_session_id]
        if len(own) != 1 or own[0].session_id != self._session_id(request):
            self._report(f"a rewind was answered with {reply}, and the log has {own}")
        if reply.fork_session_id not in self.data.sessions or not reply.prompt.startswith(f"p{request.act.run}"):
            self._report(f"a rewind was answered with {reply}, whose fork or prompt is wrong")
        for event in events:
            if (self.state.workspace_id, event.message_id) in self.data.messages:
                self._report(f"{event.message_id} was removed by a rewind, and is stored")

    def _check_mode(self, request: Request) -> None:
        """A switch that was answered is durable, unless another one or a Run with a mode came in its way."""
        session_id, reply = self.state.session_ids[request.act.session], request.reply
        others = [one for one in self.requests if one.act.mode is not None and one is not request]
        stored = self.state.data.sessions.get(session_id)
        if reply.mode != request.act.mode and not others:
            self._report(f"a switch to {request.act.mode} was answered with {reply.mode}")
        if stored is not None and stored.mode != request.act.mode and not others:
            self._report(f"{session_id} was switched to {request.act.mode}, and has mode {stored.mode}")

    def _check_run_list(self, request: Request) -> None:
        runs: list[m.RunBody] = request.reply
        for run in runs:
            self._check_run(run)
        if missing := self._accepted_before(request) - {run.run_id for run in runs}:
            self._report(f"a list of Runs lacks {missing}")

    def _check_run(self, run: m.RunBody) -> None:
        ledger = self.ledgers[run.session_id]
        if run.state == "ended" and run.outcome != ledger.outcomes.get(run.run_id):
            self._report(f"a client was told that {run.run_id} ended {run.outcome}")
        if run.seq != ledger.seqs.get(run.run_id):
            self._report(f"a client was told that {run.run_id} has seq {run.seq}")

    def _check_waited(self, request: Request) -> None:
        """A client that waits for a Run learns of its end at once, not when its request times out."""
        run: m.RunBody = request.reply
        self._check_run(run)
        stored = self.data.runs.get((self.state.workspace_id, run.run_id))
        is_late = bool(self.state.counts["store full"])  # a pending cancel ends a queued Run when it is written
        is_late = is_late or bool(self.state.node_pauses)  # the node that it is connected to may be paused
        if stored is None or stored.ended_at is None or request.attempts > 1 or is_late:
            return
        if max(sim_time(stored.ended_at), request.sent_at) + WAIT_REPLY_S_MAX < request.replied_at:
            self._report(f"{run.run_id} ended, and a client that waited was told {run.state} much later")

    # --- cancels -------------------------------------------------------------------------------------------------

    def _check_covered(self, request: Request) -> None:
        """Every Run that a reply names as covered ended cancelled."""
        for covered in request.reply.covered:
            ledgers = [ledger for ledger in self.ledgers.values() if covered.run_id in ledger.seqs]
            outcomes = [ledger.outcomes[covered.run_id] for ledger in ledgers]
            if not request.reply.recorded and self._may_be_lost(request, covered.run_id):
                continue
            if outcomes != ["cancelled"]:
                self._report(f"a reply names {covered.run_id} as covered, and it ended {outcomes}")

    def _may_be_lost(self, request: Request, run_id: str) -> bool:
        """May a cancel that was not recorded have come too late for a Run, or died with its process?"""
        ledger = next((ledger for ledger in self.ledgers.values() if run_id in ledger.seqs), None)
        # A Run that has joined another one cannot be cancelled alone, and memory may not have that yet.
        is_slow = self.state.counts["slow write"] or self.state.counts["store answers late"]
        if ledger is None or is_slow or run_id in ledger.folded:
            return True
        ended_at = ledger.ended_at[run_id]
        return ended_at < request.replied_at + UNDER_WAY_S or self.state.process_was_lost(request.sent_at, ended_at)

    def _check_unrecorded(self, request: Request) -> None:
        """A cancel that was not recorded at first still covers exactly the Runs accepted before it."""
        ledger = self.ledgers.get(self._session_id(request))
        if ledger is None:
            return
        for submit in self._submits(request):
            run_id = submit.run_id
            is_covered = run_id in ledger.covered
            if submit.sent_at > request.replied_at and is_covered and self._is_the_only_cancel(request):
                self._report(f"{run_id} was submitted after an unrecorded cancel, and is covered by it")
            is_before = submit.replied_at < request.sent_at and request.attempts == 1
            # It may have been cancelled by its id, in the same append.
            is_cancelled = is_covered or ledger.outcomes[run_id] == "cancelled"
            if is_before and not is_cancelled and not self._may_be_lost(request, run_id):
                self._report(f"{run_id} was accepted before an unrecorded cancel, and is not covered by it")

    def _check_cancel(self, request: Request) -> None:
        """A cancel covers exactly the Runs accepted before it, by the clock of the clients."""
        self._check_covered(request)
        reply: m.CancelReply = request.reply
        if not reply.recorded:
            self._check_unrecorded(request)
            return
        ledger = self.ledgers.get(self._session_id(request))
        if ledger is None:
            return
        # A cancel that finds only a Run that is already stopping writes nothing.
        if ledger.cancel_count and self._is_the_only_cancel(request):
            named = {covered.run_id for covered in reply.covered}
            if named != ledger.covered:
                self._report(f"a cancel covered {sorted(ledger.covered)} and named {sorted(named)}")
        for submit in self._submits(request):
            run_id, seq = submit.run_id, ledger.seqs[submit.run_id]
            is_covered = reply.mark is not None and seq <= reply.mark
            if submit.sent_at > request.replied_at and is_covered:
                self._report(f"{run_id} was submitted after the cancel to {reply.mark}, and is covered by it")
            is_before = submit.replied_at < request.sent_at and request.attempts == 1
            if is_before and not is_covered and not self._had_ended(run_id, request.replied_at):
                self._report(f"{run_id} was accepted before the cancel to {reply.mark}, and is not covered by it")

    def _check_cancelled_run(self, request: Request) -> None:
        """A Run that was live when its cancel was confirmed ended cancelled."""
        self._check_covered(request)
        ledger, run_id = self.ledgers[self.refusals.session_of(request)], self.state.run_ids.get(request.act.run, "")
        is_live = self.refusals.is_known(request.act.run, request) and ledger.ended_at[run_id] > request.replied_at
        if not request.reply.recorded and self._may_be_lost(request, run_id):
            return
        if is_live and request.attempts == 1 and ledger.outcomes[run_id] != "cancelled":
            self._report(f"{run_id} was cancelled by id, and ended {ledger.outcomes[run_id]}")

    def _check_cleared(self, request: Request) -> None:
        """No Run that was queued before the request is queued after the reply."""
        self._check_covered(request)
        states = self.ledgers[self.refusals.session_of(request)].queue_states
        before = {run for state in states if state.since < request.sent_at for run in state.queue}
        after = next((state for state in reversed(states) if state.since <= request.replied_at), states[0])
        if left := before & set(after.queue) & self._accepted_before(request):
            self._report(f"the queue was cleared, and {sorted(left)} stayed queued")

    def _is_the_only_cancel(self, request: Request) -> bool:
        own = [other for other in self.requests if other.act.session == request.act.session]
        cancels = sum(other.attempts for other in own if other.act.kind in ("cancel", "delete"))
        return cancels == 1 and not any(other.act.when_busy == "interrupt" for other in own)

    def _had_ended(self, run_id: str, at: float) -> bool:
        run = self.data.runs.get((self.state.workspace_id, run_id))
        return run is None or (run.ended_at is not None and sim_time(run.ended_at) <= at)

    # --- requests ------------------------------------------------------------------------------------------------

    def _session_id(self, request: Request) -> str:
        return self.state.session_ids[request.act.session]

    def _submits(self, request: Request) -> list[Request]:
        """Return the accepted submits of the same session."""
        own = [other for other in self.requests if other.act.session == request.act.session]
        return [other for other in own if other.act.kind == "submit" and other.reply is not None]

    def _accepted_before(self, request: Request) -> set[str]:
        """Return the Runs whose receipts had arrived when this was sent; none if the session is deleted."""
        if self.ledgers[self._session_id(request)].is_deleted:
            return set()
        return {submit.run_id for submit in self._submits(request) if submit.replied_at < request.sent_at}


def _cancel_requests(requests: list[Request]) -> int:
    """Return how many cancels of the whole session these requests may cause."""
    cancels = sum(request.attempts for request in requests if request.act.kind in ("cancel", "delete"))
    submits = [request for request in requests if request.act.kind == "submit"]
    return cancels + sum(request.act.when_busy == "interrupt" for request in submits)


#: The check of a successful reply, by the kind of its request.
_REPLY_CHECKS: dict[Kind, Callable[[_Judge, Request], None]] = {
    "submit": _Judge._check_receipt,
    "cancel": _Judge._check_cancel,
    "cancel_run": _Judge._check_cancelled_run,
    "clear": _Judge._check_cleared,
    "move": _Judge._check_moved,
    "edit": _Judge._check_edited,
    "fold": _Judge._check_folded,
    "delete": _Judge._check_deleted,
    "wait": _Judge._check_waited,
    "look": _Judge._check_run_list,
    "mode": _Judge._check_mode,
    "shell": _Judge._check_shell,
    "rewind": _Judge._check_rewound,
}
