"""What a tool call gets of the engine: the few things it may ask for, each through the one door."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import msgspec
from msgspec.structs import replace

from kedge.agent.active_run import ActiveRun
from kedge.core.approvals import Ask
from kedge.core.records import FileVersion, SessionRecord, Todo
from kedge.core.transcript import ToolCall
from kedge.core.untrusted_text import without_surrogates
from kedge.engine.door import Door
from kedge.engine.lane_state import Draught
from kedge.engine.ports import Agents, Clock, Ids
from kedge.errors import RunIsStopping
from kedge.tools.base import Question, ToolFailed

#: A line of progress, or the end of an output. Characters.
PROGRESS_CHARS_MAX = 4_000


class Asks(Protocol):
    async def put_ask(self, active: ActiveRun, ask: Ask) -> Ask: ...


class RunToolHost:
    """The ToolHost of one call."""

    def __init__(
        self, active: ActiveRun, call: ToolCall, asks: Asks, door: Door, agents: Agents, clock: Clock, ids: Ids
    ) -> None:
        self._active = active
        self._call = call
        self._asks = asks
        self._door = door
        self._agents = agents
        self._clock = clock
        self._ids = ids

    async def keep_version(self, path: Path, before: bytes | None, after: str) -> None:
        run = self._active.run
        now = self._clock.now_ms()
        version = FileVersion(
            self._ids.new("f"), run.workspace_id, run.session_id, run.run_id, str(path), before, after, now
        )

        def put(draught: Draught, session: SessionRecord) -> SessionRecord:
            draught.put_file(version, "created" if before is None else "updated" if after else "deleted")
            return session

        await self._door.put(self._active.lane, put, of_run=run.run_id)

    async def put_todos(self, todos: tuple[Todo, ...]) -> None:
        def put(draught: Draught, session: SessionRecord) -> SessionRecord:
            return replace(session, todos=todos)

        await self._door.put(self._active.lane, put, of_run=self._active.run.run_id)

    async def ask_user(self, questions: tuple[Question, ...]) -> list[str] | None:
        run = self._active.run
        if self._active.options.on_approval == "fail":
            raise ToolFailed("There is nobody to ask. Decide yourself, and say what you decided.")
        ask = Ask(
            id=self._ids.new("ask"),
            workspace_id=run.workspace_id,
            session_id=run.session_id,
            run_id=run.run_id,
            tool_call_id=self._call.id,
            tool=self._call.name,
            kind="question",
            asked_at=self._clock.now_ms(),
            description=questions[0].question,
            params=msgspec.json.encode(questions).decode(),
        )
        if standing := self._active.standing.pop(self._call.id, None):
            settled = await standing[1]  # asked before a crash, and still on people's screens
        else:
            settled = await self._asks.put_ask(self._active, ask)
        if settled.state == "withdrawn":
            raise RunIsStopping(f"run {run.run_id} is told to stop")
        if settled.answer != "answered":
            return None
        return msgspec.json.decode(settled.message, type=list[str])

    async def run_agent(self, prompt: str, title: str) -> str:
        options, spent = self._active.options, self._active.usage.cost_usd
        # Agents of one Step work side by side: each may spend its part of what is left.
        agents = sum(call.name == self._call.name for call in self._active.open_calls.values())
        left_usd = None if options.budget_usd is None else max(0.0, options.budget_usd - spent) / max(agents, 1)
        parent = replace(self._active.run, options=replace(options, budget_usd=left_usd))
        ended = await self._agents.run_child(parent, prompt, title)
        self._active.usage += ended.usage
        if ended.outcome != "completed":
            raise ToolFailed(f"The agent gave no answer: {ended.error or ended.reason or ended.outcome}")
        return ended.text or "(The agent ended without a word.)"

    def progress(self, text: str) -> None:
        run, feed = self._active.run, self._active.lane.feed
        shown = without_surrogates(text[-PROGRESS_CHARS_MAX:])
        feed.pass_on(run.session_id, feed.encoder.progress(run.session_id, run.run_id, self._call.id, shown))
