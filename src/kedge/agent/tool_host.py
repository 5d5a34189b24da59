"""The host of a tool call: the few engine functions that tools may use."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec.structs import replace

from kedge.agent.active_run import ActiveRun
from kedge.agent.call_approval import put_ask
from kedge.core.approvals import Ask, Confinement
from kedge.core.modes import Mode
from kedge.core.records import FileVersion, Todo, file_version_id
from kedge.core.transcript import ToolCall
from kedge.core.untrusted_text import without_surrogates
from kedge.engine.append import Append
from kedge.engine.ports import Agents
from kedge.errors import RunIsStopping, StoreUnavailable
from kedge.tools.background import PROGRESS_CHARS_MAX
from kedge.tools.base import Question, ToolFailed, ToolOutput
from kedge.tools.known_files import digest


class RunToolHost:
    """The ToolHost of one call."""

    def __init__(self, active: ActiveRun, call: ToolCall, agents: Agents) -> None:
        self._active = active
        self._call = call
        self._agents = agents
        self.confinement: Confinement = "configured"
        self.was_asked = False

    async def keep_version(self, path: Path, before: bytes | None, after: str) -> None:
        run = self._active.run
        store = self._active.door.store
        version_id = file_version_id(run.workspace_id, run.run_id, str(path))
        now = "" if before is None else await self._active.threads.run(digest, before)

        async def plan(tx: Append) -> None:
            version = await store.file_version(run.workspace_id, version_id)
            if version is None:
                version = FileVersion(
                    version_id, run.workspace_id, run.session_id, run.run_id, str(path), now, (after,), tx.now
                )
                if before is not None:
                    tx.originals[version_id] = before
            tx.put_file(version.changed(now, after), "created" if before is None else "updated" if after else "deleted")

        await self._active.write(plan)

    async def put_todos(self, todos: tuple[Todo, ...]) -> None:
        async def plan(tx: Append) -> None:
            tx.session = replace(tx.session, todos=todos)

        await self._active.write(plan)

    async def ask_user(self, questions: tuple[Question, ...]) -> list[str] | None:
        run, door = self._active.run, self._active.door
        if self._active.options.on_approval == "fail":
            raise ToolFailed("No user is available to answer. Decide for yourself, and state your decision.")
        ask = Ask(
            id=door.ids.new("ask"),
            workspace_id=run.workspace_id,
            session_id=run.session_id,
            run_id=run.run_id,
            tool_call_id=self._call.id,
            tool=self._call.name,
            kind="question",
            asked_at=door.clock.now_ms(),
            description=questions[0].question,
            params=msgspec.json.encode(questions).decode(),
        )
        if standing := self._active.standing.pop(self._call.id, None):
            settled = await standing[1]  # asked before a crash, and still shown to the user
        else:
            settled = await put_ask(self._active, ask)
        if settled.state == "withdrawn":
            raise RunIsStopping(f"Run {run.run_id} is being cancelled.")
        if settled.answer != "answered":
            return None
        return msgspec.json.decode(settled.message, type=list[str])

    async def leave_plan_mode(self, mode: Mode) -> Mode:
        async def plan(tx: Append) -> None:
            if tx.session.mode == "plan":
                tx.session = replace(tx.session, mode=mode)

        return (await self._active.write(plan)).session.mode

    async def run_agent(self, prompt: str, title: str, name: str = "") -> str:
        extensions = self._active.workspace.extensions
        agent = extensions.agent(name) if name else None
        if name and agent is None:
            known = ", ".join(extensions.agents()) or "none"
            raise ToolFailed(f"Agent {name[:100]} not found. Agents: {known}. Without a name, the agent is read-only.")
        options, spent_usd = self._active.options, self._active.usage.cost_usd
        # Agents of one Step run concurrently: each may spend its share of what is left.
        agents = sum(call.name == self._call.name for call in self._active.open_calls.values())
        left_usd = None if options.budget_usd is None else max(0.0, options.budget_usd - spent_usd) / max(agents, 1)
        parent = replace(self._active.run, options=replace(options, budget_usd=left_usd))
        try:
            ended = await self._agents.run_child(parent, prompt, title, agent)
        except StoreUnavailable as error:
            raise ToolFailed(f"The agent could not be started: {error}") from None
        self._active.usage += ended.usage
        self._active.child_usage += ended.usage
        if ended.outcome != "completed":
            raise ToolFailed(f"The agent returned no answer: {ended.error or ended.reason or ended.outcome}")
        return ended.text or "(The agent returned no text.)"

    def if_cut_off(self, output: Callable[[], ToolOutput]) -> None:
        self._active.partial[self._call.id] = output

    def progress(self, text: str) -> None:
        run, feed = self._active.run, self._active.state.feed
        latest = without_surrogates(text[-PROGRESS_CHARS_MAX:])
        feed.send_transient(run.session_id, feed.encoder.progress(run.session_id, run.run_id, self._call.id, latest))
