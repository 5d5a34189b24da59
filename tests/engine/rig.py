"""The real engine on a machine that does the same every time, with a scripted model."""

from __future__ import annotations

import asyncio
import gc
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from kedge.agent.assembly import make_engine
from kedge.agent.model_choice import RunModel
from kedge.config.schema import Config
from kedge.core.approvals import Ask, Intent
from kedge.core.commands import WhenBusy
from kedge.core.events import RunEnded
from kedge.core.records import LaneRecord, Prompt, RunOptions, RunRecord
from kedge.core.transcript import Message, Part, Role, ToolCall, ToolResult
from kedge.engine.engine import Engine
from kedge.engine.ports import Machine
from kedge.engine.workspaces import Workspace
from kedge.errors import KedgeError, StoreUnavailable
from kedge.llm import anthropic_request, openai_request
from kedge.llm.base import Model, ModelPart, ModelRequest, TextDelta
from kedge.llm.catalogue import Price
from kedge.store.base import LogEntry, Write
from kedge.store.memory import MemoryStore
from kedge.testing.manual_system import CountingIds, ManualClock
from kedge.testing.provider_rules import anthropic_refusal, openai_refusal
from kedge.testing.scripted import Call, Reply, Say, ScriptedModel, ScriptedRequest
from kedge.tools.base import Prepared, Tool, ToolContext, ToolFailed, ToolOutput
from kedge.tools.process_port import Processes
from kedge.wire import frames
from tests.tools.contexts import PlainProcesses

CLIENT = "00000000-0000-4000-8000-000000000001"
#: A Run that is to time out in the middle of something: longer than a busy machine needs to get there. Seconds.
TIMEOUT_S = 1.0


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
    """Every Run gets this model, and titles come from the small one, if there is one."""

    model: Model
    small: Model | None = None
    price: Price | None = None
    context_window: int | None = None

    async def choose(self, config: Config, wanted: str) -> RunModel:
        return RunModel(self.model, self.context_window, price=self.price)

    async def choose_small(self, config: Config, wanted: str) -> RunModel:
        return RunModel(self.small or self.model, price=self.price, writes_titles=self.small is not None)

    async def close(self) -> None:
        pass


@dataclass(frozen=True)
class Trouble:
    """A provider fails with this error, having said so much."""

    error: KedgeError
    said: str = ""


class TroubledModel(ScriptedModel):
    """Each request meets the next trouble first; None, or none left: it is answered by the script."""

    def __init__(self, *replies: Reply | Callable[[ModelRequest], Reply], troubles: list[Trouble | None]) -> None:
        super().__init__(*replies)
        self._troubles = deque(troubles)
        #: Of requests that met a trouble.
        self.refused: list[ModelRequest] = []

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[ModelPart]]:
        trouble = self._troubles.popleft() if self._troubles else None
        if trouble is None:
            async with super().stream(request) as parts:
                yield parts
        else:
            self.refused.append(request)
            async with aclosing(_failing(trouble)) as parts:
                yield parts


async def _failing(trouble: Trouble) -> AsyncGenerator[ModelPart, None]:
    if trouble.said:
        yield TextDelta(trouble.said)
        await asyncio.sleep(0)
    raise trouble.error


class Wanted(msgspec.Struct):
    do: str
    #: Whether people are asked.
    leave: bool = False


