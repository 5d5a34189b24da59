"""Faults of what a Run does, step by step, and of the engine around it."""

from __future__ import annotations

from proof.mutants.apply import Mutant

ASKING = (
    Mutant(
        "a failed attempt is the last",
        "agent.model_call",
        "if not error.retryable or attempt >= runs.retries_max",
        "if not error.retryable or attempt >= 1",
        "A busy provider fails the Run.",
    ),
    Mutant(
        "a provider is asked once too often",
        "agent.model_call",
        "attempt >= runs.retries_max or",
        "attempt > runs.retries_max or",
        "retries_max is not kept.",
        "tests",
        ("tests/engine/test_retries.py::test_attempts_are_counted_per_step_and_the_last_failure_is_told",),
    ),
    Mutant(
        "what a failed attempt said stays",
        "agent.model_call",
        "                await self._take_back(active)\n",
        "",
        "An answer begins with the ruins of another one.",
    ),
    Mutant(
        "the draft is not closed",
        "agent.model_call",
        "active.draft.close()",
        "pass",
        "The end of an answer is stored twice.",
    ),
    Mutant(
        "the feed keeps a finished draft",
        "agent.model_call",
        "            active.lane.feed.stream_ended(active.draft)\n",
        "",
        "Who joins later sees a finished message as unfinished.",
    ),
    Mutant(
        "a message on its way is forgotten",
        "agent.model_call",
        "        active.unsure[message.id] = message\n        try:",
        "        try:",
        "A message is lost after a hiccup of the disk.",
    ),
    Mutant(
        "streamed text is not saved on the way",
        "agent.model_call",
        "if active.checkpoint_timer is None:\n                    self._plan",
        "if False:\n                    self._plan",
        "A kill -9 costs the whole answer that people were reading.",
    ),
)

CALLS = (
    Mutant(
        "a cancelled call goes on",
        "agent.tool_calls",
        "            for task in left:\n                task.cancel()\n",
        "",
        "A cancel waits for a command that hangs.",
    ),
    Mutant(
        "a denied command is run",
        "agent.tool_calls",
        "        if answered.is_allowed:\n            return None",
        '        if answered.state == "answered":\n            return None',
        "What people denied is done.",
    ),
    Mutant(
        "a run told to stop asks people",
        "agent.tool_calls",
        'raise RunIsStopping(f"run {ask.run_id} is told to stop and asks nobody")',
        "pass",
        "A dialog opens for a Run that was cancelled.",
    ),
    Mutant(
        "a standing question is asked again",
        "agent.tool_calls",
        "standing.binding == intent.binding:",
        "standing.binding != intent.binding:",
        "After a crash people are asked twice.",
    ),
)

CLOSING = (
    Mutant(
        "recovery closes no message",
        "engine.recovery",
        'before.append(("updated", streaming.closed(cut)))',
        "pass",
        "A message streams for ever after a crash.",
    ),
    Mutant(
        "recovery forgets the calls of asks",
        "engine.recovery",
        "if ends or call.id not in waiting)",
        "if call.id not in waiting)",
        "After a crash the provider refuses the session's history.",
    ),
    Mutant(
        "recovery cuts off what people were asked",
        "engine.recovery",
        "if ends or call.id not in waiting)",
        "if True)",
        "After a crash an approval is answered and nothing happens.",
        "tests",
        ("tests/engine/test_recovery.py::test_lost_while_one_call_waits_for_people_and_another_is_at_work",),
    ),
    Mutant(
        "recovery resumes a child nobody waits for",
        "engine.recovery",
        "resumes_max = 0 if host.options.parent_run_id else RESUMES_MAX",
        "resumes_max = RESUMES_MAX",
        "A child agent works on although its parent has given it up.",
    ),
    Mutant(
        "recovery leaves the streaming message",
        "engine.recovery",
        '("updated", streaming) if streaming else ("created", blank)',
        '("created", blank)',
        "What people had read before a crash has no end.",
    ),
    Mutant(
        "folded runs are paid for again",
        "engine.run_end",
        "usage=verdict.usage if event is ended else Usage(),",
        "usage=verdict.usage,",
        "Costs are counted twice.",
    ),
)

