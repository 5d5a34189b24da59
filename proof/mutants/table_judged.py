"""Faults that the judge did not see once: each has a check of its own since (judge, books, deeds, views, store)."""

from __future__ import annotations

from proof.mutants.apply import Mutant

DEEDS = (
    Mutant(
        "a resumed run makes a call again",
        "engine.recovery",
        "if ends or call.id not in waiting)",
        "if ends or (call.id not in waiting and 'quick' not in call.input))",
        "After a crash a command is silently run a second time.",
    ),
    Mutant(
        "a resumed run begins its agent again",
        "engine.recovery",
        "waiting = {ask.tool_call_id for ask in await self.store.session_asks(session_id)}",
        "waiting = {call.id for call in _open_calls(own) if call.name == 'agent'} | {ask.tool_call_id for ask in"
        " await self.store.session_asks(session_id)}",
        "After a crash an agent is paid for twice.",
    ),
    Mutant(
        "what is withdrawn counts as allowed",
        "agent.tool_calls",
        "        if answered.is_allowed:\n            return None",
        "        if answered.is_allowed or answered.state == 'withdrawn':\n            return None",
        "A command that nobody allowed is begun when its Run is cancelled.",
    ),
    Mutant(
        "the processes of a stopped call live on",
        "tools.shell",
        "            place.background.left(await running.end_surely(GRACE_S))\n            raise",
        "            raise",
        "A cancelled command goes on behind the end of its Run.",
    ),
    Mutant(
        "a grant is not stored",
        "engine.asks",
        "                    draught.grants = grants\n",
        "",
        "People are asked again for what they allowed for the session.",
    ),
    Mutant(
        "allowing once is for the session",
        "engine.asks",
        'if answer in ("allow_session", "allow_always"):',
        'if answer in ("allow", "allow_session", "allow_always") and ask.grant:',
        "What was allowed once is never asked for again.",
    ),
    Mutant(
        "a session forgets what it paid for",
        "engine.lane_state",
        "usage=session.usage + usage,",
        "usage=session.usage,",
        "A session costs nothing, as people see it.",
    ),
    Mutant(
        "a call that was cut off is no error",
        "engine.run_end",
        "CUT_OFF, is_error=True)",
        "CUT_OFF)",
        "A model takes a command that was cut off for one that worked.",
    ),
    Mutant(
        "a cancelled run ends like a finished one",
        "engine.run_end",
        '"cancelled": "canceled"',
        '"cancelled": "end_turn"',
        "The transcript does not show that a Run was cancelled.",
    ),
    Mutant(
        "a run names no message",
        "engine.run_end",
        "            message_id=message.id,\n",
        "",
        "Whoever waits for a Run does not find its answer.",
    ),
)

TOLD = (
    Mutant(
        "a step begins without waiting for the disk",
        "engine.door",
        "                asks=tuple(draught.asks.values()),\n            )\n        )\n",
        "                asks=tuple(draught.asks.values()),\n"
        "                durable=type(events[0]).__name__ != 'StepStarted',\n            )\n        )\n",
        "After a power cut a Position is given twice, and clients miss what has it the second time.",
    ),
    Mutant(
        "a log reader is told of other events",
        "engine.feed",
        "        return self.encode(entry.position, entry.session_id, entry.event, record)",
        "        from kedge.core.events import Asked, AskSettled\n"
        "        event = entry.event\n"
        "        if isinstance(event, AskSettled):\n"
        "            event = Asked(event.run_id, event.ask_id)\n"
        "        return self.encode(entry.position, entry.session_id, event, record)",
        "A dialog that was answered opens again for who reads the log.",
    ),
    Mutant(
        "a stream of one session asks for all",
        "engine.workspaces",
        "wanted = [ask for ask in asks if session_id in (None, ask.session_id)]",
        "wanted = asks",
        "People are shown approvals of sessions they do not look at.",
    ),
    Mutant(
        "a gap in memory wakes nobody",
        "engine.feed",
        "            self._empty_ring(last)\n            self._wake()\n",
        "            self._empty_ring(last)\n",
        "After a failure of the store, clients see what happened with the next heartbeat.",
    ),
    Mutant(
        "a receipt always says queued",
        "engine.door",
        'accepted_state="active" if state == "active" else "queued"',
        'accepted_state="queued"',
        "Whoever submits is told to wait though the Run is at work.",
    ),
    Mutant(
        "a cancel tells who is left",
        "engine.engine",
        "        covered = covered_by(decided.before, command)\n",
        "        covered = covered_by(lane.lane, command)\n",
        "A cancel does not name the queued Runs it has ended.",
    ),
)