class ActingTool(Tool):
    """Does what the test wrote down under the name that the call gives: Call("bash", {"do": "name"})."""

    name = "bash"
    description = "Does what the test defines."
    input: type[msgspec.Struct] = Wanted

    def __init__(self, **acts: Callable[[ToolContext], Awaitable[ToolOutput | str]]) -> None:
        self._acts = acts
        #: What was begun, in order.
        self.begun: list[str] = []

    def title(self, args: Wanted) -> str:
        return args.do

    async def prepare(self, given: Wanted, context: ToolContext) -> Prepared:
        intent = Intent(
            names=("bash",),
            action="execute",
            subject=given.do,
            description=given.do,
            path=str(context.root),
            params="{}",
            binding=given.do,
            needs_approval=given.leave,
            grant=f"bash({given.do})",
        )

        async def run() -> ToolOutput:
            self.begun.append(given.do)
            if given.do not in self._acts:
                return ToolOutput(f"did {given.do}")
            output = await self._acts[given.do](context)
            return output if isinstance(output, ToolOutput) else ToolOutput(output)

        return Prepared(intent, run)


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

    async def until_asked(self, count: int = 1) -> list[Ask]:
        """The pending Asks, once there are so many."""
        while len(asks := await self.engine.asks.pending(self.workspace)) < count:  # noqa: ASYNC110
            await asyncio.sleep(0)
        return asks

    async def until_begun(self, tool: ActingTool, name: str) -> None:
        await until(lambda: name in tool.begun)

    async def ends(self) -> list[str]:
        """The run_ids of all ends in the log, in order."""
        return [entry.event.run_id for entry in await self.log() if isinstance(entry.event, RunEnded)]

    async def results(self) -> list[tuple[str, str]]:
        """(call id, content) of all results in the transcript, in order."""
        messages = await self.engine.messages(self.workspace, self.session, None, 10_000)
        return [(result.tool_call_id, result.content) for message in messages for result in message.all(ToolResult)]

    async def assert_sound(self) -> None:
        """Every Run has one end, every answer an end, every call one result, no Ask is left, messages are counted
        right, nobody is waited for that has ended, and every request there was would be taken by every provider."""
        messages = await self.engine.messages(self.workspace, self.session, None, 10_000)
        assert all(message.finish for message in messages if message.role == "assistant"), messages
        results = sorted(call_id for call_id, _ in await self.results())
        assert results == sorted(call.id for message in messages for call in message.all(ToolCall))
        session = await self.engine.session(self.workspace, self.session)
        assert session.message_count == len(messages)
        ends = await self.ends()
        assert len(ends) == len(set(ends))
        assert await self.store.asks(self.workspace.id) == []
        for lane in self.workspace.lanes.values():
            assert (lane.settled, lane.asks, lane.ended, lane.runs) == ({}, {}, {}, {})
        for asked in self.model.requests:
            assert_taken(asked)

    async def transcript(self) -> list[tuple[str, str, str | None]]:
        messages = await self.engine.messages(self.workspace, self.session, None, 1000)
        return [(message.role, message.text, message.finish.reason if message.finish else None) for message in messages]


async def begin(
    directory: Path,
    model: ScriptedModel,
    store: FaultyStore | None = None,
    *,
    tools: tuple[Tool, ...] = (),
    machine: Machine | None = None,
    models: OneModel | None = None,
    **config: Any,
) -> Rig:
    """An engine with one workspace and, in a new store, one session. For tests that never close it: see `killed`."""
    store, clock = store or FaultyStore(), ManualClock()
    ids = CountingIds(after=100 * sum(len(log.rows) for log in store.data.logs.values()))
    chooser = models or OneModel(model)
    given = msgspec.convert(config, Config)
    engine = make_engine(store, clock, ids, frames, chooser, given, tools=tools, machine=machine)
    await engine.open()
    workspace = await engine.workspaces.open(str(directory), CLIENT)
    made = Rig(engine, store, clock, model, workspace, ids=ids)
    sessions = [session for session in await engine.sessions(workspace) if not session.parent_session_id]
    made.session = sessions[0].id if sessions else (await engine.create_session(workspace, "")).id
    return made


@asynccontextmanager
async def rig(
    directory: Path, model: ScriptedModel, store: FaultyStore | None = None, **given: Any
) -> AsyncIterator[Rig]:
    """The same, closed at the end. `given`: see `begin`."""
    made = await begin(directory, model, store, **given)
    try:
        yield made
    finally:
        await made.engine.close()