DRAFT = (
    Mutant(
        "text is saved twice",
        "engine.draft",
        "        for part in self._parts:\n            part.unsaved.clear()\n        return fresh",
        "        return fresh",
        "After a crash an answer repeats itself.",
        "tests",
        ("tests/engine/test_feed.py::test_a_draft_gives_the_same_text_whole_sent_and_saved",),
    ),
    Mutant(
        "a delta is sent twice",
        "engine.draft",
        "        for part in self._parts:\n            part.unsent.clear()\n        return fresh",
        "        return fresh",
        "An answer stutters on the screen.",
    ),
    Mutant(
        "a closed draft still has tails",
        "engine.door",
        "if draft.closed or not (tails or draft.is_doubtful):",
        "if not (tails or draft.is_doubtful):",
        "The end of an answer is stored twice.",
    ),
)

APPROVING = (
    Mutant(
        "the first answer does not win",
        "engine.asks",
        "is_first = ask.id in lane.asks",
        "is_first = True",
        "Of two people one gets an error, or the wrong one wins.",
    ),
    Mutant(
        "a withdrawn ask is answered",
        "engine.asks",
        'if stands.state == "withdrawn":',
        "if False:",
        "People are told that their late answer was taken.",
        "tests",
        ("tests/engine/test_asks.py::test_an_answer_that_races_a_cancel_is_taken_or_refused_and_the_run_is_cancelled",),
    ),
)

ENGINE = (
    Mutant(
        "a run at work is started again",
        "engine.engine",
        "if not self._runner.is_at_work(lane.session.id, active.run_id):",
        "if True:",
        "A Run works twice after a hiccup of the disk.",
    ),
    Mutant(
        "who comes later is not shown what is asked",
        "engine.workspaces",
        'reader.pending = b"".join(encode(None, Asked(ask.run_id, ask.id), ask) for ask in wanted)',
        "pass",
        "A client that attaches later never sees the dialog that everything waits for.",
    ),
    Mutant(
        "a child outlives its parent",
        "engine.engine",
        "                await wait_uncancelled("
        "[asyncio.ensure_future(self._end_child(workspace, lane, child, accepting))])\n",
        "",
        "A cancelled Run's child agent works on.",
    ),
    Mutant(
        "a session is deleted under its runs",
        "engine.engine",
        "                for end in [lane.end_of(run_id) for run_id in lane.runs]:\n",
        "                for end in []:\n",
        "A Run of a deleted session works on.",
    ),
    Mutant(
        "a session takes prompts while it is deleted",
        "engine.door",
        "(lane.deleting or lane.deleted)",
        "lane.deleted",
        "A prompt is accepted and vanishes.",
    ),
    Mutant(
        "every run is cancelled when its client leaves",
        "engine.engine",
        'wished = run.options.on_disconnect == "cancel" and run.folded_into is None',
        "wished = run.folded_into is None",
        "Closing the laptop cancels the work.",
    ),
    Mutant(
        "recovery looks at one session only",
        "engine.recovery",
        "        for lost in sessions:",
        "        for lost in sessions[:1]:",
        "After a crash some Runs are never ended.",
    ),
    Mutant(
        "a recovered lane is not set to work",
        "engine.engine",
        "        for lane in lanes:\n            self.reconcile(lane)\n",
        "",
        "After a crash nothing goes on.",
    ),
    Mutant(
        "a closing server does not wait for its runs",
        "engine.engine",
        "await self._runner.close(self.config.runs.cleanup_s + self.config.server.shutdown_s)",
        "await self._runner.close(0)",
        "A restart leaves Runs without an end.",
        "tests",
        (
            "tests/engine/test_engine.py"
            "::test_shutting_down_interrupts_what_runs_and_leaves_the_queue_to_the_next_process",
        ),
    ),
    Mutant(
        "an edit is forgotten",
        "engine.engine",
        "replace(run, prompt=given or Prompt(text, run.prompt.attachments))",
        "run",
        "A queued prompt runs as it was before it was edited.",
        "tests",
        ("tests/conformance/test_c_changes.py::test_c8_an_edited_prompt_is_seen_by_all_and_runs_as_edited",),
    ),
    Mutant(
        "a cancel of one run does not reach it",
        "engine.engine",
        "                case CancelMarked(run_id=run_id) | RunCancelMarked(run_id=run_id):",
        "                case CancelMarked(run_id=run_id):",
        "A Run that was cancelled by its id goes on until it is through.",
    ),
    Mutant(
        "a closing server starts runs",
        "engine.engine",
        "                    if not self._closing:\n                        self._start(lane, run_id)",
        "                    self._start(lane, run_id)",
        "A server that stops begins work that it then breaks off.",
    ),
    Mutant(
        "doubt is not looked into",
        "engine.door",
        "        while lane.stale and not self.closing:",
        "        while False:",
        "A prompt accepted while the store failed is not begun before somebody asks again.",
    ),
)
