"""The judge's look at the records: do they say what the log says, and did each Run do what its script says?

A Run's script is in its prompt (see machine.py), so what it should say, call and cost is known to anybody.
"""

from __future__ import annotations

import re
from collections import Counter

from kedge.core.events import Asked, Event
from kedge.core.records import RunRecord, Usage
from kedge.core.step import REPEATS_MAX
from kedge.core.transcript import Message, ToolCall, ToolResult
from kedge.store import codec
from proof.sim.books import Books
from proof.sim.scene import Scene

#: Clean-up of a stopped Run; and with everything that a store or a server that fails may add to it. Seconds.
STOP_S_MAX, LATE_STOP_S_MAX = 8.0, 30.0
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
        for session_id, books in self.books.items():
            stored = {run.run_id for run in self.data.runs.values() if run.session_id == session_id}
            if stored != (set() if books.is_deleted else set(books.seqs)):
                self._say(f"{session_id} has records of {sorted(stored)}, and accepted {sorted(books.seqs)}")
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
        if books.stopped_in_s.get(run.run_id, 0) > (LATE_STOP_S_MAX if is_delayed else STOP_S_MAX):
            self._say(f"{run.run_id} took {books.stopped_in_s[run.run_id]:.1f} s to stop")
        if run.outcome == "interrupted" and not self.scene.was_interrupted:
            self._say(f"{run.run_id} was interrupted, and nothing happened to the server")
        scripts = self.scripts.get(run.run_id, [])
        fails = any(word in script for script in scripts for word in ("fail", "busy 9"))
        if run.reason == "loop":  # prompts that join one Run may have it do the same so often
            fails = max(Counter(re.findall(r"run \w+", " ".join(scripts))).values(), default=0) >= REPEATS_MAX
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
        whole = [message.id for message in messages if message.is_summary and _is_whole(message)]
        # One whose append was in doubt is put again with the end of its Run; the next Run makes another.
        if session.summary_message_id != (whole[-1] if whole else "") and not self.scene.store_failed:
            self._say(f"{session_id} goes by the summary {session.summary_message_id!r} of {whole}")
        for result in results:
            self._check_leave(result)

    def _check_message(self, message: Message) -> None:
        run = self.data.runs.get((self.scene.workspace_id, message.run_id))
        if message.role == "assistant" and message.finish is None:
            self._say(f"{message.id} of {message.run_id} has no end")
        if message.is_summary:
            self._check_summary(message, run)
        elif message.role == "assistant":
            words = message.text.split()
            numbers = [int(word.partition(".")[2]) for word in words]
            if not _WORDS.fullmatch(message.text) or numbers != list(range(1, len(words) + 1)):
                self._say(f"{message.id} of {message.run_id} says {message.text!r}")
        if message.role == "user" and run is not None and message.text != run.prompt.text:
            self._say(f"{message.run_id} began with {message.text!r}, its prompt is {run.prompt.text!r}")

    def _check_summary(self, message: Message, run: RunRecord | None) -> None:
        if _is_whole(message) and run is not None:
            said, _, asked = message.text.partition("\n\n")
            if not re.fullmatch(r"done \d+ ", said) or run.prompt.text not in asked:
                self._say(f"the summary {message.id} has lost something of {run.run_id}: {message.text!r}")

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
            served = self.data.runs.get((self.scene.workspace_id, parent))  # None: deleted, with its session
            is_alone = served is not None and served.outcome in ("completed", "failed") and not self.scene.store_failed
            if run.outcome == "cancelled" and is_alone:
                self._say(f"{run.run_id} was cancelled, and {parent}, which it served, was not")
            if not self.scene.was_interrupted and ended[run.run_id] > ended.get(parent, 0):
                self._say(f"{run.run_id} outlived {parent}, which it served")


def _is_whole(message: Message) -> bool:
    return message.finish is not None and message.finish.reason == "end_turn"
