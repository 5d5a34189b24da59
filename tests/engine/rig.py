"""The real engine on a machine that does the same every time, with a scripted model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from kedge.core.commands import WhenBusy
from kedge.core.records import Prompt, RunOptions, RunRecord
from kedge.engine.config import Config
from kedge.engine.engine import Engine
from kedge.engine.models import Chosen
from kedge.engine.workspaces import Workspace
from kedge.errors import KedgeError, StoreUnavailable
from kedge.llm.base import Model
from kedge.server.ports import WireEncoder
from kedge.store.base import LogEntry, Write
from kedge.store.memory import MemoryStore
from kedge.testing.machine import CountingIds, ManualClock
from kedge.testing.scripted import ScriptedModel

CLIENT = "00000000-0000-4000-8000-000000000001"


class FaultyStore(MemoryStore):
    """Fails the appends it is told to: before they happen, or after, when the caller cannot know."""

    fail_before = 0
    fail_after = 0
    appends = 0
    #: The next append is refused with this.
    refuse: KedgeError | None = None

    async def append(self, write: Write) -> int:
        self.appends += 1
        if (refusal := self.refuse) is not None:
            self.refuse = None
            raise refusal
        if self.fail_before:
            self.fail_before -= 1
            raise StoreUnavailable("the disk is full; free some space")
        head = await super().append(write)
        if self.fail_after:
            self.fail_after -= 1
            raise StoreUnavailable("the connection broke off")
        return head


@dataclass
class OneModel:
    """Every Run gets this model."""

    model: Model

    def choose(self, config: Config, wanted: str) -> Chosen:
        return Chosen(self.model)

    def choose_small(self, config: Config, wanted: str) -> Chosen:
        return Chosen(self.model, writes_titles=False)

    async def close(self) -> None:
        pass


@dataclass
class Rig:
    engine: Engine
    store: FaultyStore
    clock: ManualClock
    model: ScriptedModel
    workspace: Workspace
    session: str = ""
    ids: CountingIds = field(default_factory=CountingIds)

    async def submit(
        self, prompt: str = "hello", run_id: str | None = None, when_busy: WhenBusy | None = None, **options: Any
    ) -> RunRecord:
        wish = RunOptions(**options)
        return await self.engine.submit(self.workspace, self.session, Prompt(prompt), wish, run_id, when_busy)

    async def end(self, run: RunRecord | str) -> RunRecord:
        run_id = run if isinstance(run, str) else run.run_id
        ended = await self.engine.wait_run(self.workspace, run_id, 20)
        assert ended.state == "ended", ended
        return ended

    async def log(self) -> list[LogEntry]:
        return await self.store.read(self.workspace.id, 0, 100_000)

    async def log_kinds(self) -> list[str]:
        return [type(entry.event).__name__ for entry in await self.log()]

    async def transcript(self) -> list[tuple[str, str, str | None]]:
        messages = await self.engine.messages(self.workspace, self.session, None, 1000)
        return [(message.role, message.text, message.finish.reason if message.finish else None) for message in messages]


@asynccontextmanager
async def rig(
    directory: Path, model: ScriptedModel, store: FaultyStore | None = None, **config: Any
) -> AsyncIterator[Rig]:
    """An engine with one workspace and, in a new store, one session."""
    store, clock = store or FaultyStore(), ManualClock()
    ids = CountingIds(after=1000 if store.data.logs else 0)
    engine = Engine(store, clock, ids, WireEncoder(), OneModel(model), msgspec.convert(config, Config))
    await engine.open()
    workspace = await engine.workspaces.open(str(directory), CLIENT)
    made = Rig(engine, store, clock, model, workspace, ids=ids)
    sessions = await engine.sessions(workspace)
    made.session = sessions[0].id if sessions else (await engine.create_session(workspace, "")).id
    try:
        yield made
    finally:
        await engine.close()


async def spin(times: int = 50) -> None:
    """Let everybody have their pass of the loop."""
    for _ in range(times):
        await asyncio.sleep(0)


async def until(condition: Callable[[], bool]) -> None:
    """For what no event tells: pass after pass of the loop. A hang is the test's timeout."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0)
