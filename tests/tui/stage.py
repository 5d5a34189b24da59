"""A fake server for pictures of the screen: fixed replies about a busy session, at a fixed time."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.client.standin import STREAM, Asked, json
from tests.tui import story

#: The time of the pictures; everything happened shortly before.
NOON_MS = 1_700_000_000_000
#: The diff of the edit.
_DIFF = "\n".join(
    (
        "--- a/retry.py",
        "+++ b/retry.py",
        "@@ -8,5 +8,6 @@",
        " def wait_s(attempt: int) -> float:",
        "-    return 0.1 * 2 ** attempt",
        "+    # Jitter, so that clients do not reconnect together.",
        "+    return min(0.1 * 2**attempt, 30.0) * random.uniform(0.5, 1.0)",
        " ",
        " ",
        " async def retried(call: Call) -> Reply:",
    )
)
_ANSWER = """\
The delays grow without limit, and all clients wait for the **same** time. Two changes:

1. cap the delay at 30 s,
2. add jitter.

```python
def wait_s(attempt: int) -> float:
    return min(0.1 * 2**attempt, 30.0) * random.uniform(0.5, 1.0)
```
"""
_COMMAND = "python -m pytest -q tests/test_retry.py"

MESSAGES: list[dict[str, Any]] = [
    story.message("m1", "user", story.text("Why do all clients reconnect at the same moment?"), run="r1"),
    story.message(
        "m2",
        "assistant",
        story.thought("The retry has no jitter. Look at retry.py first.", 4000),
        story.call("c1", "view", {"path": "retry.py"}),
        story.finish("tool_use"),
    ),
    story.message("m3", "tool", story.result("c1", "...", summary="lines 1-40 of 40")),
    story.message("m4", "assistant", story.text(_ANSWER), story.finish()),
    story.message("m5", "user", story.text("Do it, and run the tests."), run="r2"),
    story.message(
        "m6",
        "assistant",
        story.call("c2", "edit", {"path": "retry.py", "old_string": "", "new_string": ""}),
        story.finish("tool_use"),
        run="r2",
    ),
    story.message("m7", "tool", story.result("c2", "ok", diff=_DIFF, summary="+2 -1"), run="r2"),
    story.message("m8", "assistant", story.call("c3", "bash", {"command": _COMMAND}), run="r2"),
]
SESSION = story.session_body("s1", "Clients reconnect all at once", NOON_MS) | {
    "usage": {"input_tokens": 0, "output_tokens": 0, "cost_usd": 0.031},
    "is_busy": True,
    "attached_clients": 2,
    "message_count": len(MESSAGES),
    "todos": [
        {"content": "Find the cause", "status": "completed", "active_form": ""},
        {"content": "Cap the delay, add jitter", "status": "completed", "active_form": ""},
        {"content": "Run the tests", "status": "in_progress", "active_form": "Running the tests"},
    ],
}
SESSIONS = [
    SESSION,
    story.session_body("s2", "Release notes for 0.4", NOON_MS - 3_600_000),
    story.session_body("s3", "A flaky test in the store", NOON_MS - 90_000_000),
]
RUNS: list[dict[str, Any]] = [
    story.run_body("r1", "ended", seq=1, outcome="completed"),
    story.run_body(
        "r2",
        "active",
        seq=2,
        prompt="Do it, and run the tests.",
        started_at=NOON_MS - 12_000,
        steps=3,
        usage={"input_tokens": 8_100, "output_tokens": 420, "cost_usd": 0.012},
    ),
    story.run_body("r3", "queued", seq=3, prompt="Then write a line for the changelog."),
    story.run_body("r4", "queued", seq=4, prompt="And check whether the streams have the same problem."),
]
APPROVAL = story.approval("a1", run="r2", call_id="c3") | {
    "description": _COMMAND,
    "params": {"command": _COMMAND},
    "grant": f"bash({_COMMAND})",
    "offers": [[f"bash({_COMMAND})"], ["bash(python -m pytest *)"]],
    "asked_at": NOON_MS - 2_000,
}
PROGRESS = {"session_id": "s1", "run_id": "r2", "tool_call_id": "c3", "text": "....................  [ 48%]\n"}
FILE = {"path": "/w/retry.py", "change": "updated"}
MODEL = {"model": "anthropic/claude-sonnet-4-5", "provider": "anthropic", "context_window": 200_000}


class Stage:
    """Replies to the requests of the start; other requests get an empty list."""

    def __init__(self, *, is_empty: bool = False, asks: bool = False) -> None:
        self._is_empty, self._asks = is_empty, asks
        model = "" if is_empty else MODEL["model"]
        self._workspace = {"id": "w1", "path": "/w", "data_dir": "", "version": "", "config": {"model": model}}

    async def __call__(self, asked: Asked, writer: asyncio.StreamWriter) -> None:
        if asked.path.endswith("/events"):
            writer.write(STREAM + b"id: 9\n\n")  # the Position of the stream
            await writer.drain()
            await asyncio.Event().wait()
        writer.write(json(200, self._reply(asked)))
        await writer.drain()

    def _reply(self, asked: Asked) -> Any:
        full = not self._is_empty
        fresh = story.session_body("s1", "", NOON_MS)
        match asked.path.split("/")[1:]:
            case ["workspaces"]:
                return self._workspace
            case ["runs"]:
                return RUNS[1:] if full else []
            case ["workspaces", _, "sessions"]:
                return SESSIONS if full else [fresh]
            case ["workspaces", _, "sessions", _]:
                return SESSION if full else fresh
            case ["workspaces", _, "sessions", _, "messages"]:
                return MESSAGES if full else []
            case ["workspaces", _, "sessions", _, "files"]:
                return {"count": 1, "files": [FILE]} if full else {"count": 0, "files": []}
            case ["workspaces", _, "agent", "sessions", _, "runs"]:
                return RUNS if full else []
            case ["workspaces", _, "permissions"]:
                return [APPROVAL] if self._asks else []
            case ["workspaces", _, "permissions", "skip"]:
                return {"skip": False}
            case ["workspaces", _, "models"]:
                return [MODEL | {"is_default": True}] if full else []
            case _:
                return []
