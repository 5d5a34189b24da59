"""Faults of the Lane, of the one door, and of who supervises Runs."""

from __future__ import annotations

from proof.mutants.apply import Mutant

LANE = (
    Mutant(
        "a cancel covers the next run too",
        "core.lane",
        "latest = lane.next_seq - 1",
        "latest = lane.next_seq",
        "A prompt sent after a cancel is cancelled, too.",
    ),
    Mutant(
        "a cancel spares the latest run",
        "core.lane",
        "return run.seq <= self.mark or run.cancelled",
        "return run.seq < self.mark or run.cancelled",
        "A cancelled Run goes on.",
    ),
    Mutant(
        "only a completed run starts the next",
        "core.lane",
        "starts = [RunStarted(run.run_id, now) for run in lane.queue[:1]]",
        'starts = [RunStarted(run.run_id, now) for run in lane.queue[:1] if outcome == "completed"]',
        "After a failure the queue stands still for ever.",
    ),
    Mutant(
        "the report of the engine counts more than a cancel",
        "core.lane",
        'outcome, reason = "cancelled", "cancelled"',
        "pass",
        "A Run that was cancelled is reported as completed.",
    ),
    Mutant(
        "a repeated submit is accepted again",
        "core.lane",
        "if command.accepted_content is not None:",
        "if command.accepted_content is not None and lane.state_of(command.run_id):",
        "A client that repeats its request pays for two Runs.",
    ),
    Mutant(
        "a run told to stop begins another step",
        "core.lane",
        'raise RunIsStopping(f"run {active.run_id} is told to stop and begins no step")',
        "pass",
        "A cancelled Run asks the model again.",
    ),
    Mutant(
        "recovery resumes what a cancel covers",
        "core.lane",
        "active.resumes < command.resumes_max and not lane.covers(active)",
        "active.resumes < command.resumes_max",
        "After a crash a cancelled Run goes on.",
    ),
    Mutant(
        "who waited to fold keeps waiting",
        "core.lane",
        "queue=tuple(replace(run, folds=False) for run in lane.queue)",
        "queue=lane.queue",
        "A prompt joins a Run that it was not meant for.",
    ),
    Mutant(
        "a moved run comes first",
        "core.lane",
        "if run.run_id == before), len(rest))",
        "if run.run_id == before), 0)",
        "The queue is worked off in another order than people see.",
        "walk",
    ),
    Mutant(
        "one told to fold takes all with it",
        "core.lane",
        "replace(run, folds=run.folds or run.run_id == run_id)",
        "replace(run, folds=True)",
        "Prompts that were to wait for a Run of their own join the one at work.",
    ),
)

DOOR = (
    Mutant(
        "published before it is durable",
        "engine.door",
        "        last = await self._store.append(\n            Write(\n                session.workspace_id,",
        "        self._publish(lane, lane.feed._head + 1, draught, changed)\n"
        "        last = await self._store.append(\n            Write(\n                session.workspace_id,",
        "Clients see what a crash or a full disk takes back.",
    ),
    Mutant(
        "a submit is not known again",
        "engine.door",
        "if isinstance(command, Submit) and not is_new_id:",
        "if False:",
        "A client that repeats its request pays for two Runs.",
    ),
    Mutant(
        "a command without the lock",
        "engine.door",
        "        async with lane.lock:\n            for _ in range(DECISIONS_MAX):",
        "        if True:\n            for _ in range(DECISIONS_MAX):",
        "Two commands at once decide about the same Lane.",
    ),
    Mutant(
        "a write without the lock",
        "engine.door",
        "        async with lane.lock:\n            if lane.stale:\n                await self._reload(lane)\n"
        "            if lane.deleted:",
        "        if True:\n            if lane.stale:\n                await self._reload(lane)\n"
        "            if lane.deleted:",
        "A message is written behind the end of its Run.",
    ),
    Mutant(
        "a failed append is not doubted",
        "engine.door",
        "                    self._doubt(lane)\n                    raise\n                self._reactions",
        "                    raise\n                self._reactions",
        "A Run whose acceptance was in doubt is durable and never starts.",
    ),
    Mutant(
        "nobody is told of an end",
        "engine.door",
        "                if waiting := lane.ended.pop(run.run_id, None):\n                    waiting.set_result(run)",
        "                lane.ended.pop(run.run_id, None)",
        "Deleting a busy session hangs.",
    ),
    Mutant(
        "nobody is told of an end in doubt",
        "engine.door",
        "lane.ended.pop(run_id).set_result(run)",
        "lane.ended.pop(run_id)",
        "Deleting a session hangs after a hiccup of the disk.",
    ),
    Mutant(
        "readers are not told of what happened in doubt",
        "engine.door",
        "lane.feed.skip(head)",
        "pass",
        "A stream lacks the end of a Run after a hiccup of the disk.",
    ),
    Mutant(
        "a lane read again is not reconciled",
        "engine.door",
        "self._reactions.reconcile(lane)",
        "pass",
        "A Run that was started in doubt never works.",
    ),
    Mutant(
        "the receipt names the last position",
        "engine.door",
        "position=first + place)",
        "position=last)",
        "A client that reads from its receipt on misses the start of its Run.",
    ),
    Mutant(
        "tails are saved beside the lock",
        "engine.door",
        "        async with lane.lock:\n            tails = draft.take_unsaved()",
        "        if True:\n            tails = draft.take_unsaved()",
        "The end of an answer is stored twice.",
    ),
    Mutant(
        "a deleted session is written to",
        "engine.door",
        "            if lane.deleted:\n                raise SessionNotFound",
        "            if False:\n                raise SessionNotFound",
        "A deleted session is back.",
        "tests",
        ("tests/engine/test_doubt.py::test_nothing_brings_a_deleted_session_back_and_it_is_deleted_once",),
    ),
    Mutant(
        "a cancel leaves its dialogs open",
        "engine.door",
        "addition.asks += withdrawn_asks(lane, events, now)",
        "pass",
        "People answer for a Run that is over.",
    ),
    Mutant(
        "an answer does not reach the call",
        "engine.door",
        "        waiting = lane.settled.pop(ask.id, None)\n        if waiting is not None and not waiting.done():\n",
        "        waiting = lane.settled.pop(ask.id, None)\n        if waiting is None:\n",
        "An approved command never runs.",
    ),
    Mutant(
        "an answered ask is still pending in memory",
        "engine.door",
        "        lane.asks.pop(ask.id, None)\n        waiting",
        "        waiting",
        "The second answer of two is an error, or the first does not win.",
    ),
    Mutant(
        "a write ends with its caller",
        "engine.door",
        "return await asyncio.shield(task)",
        "return await task",
        "A cancelled call leaves memory behind the store.",
        "tests",
        ("tests/engine/test_engine.py::test_a_caller_that_goes_away_does_not_undo_what_was_accepted",),
    ),
    Mutant(
        "an answer in doubt does not reach the call",
        "engine.door",
        "                waiting = lane.settled.pop(ask_id)\n                if not waiting.done():",
        "                waiting = lane.settled.pop(ask_id)\n                if False:",
        "An approved command never runs after a hiccup of the disk.",
    ),
)