#: Replies that were not held against what had been said.
ANSWERED = (
    Mutant(
        "a denial is taken for leave",
        "engine.asks",
        "        return await self._settle(workspace, ask, answer, message, by, grants)",
        '        said = "allow" if answer == "deny" else answer\n'
        "        return await self._settle(workspace, ask, said, message, by, grants)",
        "People say no, and it is done.",
    ),
    Mutant(
        "a look shows one run",
        "engine.engine",
        "        return await self._store.runs(session_id, limit)",
        "        return (await self._store.runs(session_id, limit))[-1:]",
        "A client that comes later does not see what waits.",
    ),
    Mutant(
        "who resumes alone begins at the head",
        "engine.feed",
        "        elif after == 0:\n            gap",
        "        elif after != 0 and not self._readers:\n            after = head\n"
        "        elif after == 0:\n            gap",
        "Whoever was away for a moment never hears what happened meanwhile.",
    ),
)

#: Of what happens beside the Steps of a Run: clocks that are set, titles, summaries, commands that people type.
BESIDE = (
    Mutant(
        "claims go by the machine's clock",
        "engine.workspaces",
        "        self._clock = clock\n",
        "        self._clock = clock\n        global _now_ms\n        _now_ms = clock.now_ms\n",
        "When the clock is set, clients lose their workspace, or it is kept open for days.",
    ),
    Mutant(
        "a typed command is not kept",
        "engine.user_commands",
        "            await self._door.put(lane, put)\n",
        "",
        "The model does not know what a person has run and shown it.",
    ),
    Mutant(
        "a typed command goes on without its request",
        "engine.user_commands",
        "                await running.end_surely(GRACE_S)",
        "                pass",
        "A command whose client went away is at work for ever.",
    ),
    Mutant(
        "a summary is not used",
        "agent.compaction",
        ", lambda before: replace(before, summary_message_id=message.id))",
        ")",
        "A history that fills the context is summarised, and fills it again.",
    ),
    Mutant(
        "a summary forgets the request",
        "agent.compaction",
        '        kept += f"\\n\\nThe request you are working on:\\n{asked}"',
        "        pass",
        "After a summary the model does not know any more what it was asked for.",
    ),
    Mutant(
        "a title stays makeshift",
        "agent.titles",
        "title=title, title_is_makeshift=False)",
        "title=title)",
        "Each Run pays for a new title, and the session is called otherwise every time.",
    ),
)

