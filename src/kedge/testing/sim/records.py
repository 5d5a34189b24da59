"""The judge's look at the records: do they say what the log says, and did each Run do what its script says?

A Run's script is in its prompt (see machine.py), so what it should say, call and cost is known to anybody.
"""

from __future__ import annotations

import re
from collections import Counter

from kedge.core.events import Asked, Event
from kedge.core.records import RunRecord, Usage
from kedge.core.transcript import Message, ToolCall, ToolResult
from kedge.store import codec
from kedge.testing.sim.books import Books
from kedge.testing.sim.scene import Scene

#: Clean-up of a stopped Run; and with everything that a store or a server that fails may add to it. Milliseconds.
STOP_MS_MAX, LATE_STOP_MS_MAX = 8_000, 30_000
_WORDS = re.compile(r"(w\d+\.\d+ )*")


def check_records(scene: Scene, books: dict[str, Books], events: list[tuple[int, str, Event]]) -> list[str]:
    return _Records(scene, books).check(events)


class _Records:
    def __init__(self, scene: Scene, books: dict[str, Books]) -> None:
        self.scene = scene
        self.data = scene.data
        self.books = books
        self.broken: list[str] = []
        #: With who has folded into each, by the host's run_id.
        self.scripts: dict[str, list[str]] = {}
        for run in self.data.runs.values():
            self.scripts.setdefault(run.folded_into or run.run_id, []).append(run.prompt.text)

    def check(self, events: list[tuple[int, str, Event]]) -> list[str]:
        for run in self.data.runs.values():
            self._check_run(run)
        for session_id in self.data.transcripts:
            self._check_transcript(session_id)
        self._check_asks(events)
        self._check_children(events)
        return self.broken

    def _say(self, what: str) -> None:
        self.broken.append(what)

    def _check_run(self, run: RunRecord) -> None:
        books = self.books[run.session_id]
        if run.outcome != books.outcomes.get(run.run_id) or run.seq != books.seqs.get(run.run_id):
            self._say(f"the record of {run.run_id} says {run.outcome} {run.seq}, the log something else")
        if run.position != books.accepted_at.get(run.run_id):
            self._say(f"the record of {run.run_id} has another Position than its RunAccepted")
        if run.cleanup != "clean":
            self._say(f"{run.run_id} was not cleaned up: {run.error}")
        is_delayed = self.scene.store_failed or self.scene.was_interrupted
        if books.stopped_in_ms.get(run.run_id, 0) > (LATE_STOP_MS_MAX if is_delayed else STOP_MS_MAX):
            self._say(f"{run.run_id} took {books.stopped_in_ms[run.run_id]} ms to stop")
        if run.outcome == "interrupted" and not self.scene.was_interrupted:
            self._say(f"{run.run_id} was interrupted, and nothing happened to the server")
        fails = any(word in script for script in self.scripts.get(run.run_id, []) for word in ("fail", "busy 9"))
        if run.outcome == "failed" and run.folded_into is None and not fails and not self.scene.store_failed:
            self._say(f"{run.run_id} failed ({run.reason}), and its script does not say so")
        is_alone = run.folded_into is None and len(self.scripts[run.run_id]) == 1
        if run.outcome == "completed" and is_alone:
            self._check_completed(run)
        if run.folded_into and run.usage != Usage():
            self._say(f"{run.run_id} is folded into {run.folded_into} and paid for again")
        children = sum(script.count("agent") for script in self.scripts.get(run.run_id, []))  # one Step each
        if run.usage.input_tokens > run.steps + children:
            self._say(f"{run.run_id} took {run.steps} Steps and paid for {run.usage.input_tokens}")

    def _check_completed(self, run: RunRecord) -> None:
        """It said what its last Step says."""
        last = run.prompt.text.partition(":")[2].rpartition(";")[2]
        if "fail" in last or "busy 9" in last:
            self._say(f"{run.run_id} completed, and its script says that it fails: {run.prompt.text}")
        step = run.prompt.text.count(";")
        count = sum(int(number) for number in re.findall(r"say (\d+)", last))
        if "busy" in last:
            return  # what was said before the attempt failed is taken back, and said again
        expected = "".join(f"w{step}.{number} " for number in range(1, count + 1))
        if run.text != expected:
            self._say(f"{run.run_id} said {run.text!r}, its script {expected!r}")

    def _check_transcript(self, session_id: str) -> None:
        session = self.data.sessions.get(session_id)
        if session is None:
            self._say(f"messages of {session_id} are left, which is gone")
            return
        stored = self.data.transcripts[session_id].values()
        messages = [codec.merged(entry.message, entry.tails) for entry in stored]
        if session.message_count != len(messages):
            self._say(f"{session_id} counts {session.message_count} messages and has {len(messages)}")
        calls = sorted(call.id for message in messages for call in message.all(ToolCall))
        results = [result for message in messages for result in message.all(ToolResult)]
        if calls != sorted(result.tool_call_id for result in results):
            self._say(f"{session_id}: calls {calls}, results {[result.tool_call_id for result in results]}")
        for message in messages:
            self._check_message(message)
        for result in results:
            self._check_leave(result)

    def _check_message(self, message: Message) -> None:
        if message.role == "assistant":
            if message.finish is None:
                self._say(f"{message.id} of {message.run_id} has no end")
            words = message.text.split()
            numbers = [int(word.partition(".")[2]) for word in words]
            if not _WORDS.fullmatch(message.text) or numbers != list(range(1, len(words) + 1)):
                self._say(f"{message.id} of {message.run_id} says {message.text!r}")
        run = self.data.runs.get((self.scene.workspace_id, message.run_id))
        if message.role == "user" and run is not None and message.text != run.prompt.text:
            self._say(f"{message.run_id} began with {message.text!r}, its prompt is {run.prompt.text!r}")

    def _check_leave(self, result: ToolResult) -> None:
        """What needs leave was done only with it."""
        if not result.content.startswith("risky"):
            return
        asks = [ask for ask in self.data.asks.values() if ask.tool_call_id == result.tool_call_id]
        granted = any(grant.rule == "bash(risky)" for grant in self.data.grants.values())
        if not any(ask.is_allowed for ask in asks) and (asks or not granted):
            self._say(f"{result.tool_call_id} was made, and nobody allowed it")

    def _check_asks(self, events: list[tuple[int, str, Event]]) -> None:
        for ask in self.data.asks.values():
            if ask.state == "pending":
                self._say(f"{ask.id} of {ask.run_id} is still pending")
        put = [event.ask_id for _, _, event in events if isinstance(event, Asked)]
        calls = Counter(self.data.asks[ask_id].tool_call_id for ask_id in put if ask_id in self.data.asks)
        for call_id, count in calls.items():
            if count > 1:
                self._say(f"people were asked {count} times about {call_id}")

    def _check_children(self, events: list[tuple[int, str, Event]]) -> None:
        ended = {
            getattr(event, "run_id", ""): place for place, _, event in events if type(event).__name__ == "RunEnded"
        }
        for run in self.data.runs.values():
            parent = run.options.parent_run_id
            if not parent:
                continue
            if run.run_id in self.books[run.session_id].resumed:
                self._say(f"{run.run_id} was resumed, and nobody waits for it")
            if not self.scene.was_interrupted and ended[run.run_id] > ended.get(parent, 0):
                self._say(f"{run.run_id} outlived {parent}, which it served")
