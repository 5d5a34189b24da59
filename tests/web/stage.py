"""A server with the same sessions each time, for pictures and for axe: its clock moves only on request."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playwright.async_api import Browser, BrowserContext, Page, ViewportSize

from kedge.core.events import RunEnded
from kedge.core.records import Prompt, RunOptions, RunRecord, Usage
from kedge.core.run_trace import ToolUse
from kedge.store.base import Write
from kedge.store.sqlite import SqliteStore
from kedge.testing.hosted import HostedEndpoint
from tests.conformance.harness import Json, Peer, Server
from tests.server.web_tab import ticket
from tests.web.conftest import Console

#: The time of the pictures; everything happened before. 2026-06-17 09:41 UTC.
NOON_MS = 1_781_689_260_000
DAY_MS = 86_400_000
#: Days before that with Runs in the statistics.
DAYS = 24

RETRY = '''\
"""Retries of requests."""

import random
from clock import pause


def wait_s(attempt: int) -> float:
    return 0.1 * 2 ** attempt


async def retried(call: Call) -> Reply:
    for attempt in range(10):
        try:
            return await call()
        except ConnectionError:
            await pause(wait_s(attempt))
'''
OLD = "    return 0.1 * 2 ** attempt\n"
NEW = """\
    # Jitter, so that clients do not reconnect together.
    return min(0.1 * 2**attempt, 30.0) * random.uniform(0.5, 1.0)
"""
ANSWER = """\
The delays grow without limit, and all clients wait for the **same** time. Two changes:

1. cap the delay at 30 s,
2. add jitter.