async def killed(r: Rig) -> FaultyStore:
    """The process is lost in the middle of what it did: its store is taken from it, and nothing of it goes on. What
    the next process finds."""
    store = FaultyStore(r.store.data)
    await store.open()
    while left := asyncio.all_tasks() - {asyncio.current_task()}:
        for task in left:  # again and again: some wait for others that are lost as well, some begin others
            task.cancel()
        await spin(5)
    for timer in (r.engine.workspaces._timer,):
        if timer is not None:
            timer.cancel()
    return store


@asynccontextmanager
async def no_complaints() -> AsyncIterator[None]:
    """asyncio has nothing to complain about: no error of a task that nobody looked at."""
    complaints: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda loop, context: complaints.append((context["message"], context.get("exception"))))
    try:
        yield
        await spin()
        gc.collect()
        await spin()
    finally:
        loop.set_exception_handler(None)
    assert not complaints, complaints


def assert_taken(asked: ScriptedRequest) -> None:
    """What was asked, in the formats of two providers, breaks none of their rules."""
    body = _sent(openai_request.request_body(asked.request, "x/y"))
    assert openai_refusal(body) is None, body
    body = _sent(anthropic_request.request_body(asked.request, "x"))
    assert anthropic_refusal(body, {"anthropic-version": "x"}) is None, body


def _sent(body: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(body))


async def spin(times: int = 50) -> None:
    """Let everybody have their pass of the loop."""
    for _ in range(times):
        await asyncio.sleep(0)


async def until(condition: Callable[[], bool]) -> None:
    """For what no event tells: pass after pass of the loop. A hang is the test's timeout."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0)


def do(*names: str, leave: bool = False) -> list[Say | Call]:
    """A Step that makes these calls."""
    return [Say("let me"), *(Call("bash", {"do": name, "leave": leave}) for name in names)]


async def never(context: ToolContext) -> str:
    await asyncio.Event().wait()
    raise AssertionError


class Outages(FaultyStore):
    """Fails, once, the Write that a condition picks: before it happens or after; or holds it until the gate opens."""

    before: Callable[[Write], bool] | None = None
    after: Callable[[Write], bool] | None = None
    held: Callable[[Write], bool] | None = None
    out = False

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.waiting = asyncio.Event(), asyncio.Event()

    async def append(self, write: Write) -> int:
        if self.out or (self.before and self.before(write)):
            self.before = None
            raise StoreUnavailable("the disk is full; free some space")
        if self.held and self.held(write):
            self.waiting.set()
            await self.gate.wait()
        head = await super().append(write)
        if self.after and self.after(write):
            self.after = None
            raise StoreUnavailable("the connection broke off")
        return head

    async def lane(self, session_id: str) -> tuple[LaneRecord, list[RunRecord]]:
        if self.out:
            raise StoreUnavailable("the connection broke off")
        return await super().lane(session_id)


def has_results(write: Write) -> bool:
    return any(message.all(ToolResult) for message in write.messages)


class LookedAt(Outages):
    """What the test waits for happens when a message was looked for, before the answer arrives."""

    def __init__(self) -> None:
        super().__init__()
        self.looked = asyncio.Event()

    async def message(self, workspace_id: str, message_id: str) -> Message | None:
        found = await super().message(workspace_id, message_id)
        self.looked.set()
        await spin()
        return found


def make_message(number: int, role: Role, *parts: Part, run_id: str = "r") -> Message:
    return Message(f"m{number}", "s", role, parts, 0, 0, run_id)


class PlainMachine:
    """Real processes without a warden."""

    def __init__(self) -> None:
        self.plain = PlainProcesses()
        self.fails = ""

    async def processes(self, config: Config, workspace: str) -> Processes:
        if self.fails:
            raise ToolFailed(self.fails)
        return self.plain

    async def close(self) -> None:
        pass


def is_alive(mark: Path) -> bool:
    pid = int(mark.read_text())
    return Path(f"/proc/{pid}").exists() and " Z " not in Path(f"/proc/{pid}/stat").read_text()


async def begun(mark: Path) -> None:
    await until(lambda: mark.exists() and mark.read_text().endswith("\n"))


#: One process, so that it ends with the pid it wrote down.
WAITS = "echo $$ > mark; exec sleep 1000"
