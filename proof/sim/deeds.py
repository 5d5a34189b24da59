"""The judge's look at what Runs did: no more than they were asked to and allowed, nothing behind their end, all of it
paid for once, and told in the transcript as it ended."""

from __future__ import annotations

import json
from collections import Counter

from kedge.core.events import Event, MessageChanged, RetryReported, RunEnded, SessionChanged
from kedge.core.records import RunRecord, Usage
from kedge.core.transcript import FinishReason, Message, ToolCall, ToolResult
from kedge.store import codec
from proof.sim.machine import TITLE
from proof.sim.scene import Scene, moment

#: How the last message of a Run ends.
_FINISH: dict[str | None, FinishReason] = {"completed": "end_turn", "cancelled": "canceled"}
#: From a grant until nobody is asked any more: what was asked in the same moment stands. Seconds.
GRANTED_S = 2.0


def check_deeds(scene: Scene, events: list[tuple[int, str, Event]]) -> list[str]:
    return _Deeds(scene, events).check()


class _Deeds:
    def __init__(self, scene: Scene, events: list[tuple[int, str, Event]]) -> None:
        self.scene = scene
        self.data = scene.data
        self.events = events
        self.broken: list[str] = []
        stored = self.data.messages.values()
        self.messages = {entry.message.id: codec.merged(entry.message, entry.tails) for entry in stored}

    def check(self) -> list[str]:
        self._check_behind_the_end()
        self._check_sessions()
        self._check_runs()
        for message in self.messages.values():
            for result in message.all(ToolResult):
                if "cut off" in result.content and not result.is_error:
                    self._say(f"{result.tool_call_id} was cut off, and that is no error")
        # With a session go its transcript and its grants; what was done in it cannot be counted any more.
        if not any(isinstance(event, SessionChanged) and event.change == "deleted" for _, _, event in self.events):
            self._check_counts()
            self._check_grants()
        return self.broken

    def _say(self, what: str) -> None:
        self.broken.append(what)

    def _check_behind_the_end(self) -> None:
        ended: set[str] = set()
        for _, _, event in self.events:
            if isinstance(event, RunEnded):
                ended.add(event.run_id)
            elif isinstance(event, RetryReported) and event.run_id in ended:
                self._say(f"{event} behind its end")
            elif isinstance(event, MessageChanged):
                message = self.messages.get(event.message_id)
                if message is not None and message.run_id in ended:
                    self._say(f"{event} of {message.run_id} behind its end")

    def _check_sessions(self) -> None:
        for session in self.data.sessions.values():
            is_named = session.title == TITLE
            if session.title and not session.parent_run_id and is_named == session.title_is_makeshift:
                self._say(f"{session.id} is called {session.title!r}, makeshift: {session.title_is_makeshift}")
            spent = (run.usage for run in self.data.runs.values() if run.session_id == session.id)
            if session.usage != (total := sum(spent, Usage())):
                self._say(f"{session.id} paid for {session.usage}, its Runs for {total}")

    def _check_runs(self) -> None:
        prompts = Counter(message.run_id for message in self.messages.values() if message.role == "user")
        for run in self.data.runs.values():
            if prompts[run.run_id] != (run.started_at is not None):
                self._say(
                    f"{run.run_id} started {run.started_at}, and has {prompts[run.run_id]} prompts in the transcript"
                )
            if run.started_at is not None:
                self._check_last(run, self.messages.get(run.message_id or ""))
            elif run.message_id:
                self._say(f"{run.run_id} never started, and has an answer")

    def _check_last(self, run: RunRecord, last: Message | None) -> None:
        """What the transcript shows of its end is how it ended."""
        if last is None or last.finish is None:
            self._say(f"{run.run_id} ended {run.outcome}, and names no message that ended")
        elif last.finish.reason != _FINISH.get(run.outcome, "error") or last.text != run.text:
            self._say(
                f"{run.run_id} ended {run.outcome} with {run.text!r}; its last message: {last.finish}, {last.text!r}"
            )
        elif last.run_id != (run.folded_into or run.run_id):
            self._say(f"the last message of {run.run_id} is one of {last.run_id}")

    def _check_counts(self) -> None:
        """Nothing was done more often than it was called, and what needs leave not more often than it was given."""
        calls = Counter(_name(call) for message in self.messages.values() for call in message.all(ToolCall))
        calls += self.scene.typed
        done = Counter(
            {
                what.removesuffix(" process"): count
                for what, count in self.scene.counted.items()
                if what.endswith(" process")
            }
        )
        done["agent"] = sum(bool(session.parent_run_id) for session in self.data.sessions.values())
        for what, count in done.items():
            if count > calls[what]:
                self._say(f"{what} was done {count} times for {calls[what]} calls")
        allowed = sum(ask.is_allowed for ask in self.data.asks.values() if ask.kind == "approval")
        if not self.data.grants and done["risky"] > allowed:
            self._say(f"risky was done {done['risky']} times, and allowed {allowed} times")

    def _check_grants(self) -> None:
        """A standing answer is one that was given as such, and nobody is asked where one stands."""
        given = sorted(ask.session_id for ask in self.data.asks.values() if ask.answer == "allow_session")
        grants = list(self.data.grants.values())
        if sorted(grant.session_id for grant in grants) != given:
            self._say(f"the grants are {grants}, given were those of {given}")
        for ask in self.data.asks.values():
            for grant in grants:
                is_same = (ask.session_id, ask.grant) == (grant.session_id, grant.rule)
                if is_same and moment(grant.created_at) + GRANTED_S < moment(ask.asked_at):
                    self._say(f"{ask.id} was asked though {grant} stands")


def _name(call: ToolCall) -> str:
    return str(json.loads(call.input)["command"]) if call.name == "bash" else call.name
