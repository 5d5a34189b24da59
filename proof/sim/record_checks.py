"""Checks of the records: they agree with the log, and each Run did what its script says.

A Run's script is its prompt (see machine.py), so its text, its calls and its cost are known in advance.
"""

from __future__ import annotations

import re
from collections import Counter

from kedge.core.events import Asked, Event, RunEnded
from kedge.core.records import RunRecord, SessionRecord, Usage
from kedge.core.step import REPEATS_MAX
from kedge.core.transcript import Message, ToolCall, ToolResult
from kedge.store import codec
from proof.sim.ledger import SessionLedger
from proof.sim.state import SimState

#: A Run waits at least this long for the store before it fails. Seconds.
STORE_WAIT_S_MIN = 50.0
#: The clean-up of a stopped Run; and the same while the store or the server fails. Seconds.
STOP_S_MAX, LATE_STOP_S_MAX = 8.0, 30.0
_WORDS = re.compile(r"(w\d+\.\d+ )*")


def check_records(
    state: SimState, ledgers: dict[str, SessionLedger], events: list[tuple[int, str, Event]]
) -> list[str]:
    """Return the broken promises."""
    return _RecordChecks(state, ledgers, events).check()


class _RecordChecks:
    def __init__(
        self, state: SimState, ledgers: dict[str, SessionLedger], events: list[tuple[int, str, Event]]
    ) -> None:
        self.state = state
        self.data = state.data
        self.ledgers = ledgers
        self.events = events
        self.broken: list[str] = []
        #: The scripts of a Run and of the Runs folded into it, by the host's run_id.
        self.scripts: dict[str, list[str]] = {}
        for run in self.data.runs.values():
            self.scripts.setdefault(run.folded_into or run.run_id, []).append(run.prompt.text)

    def check(self) -> list[str]:
        self._check_every_run_has_a_record()
        for run in self.data.runs.values():
            self._check_against_log(run)
            self._check_stopped_in_time(run)
            self._check_outcome(run)
            self._check_usage(run)
        for session_id in self.data.transcripts:
            self._check_transcript(session_id)
        self._check_asks()
        self._check_children()
        self._check_facts()
        return self.broken

    def _report(self, problem: str) -> None:
        self.broken.append(problem)

    # --- runs ----------------------------------------------------------------------------------------------------

    def _check_every_run_has_a_record(self) -> None:
        for session_id, ledger in self.ledgers.items():
            stored = {run.run_id for run in self.data.runs.values() if run.session_id == session_id}
            if stored != (set() if ledger.is_deleted else set(ledger.seqs)):
                self._report(f"{session_id} has records of {sorted(stored)}, and accepted {sorted(ledger.seqs)}")

    def _check_against_log(self, run: RunRecord) -> None:
        ledger = self.ledgers[run.session_id]
        if run.outcome != ledger.outcomes.get(run.run_id) or run.seq != ledger.seqs.get(run.run_id):
            self._report(f"the record of {run.run_id} has {run.outcome} and seq {run.seq}, the log differs")
        if run.position != ledger.accepted_positions.get(run.run_id):
            self._report(f"the record of {run.run_id} has another Position than its RunAccepted")

    def _check_stopped_in_time(self, run: RunRecord) -> None:
        if run.cleanup != "clean":
            self._report(f"{run.run_id} was not cleaned up: {run.error}")
        if self.state.counts["store full"] or self.state.counts["slow write"]:
            return  # its tools are dead in time (see the world's check), but its end is written late
        is_delayed = self.state.store_failed or self.state.was_interrupted
        duration_s = self.ledgers[run.session_id].stop_durations_s.get(run.run_id, 0)
        if duration_s > (LATE_STOP_S_MAX if is_delayed else STOP_S_MAX):
            self._report(f"{run.run_id} took {duration_s:.1f} s to stop")

    def _check_outcome(self, run: RunRecord) -> None:
        if run.outcome == "interrupted" and not self.state.was_interrupted:
            self._report(f"{run.run_id} was interrupted, and the server was not")
        scripts = self.scripts.get(run.run_id, [])
        fails = any(word in script for script in scripts for word in ("fail", "busy 9"))
        if run.reason == "loop":  # prompts that join one Run may repeat a call so often
            fails = max(Counter(re.findall(r"run \w+", " ".join(scripts))).values(), default=0) >= REPEATS_MAX
        if run.outcome == "failed" and run.folded_into is None and not fails and not self.state.store_failed:
            self._report(f"{run.run_id} failed ({run.reason}), against its script")
        longest_s = max((act.for_s for act in self.state.plan.acts if act.kind == "store_full"), default=0.0)
        if run.reason == "store_unavailable" and longest_s < STORE_WAIT_S_MIN:
            self._report(f"{run.run_id} failed since the store was away for {longest_s:.1f} s")
        is_alone = run.folded_into is None and len(self.scripts[run.run_id]) == 1
        if run.outcome == "completed" and is_alone:
            self._check_completed(run)

    def _check_completed(self, run: RunRecord) -> None:
        """Its text is that of its last Step."""
        last = run.prompt.text.partition(":")[2].rpartition(";")[2]
        if "fail" in last or "busy 9" in last:
            self._report(f"{run.run_id} completed, and its script fails: {run.prompt.text}")
        if "busy" in last:
            return  # the text of a failed attempt is withdrawn, and streamed again
        step = run.prompt.text.count(";")
        count = sum(int(number) for number in re.findall(r"say (\d+)", last))
        expected = "".join(f"w{step}.{number} " for number in range(1, count + 1))
        if run.text != expected:
            self._report(f"{run.run_id} has the text {run.text!r}, its script {expected!r}")

    def _check_usage(self, run: RunRecord) -> None:
        if run.folded_into and run.usage != Usage():
            self._report(f"{run.run_id} is folded into {run.folded_into} and charged again")
        children = sum(script.count("agent") for script in self.scripts.get(run.run_id, []))  # one Step each
        if run.usage.input_tokens > run.steps + children:
            self._report(f"{run.run_id} took {run.steps} Steps and was charged for {run.usage.input_tokens}")

    def _check_facts(self) -> None:
        """Each Run that ended is counted once, with its own outcome and tokens, also if its session was deleted."""
        facts = sorted((one.session_id, one.run_id, one.outcome) for one in self.data.facts.values())
        ended = [(session_id, event) for _, session_id, event in self.events if isinstance(event, RunEnded)]
        ends = sorted((session_id, event.run_id, event.outcome) for session_id, event in ended)
        if facts != ends:
            self._report(f"Runs ended {ends}, and were counted {facts}")
        for one in self.data.facts.values():
            if one.usage.input_tokens > one.steps:  # each Step has one token, and children are counted on their own
                self._report(f"{one.run_id} took {one.steps} Steps and is counted with {one.usage.input_tokens}")

    # --- transcripts ---------------------------------------------------------------------------------------------

    def _check_transcript(self, session_id: str) -> None:
        session = self.data.sessions.get(session_id)
        if session is None:
            self._report(f"messages of the deleted session {session_id} are left")
            return
        stored = self.data.transcripts[session_id].values()
        messages = [codec.merged(entry.message, entry.tails) for entry in stored]
        if session.message_count != len(messages):
            self._report(f"{session_id} counts {session.message_count} messages and has {len(messages)}")
        calls = sorted(call.id for message in messages for call in message.all(ToolCall))
        results = [result for message in messages for result in message.all(ToolResult)]
        if calls != sorted(result.tool_call_id for result in results):
            self._report(f"{session_id}: calls {calls}, results {[result.tool_call_id for result in results]}")
        for message in messages:
            self._check_message(message)
        self._check_summary_in_use(session, messages)
        for result in results:
            self._check_was_allowed(result)

    def _check_message(self, message: Message) -> None:
        run = self.data.runs.get((self.state.workspace_id, message.run_id))
        if message.role == "assistant" and message.finish is None:
            self._report(f"{message.id} of {message.run_id} has no end")
        if message.is_summary:
            self._check_summary(message, run)
        elif message.role == "assistant":
            words = message.text.split()
            numbers = [int(word.partition(".")[2]) for word in words]
            if not _WORDS.fullmatch(message.text) or numbers != list(range(1, len(words) + 1)):
                self._report(f"{message.id} of {message.run_id} has the text {message.text!r}")
        if message.role == "user" and run is not None and message.text != run.prompt.text:
            self._report(f"{message.run_id} began with {message.text!r}, its prompt is {run.prompt.text!r}")

    def _check_summary(self, message: Message, run: RunRecord | None) -> None:
        if message.role == "assistant" and message.text and not _is_complete(message):
            self._report(f"{message.id} of {message.run_id} is part of a summary: {message.text!r}")
        if _is_complete(message) and run is not None:
            text, _, request = message.text.partition("\n\n")
            if not re.fullmatch(r"done \d+ ", text) or run.prompt.text not in request:
                self._report(f"the summary {message.id} lacks part of {run.run_id}: {message.text!r}")

    def _check_summary_in_use(self, session: SessionRecord, messages: list[Message]) -> None:
        """A session uses its last complete summary."""
        complete = [message.id for message in messages if message.is_summary and _is_complete(message)]
        expected = complete[-1] if complete else ""
        if session.summary_message_id != expected:
            self._report(f"{session.id} uses the summary {session.summary_message_id!r} of {complete}")

    # --- approvals -----------------------------------------------------------------------------------------------

    def _check_was_allowed(self, result: ToolResult) -> None:
        """A call that asked ran only if it was allowed, and only a call that may have run is reported as cut off."""
        asks = [ask for ask in self.data.asks.values() if ask.tool_call_id == result.tool_call_id]
        is_refused = any(ask.kind == "approval" for ask in asks) and not any(ask.is_allowed for ask in asks)
        if is_refused and result.end != "not_run":
            self._report(f"{result.tool_call_id} is {result.end}, and no user allowed it")

    def _check_asks(self) -> None:
        for ask in self.data.asks.values():
            if ask.state == "pending":
                self._report(f"{ask.id} of {ask.run_id} is still pending")
        ask_ids = [event.ask_id for _, _, event in self.events if isinstance(event, Asked)]
        calls = Counter(self.data.asks[ask_id].tool_call_id for ask_id in ask_ids if ask_id in self.data.asks)
        for call_id, count in calls.items():
            if count > 1:
                self._report(f"users were asked {count} times about {call_id}")

    # --- child agents --------------------------------------------------------------------------------------------

    def _check_children(self) -> None:
        ends = {event.run_id: position for position, _, event in self.events if isinstance(event, RunEnded)}
        for run in self.data.runs.values():
            parent_id = run.options.parent_run_id
            if not parent_id:
                continue
            if run.run_id in self.ledgers[run.session_id].resumed:
                self._report(f"{run.run_id} was resumed without a parent that waits for it")
            parent = self.data.runs.get((self.state.workspace_id, parent_id))  # None: deleted with its session
            has_ended = parent is not None and parent.outcome in ("completed", "failed")
            if run.outcome == "cancelled" and has_ended and not self.state.store_failed:
                self._report(f"{run.run_id} was cancelled, and its parent {parent_id} was not")
            if not self.state.was_interrupted and ends[run.run_id] > ends.get(parent_id, 0):
                self._report(f"{run.run_id} outlived its parent {parent_id}")


def _is_complete(message: Message) -> bool:
    return message.finish is not None and message.finish.reason == "end_turn"