```python
def wait_s(attempt: int) -> float:
    return min(0.1 * 2**attempt, 30.0) * random.uniform(0.5, 1.0)
```
"""


def call(name: str, **arguments: Any) -> str:
    return f"tool {name} {json.dumps(arguments)}"


def script(*directives: str) -> str:
    return "script: " + " | ".join(directives)


TODOS = [
    {"content": "Find the cause", "status": "completed", "active_form": ""},
    {"content": "Cap the delay, add jitter", "status": "completed", "active_form": ""},
    {"content": "Run the tests", "status": "pending", "active_form": ""},
]
QUESTIONS = [
    {
        "question": "Which versions does the release support?",
        "options": [{"label": "3.11 and newer", "description": "as now"}, {"label": "3.12 and newer"}],
    },
    {"question": "What is its name?"},
]
#: The configuration of a model, in addition to those of `Server`.
MODELS = """\
[providers.openai]
base_url = "{}"
api_key = "a-key"
models = [{{ id = "gpt-5-mini", context_window = 400000, input_price = 0.25, output_price = 2 }}]
"""
#: A command that runs until the test creates this file.
GO = "tests-done"
SUITE = f"until [ -e {GO} ]; do sleep 0.05; done"

WHY, DO, RELEASE = "Why do all clients reconnect at the same moment?", "Do it.", "Publish version 0.4."
FLAKY, JOIN, NOTES = "Find out why test_resume is flaky", "Look at the fsync path as well", "Write the release notes"
EXPLAIN, TEST, RENAME = "Only explain the cause", "Add a regression test", "Rename Store.flush to sync"
ASK = "Prepare the release."
#: By prompt: what the model does.
SCRIPTS = {
    WHY: script(
        "think The retry has no jitter. Look at retry.py first.", call("view", path="retry.py"), f"say {ANSWER}"
    ),
    DO: script(
        call("edit", path="retry.py", old_string=OLD, new_string=NEW),
        "step",
        call("todos", todos=TODOS),
        "say Clients now wait between half and all of the delay, **at most 30 s**.",
        "usage 64200 2310",
    ),
    RELEASE: script(
        "say The tests pass. I publish the tag.",
        call("bash", command="git tag v0.4 && git push origin v0.4", description="Publish the tag v0.4"),
        "say Published.",
    ),
    FLAKY: script(
        "say I read the test first.",
        "hold read",
        call("grep", pattern="test_resume"),
        "say The failure needs a loop.",
        "hold loop",
        call("bash", command=SUITE, description="Run the test 200 times"),
        "say It fails when",
        "hold never",
    ),
    EXPLAIN: script("say The test reads", "hold explained", "say the file before it is flushed."),
    TEST: script("say I add", "hold never"),
    ASK: script(call("question", questions=QUESTIONS), "say Good."),
}


@dataclass
class Stage:
    """The server with its sessions, by a short name."""

    server: Server
    peer: Peer
    endpoint: HostedEndpoint
    browser: Browser
    clock: Path
    sessions: dict[str, str]

    def address(self, name: str, below: str = "") -> str:
        return f"{self.server.url}/w/{self.peer.workspace}/s/{self.sessions[name]}{below}"

    def set_clock(self, seconds_before: float) -> None:
        """Set the clock to so many seconds before the pictures."""
        new = self.clock.with_suffix(".new")
        new.write_text(str(NOON_MS - round(1_000 * seconds_before)))
        new.replace(self.clock)

    @asynccontextmanager
    async def context(self, **options: Any) -> AsyncIterator[BrowserContext]:
        """A browser that has access, at the time of the pictures."""
        fixed = {"locale": "en-GB", "timezone_id": "UTC", "reduced_motion": "reduce"}
        async with await self.browser.new_context(**{**fixed, **options}) as context:
            await context.clock.set_fixed_time(NOON_MS / 1000)
            yield context

    @asynccontextmanager
    async def page(self, screen: ViewportSize, **options: Any) -> AsyncIterator[Page]:
        """The first screen in a browser of its own. The page may log no error but that of a refused login."""
        async with self.context(viewport=screen, **options) as context:
            page = await context.new_page()
            console = Console(page)
            await page.goto(f"{self.server.url}/#ticket={await ticket(self.peer.http)}")
            await page.locator(".shell").wait_for()
            yield page
            errors = [error for error in console.errors if "410 (Gone)" not in error]
            assert errors == [], errors


@asynccontextmanager
async def staged(home: Path, browser: Browser) -> AsyncIterator[Stage]:
    directory = home / "harbour"
    directory.mkdir()
    (directory / "retry.py").write_text(RETRY)
    clock = home / "clock"
    with HostedEndpoint(scripts=SCRIPTS) as endpoint:
        server = Server(home / "server", endpoint.url, MODELS.format(endpoint.url))
        server.program = (str(Path(__file__).with_name("clocked_server.py")), str(clock))
        server.checks_stalls = False  # Chromium shares the machine with it
        stage = Stage(server, None, endpoint, browser, clock, {})  # type: ignore[arg-type]
        stage.set_clock(7200)
        server.start()
        try:
            async with server.peer(directory) as peer:
                stage.peer = peer
                await _record_statistics(stage)
                await _play(stage)
                yield stage
        finally:
            server.stop()


async def _play(stage: Stage) -> None:
    await _retries(stage)
    await _lane(stage)
    await _asks(stage)
    stage.set_clock(0)


async def _session(stage: Stage, name: str, title: str, mode: str = "ask") -> str:
    session = stage.sessions[name] = await stage.peer.session(title)
    await stage.peer.call("PUT", f"{stage.peer.at}/sessions/{session}", {"model": "openai/gpt-5-mini"})
    if mode != "ask":
        await stage.peer.set_mode(session, mode)
    return session


async def _retries(stage: Stage) -> None:
    peer = stage.peer
    session = await _session(stage, "retries", "Clients reconnect all at once", "edits")
    for prompt in (WHY, DO):
        run = await peer.wait((await peer.submit(session, prompt))["run_id"])
        assert run["outcome"] == "completed", run


async def _asks(stage: Stage) -> None:
    for name, title, prompt in (("approval", "Release 0.4", RELEASE), ("question", "Next release", ASK)):
        stage.set_clock(60)
        session = await _session(stage, name, title)
        async with stage.peer.stream() as stream:
            await stage.peer.submit(session, prompt)
            await stream.until(lambda stream: stream.of("permission_request") + stream.of("question_batch_request"))


async def _lane(stage: Stage) -> None:
    """A Run that another one joins, a queued one, a cancel of all three; then an active one with a queue."""
    peer = stage.peer
    stage.set_clock(140)
    session = await _session(stage, "lane", "A flaky test in the store")

    async def submit(prompt: str, **fields: Any) -> str:
        return str((await peer.submit(session, prompt, **fields))["run_id"])

    async with peer.stream(deltas=1, session_id=session) as stream:

        async def said(text: str) -> None:
            await stream.until(lambda stream: any(text in _text(frame.payload) for frame in stream.frames))

        async def until(kind: str) -> Json:
            await stream.until(lambda stream: stream.of(kind))
            return stream.of(kind)[-1].payload

        await submit(FLAKY)
        await said("first.")
        stage.set_clock(128)
        await submit(JOIN, when_busy="fold")
        stage.set_clock(122)
        await submit(NOTES, when_busy="queue")
        stage.set_clock(116)
        stage.endpoint.release("read")
        await said("loop.")
        stage.set_clock(106)
        stage.endpoint.release("loop")
        ask = await until("permission_request")
        stage.set_clock(96)
        await peer.answer(ask["id"], "allow")
        await until("permission_notification")
        stage.set_clock(80)
        (peer.directory / GO).touch()
        await said("when")
        stage.set_clock(72)
        await peer.cancel(session)
        await stream.until(lambda stream: len(stream.of("run_complete")) == 3)
        stage.set_clock(60)
        explained = await submit(EXPLAIN)
        await said("reads")
        stage.set_clock(42)
        stage.endpoint.release("explained")
        await peer.wait(explained)
        stage.set_clock(34)
        await submit(TEST)
        await said("add")
        stage.set_clock(22)
        await submit(RENAME, when_busy="queue")
        stage.set_clock(12)
        await submit(NOTES, when_busy="queue")


def _text(payload: Json) -> str:
    if "text" in payload and "message_id" in payload:
        return str(payload["text"])
    parts = payload.get("parts", [])
    return " ".join(str(part["data"].get("text", "")) for part in parts)


async def _record_statistics(stage: Stage) -> None:
    """Write the facts of the Runs of some weeks into the store, as their ends would."""
    server, peer = stage.server, stage.peer
    session = await peer.session("Earlier")
    port = int(server.url.rpartition(":")[2])
    await asyncio.to_thread(server.terminate)
    made = [_past_run(peer.workspace, session, number) for number in range(6 * DAYS)]
    runs = [run for run in made if run is not None]
    ends = [(session, RunEnded(run.run_id, run.outcome or "completed", run.reason, run.ended_at or 0)) for run in runs]
    store = SqliteStore(server.data_dir)
    await store.open()
    await store.append(Write(peer.workspace, events=tuple(ends), runs=tuple(runs)))
    await store.close()
    await asyncio.to_thread(server.start, port, server.token)
    await peer.open()
    await peer.call("DELETE", f"{peer.at}/sessions/{session}")


def _past_run(workspace: str, session: str, number: int) -> RunRecord | None:
    """Return the Run with this number, all different; None for one of a weekend."""
    day, of_day = divmod(number, 6)
    noise = (number * 7919) % 97
    if (DAYS - day) % 7 in (3, 4) or of_day > 2 + day % 4:
        return None
    accepted = NOON_MS - (DAYS - day) * DAY_MS + of_day * 3_600_000
    started = accepted + (40 if of_day % 3 else 900 * noise)
    outcome: Any = "failed" if noise % 23 == 3 else "cancelled" if noise % 11 == 5 else "completed"
    calls = 2 + noise % 9
    return RunRecord(
        f"past-{number}",
        session,
        workspace,
        number + 1,
        Prompt("x"),
        RunOptions(),
        "x",
        accepted,
        state="ended",
        outcome=outcome,
        reason="model_failed" if outcome == "failed" else "cancelled" if outcome == "cancelled" else "",
        steps=1 + calls,
        started_at=started,
        first_token_at=started + 400 + 20 * noise,
        ended_at=started + 9_000 + 1_400 * noise,
        usage=Usage(9_000 + 900 * noise, 500 + 40 * noise, 0.02 + noise / 500, 6_000 + 500 * noise, 400),
        model="openai/gpt-5-mini" if number % 3 else "anthropic/claude-sonnet-4-5",
        tools=(
            ToolUse("bash", calls, noise % 3, 0, 2_500 * calls),
            ToolUse("edit", calls // 2, noise % 2, 0, 40),
            ToolUse("view", calls + 2, 0, 0, 90),
            ToolUse("grep", calls - 1, 0, 0, 70),
        ),
    )