#: Refusals that had no reason, and answers that had no effect.
REFUSED = (
    Mutant(
        "a cancel by name does nothing",
        "engine.engine",
        "            return await self._cancel(lane, CancelRun(run_id, self._clock.now_ms()))",
        "            if lane.lane.queue:\n                return Cancelled(None, ())\n"
        "            return await self._cancel(lane, CancelRun(run_id, self._clock.now_ms()))",
        "Whoever cancels a Run is told that all is well, and it goes on.",
    ),
    Mutant(
        "a queue is not cleared",
        "engine.engine",
        "            return await self._cancel(lane, ClearQueue(self._clock.now_ms()))",
        "            return Cancelled(None, ())",
        "Prompts that were taken back are worked on.",
    ),
    Mutant(
        "a move does nothing",
        "core.lane",
        "    return () if moved == lane.queue else (RunMoved(command.run_id, command.before, command.now),)",
        "    return ()",
        "Prompts stay where they are, and people are told otherwise.",
    ),
    Mutant(
        "an idle session is busy",
        "core.lane",
        "    accepted = RunAccepted(command.run_id, lane.next_seq, False, command.now)\n",
        "    accepted = RunAccepted(command.run_id, lane.next_seq, False, command.now)\n"
        "    if command.when_busy == 'reject' and lane.next_seq > 1:\n        raise LaneBusy('busy')\n",
        "Programs that wait for an idle session wait for ever.",
    ),
    Mutant(
        "a queue is full too early",
        "core.lane",
        "    if len(lane.queue) >= command.queue_runs_max:",
        "    if len(lane.queue) + 1 >= command.queue_runs_max:",
        "A session takes one prompt less than it was told to.",
    ),
    Mutant(
        "a run that waits cannot be changed",
        "core.lane",
        "    if waiting := lane.queued(run_id):\n        return waiting",
        "    if (waiting := lane.queued(run_id)) and not waiting.folds:\n        return waiting",
        "Prompts that steer cannot be edited, moved or made to queue.",
    ),
    Mutant(
        "runs of before are not found",
        "engine.engine",
        "        if run := await self._store.run(workspace.id, run_id):\n            return run",
        "        if (run := await self._store.run(workspace.id, run_id)) and not run.resumes:\n            return run",
        "Whoever waits for a Run that was resumed is told that there is none.",
    ),
    Mutant(
        "whoever comes back has a gap",
        "engine.feed",
        "        elif not floor <= after <= head:",
        "        elif after != head:",
        "Each broken connection costs a client all that happened meanwhile.",
    ),
    Mutant(
        "the stream of a session is not found",
        "engine.workspaces",
        "wanted = [ask for ask in asks if session_id in (None, ask.session_id)]",
        "wanted = [ask for ask in asks if session_id in (None, ask.session_id)]\n"
        "        if session_id is not None and after:\n            raise SessionNotFound('gone')",
        "A client that lost its connection for a moment never sees its session again.",
    ),
)

_REVIEWED = "tests/engine/test_reviewed.py::"


def _by(test: str, name: str, module: str, old: str, new: str, hurts: str) -> Mutant:
    return Mutant(name, module, old, new, hurts, "tests", (_REVIEWED + test,))


#: What the simulator cannot play: tests find them.
REVIEWED = (
    _by(
        "test_b15_a_tool_left_behind_changes_no_file_after_the_end_of_its_run",
        "a run that has ended writes on",
        "engine.door",
        "            if of_run and (lane.lane.active is None or lane.lane.active.run_id != of_run):",
        "            if False:",
        "A tool that could not be stopped changes files behind the end of its Run.",
    ),
    _by(
        "test_g2_steps_of_a_resumed_run_are_counted_on",
        "a resumed run counts its steps anew",
        "agent.runner",
        "active.steps, active.usage = run.steps, run.usage",
        "active.usage = run.usage",
        "A Run that is resumed again and again has no limit.",
    ),
    _by(
        "test_a_persons_command_that_outlasts_the_last_claim_lets_go_of_the_workspace",
        "the last command lets go of nothing",
        "engine.workspaces",
        "            if not workspace.is_held:\n                self.look_again()",
        "            pass",
        "A server that nobody uses any more never leaves.",
    ),
    _by(
        "test_an_append_in_doubt_is_looked_for_though_the_first_look_meets_damage",
        "doubt is given up at the first damage",
        "engine.door",
        "            with suppress(StoreUnavailable, StoreError):",
        "            with suppress(StoreUnavailable):",
        "A Run that was accepted stays active for ever, and nobody works on it.",
    ),
)
