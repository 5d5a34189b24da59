"""One sample of every event, with the record that its frame shows."""

from __future__ import annotations

import json

from kedge.core import events as e
from kedge.core.approvals import Ask
from kedge.core.records import Prompt, RunOptions, RunRecord, SessionRecord, Todo, Usage
from kedge.core.transcript import (
    AttachedFile,
    FinishPart,
    ImageUrl,
    Message,
    Reasoning,
    ShellCommand,
    Text,
    ToolCall,
    ToolResult,
)

NASTY = 'x\n\ndata: {"type":"run_complete"}\r\nid: 5\u2028\x85"\\'

RUN = RunRecord("r1", "s1", "w1", 1, Prompt("do it"), RunOptions(), "digest", 1000, state="active", started_at=1000)
ENDED = RunRecord(
    "r1",
    "s1",
    "w1",
    2,
    Prompt(NASTY),
    RunOptions(parent_run_id="r0"),
    "digest",
    1000,
    state="ended",
    queue_order=3,
    folded_into="r9",
    steps=4,
    stopping=True,
    outcome="failed",
    reason="timeout",
    error=NASTY,
    started_at=1100,
    ended_at=1200,
    message_id="m1",
    text="half",
    usage=Usage(10, 20, 0.1234567891234),
    context_tokens=30,
    cleanup="failed",
)
SESSION = SessionRecord(
    "s1",
    "w1",
    "A <title>",
    1000,
    2000,
    parent_session_id="s0",
    message_count=2,
    usage=Usage(1, 2, 0.5),
    todos=(Todo("test", "in_progress", "testing"),),
    summary_message_id="m0",
    model="p/m",
    parent_run_id="r0",
)
MESSAGE = Message(
    "m1",
    "s1",
    "assistant",
    (
        Text(NASTY),
        Reasoning("why", "signed", 1, 2),
        ToolCall("c1", "bash", '{"command": "ls"}', title="$ ls", display="command"),
        ToolResult(
            "c1", "bash", "a", '{"exit_code": 0}', images=("data:image/png;base64,AA==",), summary="exit 0, 0.1 s"
        ),
        AttachedFile("a.png", "image/png", 1, "digest"),
        ImageUrl("https://example.org/x.png"),
        ShellCommand("ls", "a", 0),
        FinishPart("end_turn", 3),
    ),
    1,
    2,
    "r1",
    "m",
    "p",
)
APPROVAL = Ask(
    "a1",
    "w1",
    "s1",
    "r1",
    "c1",
    "bash",
    "approval",
    1,
    NASTY,
    json.dumps({"command": NASTY}),
    action="execute",
    path="/w",
    grant="bash(ls)",
    binding="b",
)
QUESTION = Ask(
    "a1",
    "w1",
    "s1",
    "r1",
    "c1",
    "question",
    "question",
    1,
    "Which?",
    json.dumps(
        [{"question": "Which?", "multiple": False, "options": [{"label": "this", "description": "that"}]}],
    ),
)

SAMPLES: dict[type, e.Event] = {
    e.RunAccepted: e.RunAccepted("r1", 1, False, 1),
    e.RunStarted: e.RunStarted("r1", 1),
    e.RunResumed: e.RunResumed("r1", 1),
    e.StepStarted: e.StepStarted("r1", 1, 1),
    e.RunFolded: e.RunFolded("r1", "r0", 1),
    e.RunEdited: e.RunEdited("r1", 1),
    e.RunMoved: e.RunMoved("r1", None, 1),
    e.FoldMarked: e.FoldMarked("r1", 1),
    e.CancelMarked: e.CancelMarked(1, "r1", 1),
    e.RunCancelMarked: e.RunCancelMarked("r1", 1),
    e.RunEnded: e.RunEnded("r1", "completed", "", 1),
    e.RunReported: e.RunReported("r1", "completed", ""),
    e.ErrorReported: e.ErrorReported("r1"),
    e.SessionChanged: e.SessionChanged("s1", "updated"),
    e.SessionRewound: e.SessionRewound("s1", "m1", "s2"),
    e.MessageChanged: e.MessageChanged("m1", "created"),
    e.RetryReported: e.RetryReported("r1", 2, 5, 1.5, NASTY),
    e.Asked: e.Asked("r1", "a1"),
    e.AskSettled: e.AskSettled("r1", "a1"),
    e.FileChanged: e.FileChanged("r1", "f1", NASTY, "updated"),
}
