"""Checks of what Runs did: no more than asked and allowed, nothing after their end, each cost counted once, and the
transcript shows how they ended."""

from __future__ import annotations

import json
from collections import Counter

from kedge.core.approvals import BY_RULE
from kedge.core.events import Event, MessageChanged, RetryReported, RunEnded, SessionChanged
from kedge.core.records import RunRecord, Usage
from kedge.core.transcript import FinishReason, Message, ToolCall, ToolResult
from kedge.store import codec
from proof.sim.machine import TITLE
from proof.sim.permission_checks import check_permissions
from proof.sim.state import SimState, sim_time

#: The finish reason of a Run's last message.
_FINISH: dict[str | None, FinishReason] = {"completed": "end_turn", "cancelled": "canceled"}
#: From a grant until no user is asked any more, and until pending asks that it permits are settled. Seconds.
GRANTED_S, SETTLED_S = 2.0, 0.3


def check_actions(state: SimState, events: list[tuple[int, str, Event]]) -> list[str]:
    """Return the broken promises."""
    return _ActionChecks(state, events).check()


class _ActionChecks:
    def __init__(self, state: SimState, events: list[tuple[int, str, Event]]) -> None:
        self.state = state
        self.data = state.data
        self.events = events
        self.broken: list[str] = []
        stored = [one for one in self.data.messages.values() if not state.is_fork(one.message.session_id)]
        #: With those that rewinds removed, and without their copies.
        self.messages = state.cut | {one.message.id: codec.merged(one.message, one.tails) for one in stored}

    def check(self) -> list[str]:
        self._check_nothing_after_the_end()
        self._check_titles()
        self._check_session_usage()
        self._check_runs()
        self._check_interrupted_results()
        # A deleted session takes its transcript and its grants along: its calls cannot be counted any more.
        if not any(isinstance(event, SessionChanged) and event.change == "deleted" for _, _, event in self.events):
            self._check_call_counts()
            self.broken += check_permissions(self.state)
            self._check_grants()
        return self.broken

    def _report(self, problem: str) -> None:
        self.broken.append(problem)

    def _check_nothing_after_the_end(self) -> None:
        ended: set[str] = set()
        for _, _, event in self.events:
            if isinstance(event, RunEnded):
                ended.add(event.run_id)
            elif isinstance(event, RetryReported) and event.run_id in ended:
                self._report(f"{event} after the end of its Run")
            elif isinstance(event, MessageChanged):
                message = self.messages.get(event.message_id)
                if message is not None and message.run_id in ended:
                    self._report(f"{event} after the end of {message.run_id}")

    def _check_titles(self) -> None:
        for session in self.data.sessions.values():
            is_named = session.title == TITLE
            if session.title and not session.parent_session_id and is_named == session.title_is_makeshift:
                self._report(f"{session.id} has the title {session.title!r}, makeshift: {session.title_is_makeshift}")

    def _check_session_usage(self) -> None:
        for session in self.data.sessions.values():
            usages = (run.usage for run in self.data.runs.values() if run.session_id == session.id)
            if session.usage != (total := sum(usages, Usage())):
                self._report(f"{session.id} was charged {session.usage}, its Runs {total}")

    def _check_runs(self) -> None:
        prompts = Counter(message.run_id for message in self.messages.values() if message.role == "user")
        for run in self.data.runs.values():
            # Only a prompt that was removed from the queue by hand leaves no messages.
            is_removed = run.started_at is None and run.reason == "removed"
            if prompts[run.run_id] != (not is_removed):
                self._report(f"{run.run_id} started {run.started_at}, and has {prompts[run.run_id]} prompt messages")
            if not is_removed:
                self._check_last_message(run, self.messages.get(run.message_id or ""))
            elif run.message_id:
                self._report(f"{run.run_id} was removed from the queue, and has a reply")

    def _check_last_message(self, run: RunRecord, last: Message | None) -> None:
        """The last message shows how the Run ended."""
        if last is None or last.finish is None:
            self._report(f"{run.run_id} ended {run.outcome}, and names no finished message")
        elif last.finish.reason != _FINISH.get(run.outcome, "error") or last.text != run.text:
            self._report(
                f"{run.run_id} ended {run.outcome} with {run.text!r}; its last message: {last.finish}, {last.text!r}"
            )
        elif last.run_id != (run.folded_into or run.run_id):
            self._report(f"the last message of {run.run_id} belongs to {last.run_id}")

    def _check_interrupted_results(self) -> None:
        for message in self.messages.values():
            for result in message.all(ToolResult):
                if result.end != "returned" and not result.is_error:
                    self._report(f"{result.tool_call_id} is {result.end}, and is not an error")
                if ("may or may not" in result.content) != (result.end == "cut_off"):
                    self._report(f"{result.tool_call_id} is {result.end}, and has the result {result.content!r}")

    def _check_call_counts(self) -> None:
        """Nothing ran more often than it was called. Calls that are reported as not run do not count."""
        not_run = {
            result.tool_call_id
            for message in self.messages.values()
            for result in message.all(ToolResult)
            if result.end == "not_run"
        }
        every = [call for message in self.messages.values() for call in message.all(ToolCall)]
        calls = Counter(_name(call) for call in every if call.id not in not_run)
        calls += self.state.typed
        suffix = " process"
        ran = Counter({k.removesuffix(suffix): n for k, n in self.state.counts.items() if k.endswith(suffix)})
        ran["agent"] = sum(bool(session.parent_run_id) for session in self.data.sessions.values())
        for name, count in ran.items():
            if count > calls[name]:
                self._report(f"{name} ran {count} times for {calls[name]} calls")

    def _check_grants(self) -> None:
        """Every grant comes from an answer, and no user is asked for what a grant allows."""
        answered = sorted(ask.session_id for ask in self.data.asks.values() if ask.answer == "allow_session")
        grants = list(self.data.grants.values())
        if sorted(grant.session_id for grant in grants) != answered:
            self._report(f"the grants are {grants}; users gave them in {answered}")
        for ask in self.data.asks.values():
            for grant in grants:
                is_same = (ask.session_id, ask.grant) == (grant.session_id, grant.rule)
                if is_same and sim_time(grant.created_at) + GRANTED_S < sim_time(ask.asked_at):
                    self._report(f"{ask.id} was asked although {grant} allows it")
        if not self.state.was_interrupted and not self.state.store_failed:
            self._check_settled()

    def _check_settled(self) -> None:
        """No Ask is left to a user after the answer to another one has granted it."""
        granted: dict[tuple[str, str], float] = {}
        for ask in sorted(self.data.asks.values(), key=lambda ask: sim_time(ask.answered_at or 0)):
            if any(mode == "plan" for _, mode in self.state.modes.get(ask.session_id, ())):
                continue  # no grant permits a call in plan mode
            key, at = (ask.session_id, ask.grant), sim_time(ask.answered_at or 0)
            if ask.state == "answered" and ask.answered_by != BY_RULE and at > granted.get(key, at) + SETTLED_S:
                self._report(f"{ask.id} was left to a user, and {key} was granted {at - granted[key]:.3f} s before")
            if ask.answer == "allow_session":
                granted.setdefault(key, at)


def _name(call: ToolCall) -> str:
    return str(json.loads(call.input)["command"]) if call.name == "bash" else call.name