OPENLANE = (
    Mutant(
        "asks outlive their run",
        "engine.lane_state",
        "CancelMarked | RunCancelMarked | RunEnded)}",
        "CancelMarked | RunCancelMarked)}",
        "A dialog stays open for a Run that a crash has ended.",
    ),
    Mutant(
        "a cancel of one run leaves its dialogs open",
        "engine.lane_state",
        "CancelMarked | RunCancelMarked | RunEnded)}",
        "CancelMarked | RunEnded)}",
        "A command is approved that was cancelled before.",
        "tests",
        ("tests/engine/test_asks.py::test_whatever_stops_a_run_withdraws_its_asks_in_the_same_append",),
    ),
)

RUNNER = (
    Mutant(
        "an end that cannot be written is given up",
        "agent.runner",
        "            else:\n                break\n            await asyncio.sleep(wait_s)",
        "            break\n            await asyncio.sleep(wait_s)",
        "A Run never ends, or works twice, after a hiccup of the disk.",
    ),
    Mutant(
        "the next run loses its place",
        "agent.runner",
        "        if self._at_work.get(active.run.session_id) is active:\n"
        "            del self._at_work[active.run.session_id]",
        "        self._at_work.pop(active.run.session_id, None)",
        "A Run from the queue cannot be cancelled.",
    ),
    Mutant(
        "calls that were cut off get no result",
        "agent.runner",
        "active.run, tuple(active.open_calls.values()), now):",
        "active.run, (), now):",
        "After a cancel the provider refuses the session's history.",
    ),
    Mutant(
        "messages in doubt are not put again",
        "agent.runner",
        "before = [(_change(message, missing), message) for message in again]",
        "before: list[tuple[Change, Message]] = []",
        "A message is lost after a hiccup of the disk.",
    ),
    Mutant(
        "a message in doubt is taken to be there",
        "agent.runner",
        'return "created" if message.id in missing else "updated"',
        'return "updated"',
        "The session counts its messages wrong.",
    ),
    Mutant(
        "a run that ends goes on writing",
        "agent.runner",
        "verdict.usage, active.is_ending = active.usage, True",
        "verdict.usage = active.usage",
        "A result comes behind the last message of its Run.",
        "tests",
        (
            "tests/engine/test_calls.py"
            "::test_an_abandoned_tool_that_gives_its_result_while_the_end_looks_for_another_does_not_spoil_it",
        ),
    ),
    Mutant(
        "a resumed run asks people again",
        "agent.runner",
        "active.standing = {ask.tool_call_id: (ask, lane.end_of_ask(ask.id)) for ask in mine}",
        "active.standing = {}",
        "After a crash people are asked twice for the same command.",
    ),
    Mutant(
        "a resumed run forgets its open calls",
        "agent.runner",
        "active.open_calls = {call.id: call for call in _open_calls(own)}",
        "active.open_calls = {}",
        "After a crash an approved command is never run.",
    ),
    Mutant(
        "a stopped run is not cleaned up",
        "agent.runner",
        "        for task in tasks:\n            task.cancel()\n        # Side",
        "        # Side",
        "A cancelled Run goes on in the background.",
    ),
)
