"""Faults around Runs: feed, workspaces, the store in memory, the streams of server and client."""

from __future__ import annotations

from proof.mutants.apply import Mutant

FEED = (
    Mutant(
        "who joins takes the others' words",
        "engine.feed",
        "        if self.position >= feed._floor:\n            feed._flush()\n",
        "",
        "When somebody attaches, those who are there miss a piece of the answer.",
    ),
    Mutant(
        "a lost wake-up",
        "engine.feed",
        "            self._empty_ring(last)\n        self._head = last\n        self._wake()",
        "            self._empty_ring(last)\n        self._head = last",
        "Events come with the next heartbeat only.",
    ),
    Mutant(
        "the ring forgets one frame too many",
        "engine.feed",
        "self._floor = old.position",
        "self._floor = old.position - 1",
        "A slow reader misses an event.",
    ),
    Mutant(
        "who joins does not get what streams",
        "engine.feed",
        "                parts.append(self.encoder.snapshot(draft.message(now)))",
        "                pass",
        "Who comes in the middle of an answer sees only its end.",
    ),
    Mutant(
        "who joins gets the last words twice",
        "engine.feed",
        "            draft.take_unsent()  # gathered while nobody was reading; the snapshot has it\n",
        "",
        "An answer stutters on the screen.",
    ),
    Mutant(
        "an emptied ring is not noticed",
        "engine.feed",
        "self._first += len(self._frames) + 1",
        "self._first += len(self._frames)",
        "A reader at the end misses what happened.",
    ),
    Mutant(
        "a stream of one session shows all of the log",
        "engine.feed",
        "if self.session_id in (None, entry.session_id):\n                data",
        "if True:\n                data",
        "A stream shows events of another session.",
    ),
    Mutant(
        "a stream of one session shows all of the ring",
        "engine.feed",
        'if frame.audience in ("all", mode) and reader.session_id in (None, frame.session_id or reader.session_id):',
        'if frame.audience in ("all", mode):',
        "A stream shows events of another session.",
    ),
    Mutant(
        "a new reader begins one event late",
        "engine.feed",
        "            after = head\n        elif after == 0:",
        "            after = head + 1\n        elif after == 0:",
        "A client does not see its prompt accepted.",
    ),
    Mutant(
        "a reader of the log skips an entry",
        "engine.feed",
        "feed.store.read(feed.workspace_id, self.position, PAGE_ENTRIES_MAX)",
        "feed.store.read(feed.workspace_id, self.position + 1, PAGE_ENTRIES_MAX)",
        "A slow reader misses an event.",
    ),
    Mutant(
        "what is too slow for the ring is not noticed",
        "engine.feed",
        "if self._next is not None and self._next < feed._first:",
        "if False:",
        "A slow reader misses events.",
    ),
)

WORKSPACES = (
    Mutant(
        "a workspace is closed under a live run",
        "engine.workspaces",
        "if workspace.live_runs():",
        "if False:",
        "Work ends badly when the last client leaves.",
    ),
    Mutant(
        "a command does not hold its workspace",
        "engine.workspaces",
        "return self._in_use > 0 or any(",
        "return any(",
        "A prompt is accepted in a workspace that is just being closed, and never works.",
        "tests",
        ("tests/engine/test_engine.py::test_a_command_under_way_holds_its_workspace",),
    ),
    Mutant(
        "doubt does not hold a workspace",
        "engine.workspaces",
        "return self._in_use > 0 or any(lane.loaded and lane.stale for lane in self.lanes.values())",
        "return self._in_use > 0",
        "A Run accepted in doubt never works.",
        "tests",
        ("tests/engine/test_doubt.py::test_a_run_accepted_in_doubt_is_at_work_though_its_client_left",),
    ),
    Mutant(
        "a closed workspace takes commands",
        "engine.workspaces",
        "        if self.feed.closed:\n",
        "        if False:\n",
        "A prompt is accepted in a workspace that is gone, and never works.",
        "tests",
        ("tests/engine/test_engine.py::test_a_workspace_nobody_holds_is_let_go_and_refuses_late_commands",),
    ),
    Mutant(
        "clients lost in a crash never leave",
        "engine.workspaces",
        "workspace.claims = lost.stream_closed(_LOST, _LOST, _now_ms())",
        "workspace.claims = lost",
        "After a crash workspaces are never closed again.",
    ),
)

STORE = (
    Mutant(
        "tails stay behind the whole message",
        "store.memory",
        "stored.message, stored.tails = message, []",
        "stored.message = message",
        "The end of an answer is stored twice.",
    ),
    Mutant(
        "an ended run stays live",
        "store.memory",
        '    if run.state == "ended":\n        data.live.pop(key, None)',
        '    if run.outcome == "completed":\n        data.live.pop(key, None)',
        "After a restart a Run that had ended is worked on again.",
    ),
    Mutant(
        "a deleted session leaves its messages",
        "store.memory",
        "        del data.messages[key], transcript[key]",
        "        pass",
        "What people deleted is still there.",
    ),
    Mutant(
        "a run is given the position of its start",
        "store.codec",
        'if row.kind == "RunAccepted" and row.run_id}',
        'if row.kind == "RunStarted" and row.run_id}',
        "A client that reads from its receipt on misses events.",
    ),
    Mutant(
        "tails are merged in the wrong order",
        "store.codec",
        'text = "".join(tail.text for tail in group)',
        'text = "".join(reversed([tail.text for tail in group]))',
        "After a crash the words of an answer are jumbled.",
        "tests",
        ("tests/store/test_contract_records.py::test_many_tails_are_read_in_order",),
    ),
)

SERVER = (
    Mutant(
        "a stream that is over holds its workspace",
        "server.stream",
        "if not self._engine.is_closing:",
        "if self._engine.is_closing:",
        "Workspaces are never closed again.",
    ),
    Mutant(
        "the server forgets where a client was",
        "server.stream",
        '_position(call.header(b"last-event-id") or query.after)',
        "_position(query.after)",
        "A client that comes back misses what happened meanwhile.",
    ),
    Mutant(
        "the server resumes one event too far",
        "server.stream",
        "    return int(given)\n",
        "    return int(given) + 1\n",
        "A client that comes back misses an event.",
    ),
    Mutant(
        "a stream begins without what is asked",
        "server.stream",
        " % reader.position + reader.pending",
        " % reader.position",
        "A client that attaches later never sees the dialog that everything waits for.",
    ),
)

CLIENT = (
    Mutant(
        "the client resumes one event too far",
        "client.event_stream",
        'headers["last-event-id"] = str(self.position)',
        'headers["last-event-id"] = str(self.position + 1)',
        "A client that was cut off misses an event.",
    ),
    Mutant(
        "the client resumes at its beginning",
        "client.event_stream",
        "                return None\n            self.position = position",
        "                return None\n            self.position = self.position or position",
        "A client sees events again after each reconnect.",
    ),
    Mutant(
        "the client does not open its workspace again",
        "client.event_stream",
        "                await self._reopen_workspace()",
        "                pass",
        "After a restart of the server a client stays dark.",
        "tests",
        ("tests/client/test_event_stream.py::test_a_forgotten_workspace_is_opened_again_with_its_path",),
    ),
    Mutant(
        "the client takes the position before the event",
        "client.event_stream",
        "            self.position = position\n            self._reset_backoff()",
        "            self.position = position + 1\n            self._reset_backoff()",
        "A client drops events that follow each other.",
    ),
)
