"""Shared helpers: the real engine with a scripted model, a manual clock and counted ids."""

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
from kedge.core.approvals import Ask, Intent, IntentPart
from kedge.core.commands import WhenBusy
from kedge.core.events import RunEnded
from kedge.core.records import LaneRecord, Prompt, RunOptions, RunRecord
from kedge.core.transcript import Message, Part, Role, ToolCall, ToolResult
from kedge.engine.door import no_users
from kedge.engine.engine import Engine
from kedge.engine.ports import Machine
from kedge.engine.workspace import Workspace
from kedge.errors import KedgeError, StoreUnavailable
from kedge.llm import anthropic_request, openai_request
from kedge.llm.base import Model, ModelPart, ModelRequest, TextDelta
from kedge.llm.catalogue import Price
from kedge.store.base import CopiedMessages, LogEntry, Write
from kedge.store.memory import MemoryStore
from kedge.testing.manual_system import CountingIds, ManualClock
from kedge.testing.provider_rules import anthropic_refusal, openai_refusal
from kedge.testing.scripted import Call, Reply, Say, ScriptedModel
from kedge.tools.base import Prepared, Tool, ToolContext, ToolFailed, ToolOutput
from kedge.tools.file_threads import FileThreads
from kedge.tools.process_port import Processes
from kedge.wire import frames
from tests.tools.contexts import PlainProcesses

CLIENT = "00000000-0000-4000-8000-000000000001"
#: Timeout of a Run that times out on purpose: longer than a busy machine needs to reach that point. Seconds.
TIMEOUT_S = 1.0


class FaultyStore(MemoryStore):
    """Fails the next appends: before they happen, or after, when the caller cannot know the result."""

    fail_before = 0
    fail_after = 0
    appends = 0
    #: Slices of a copy that succeed before one fails; -1: none fails.
    fail_copies_after = -1
    #: The error of the next append.
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

    async def copy_messages(self, *args: Any) -> CopiedMessages:
        if self.fail_copies_after >= 0:
            self.fail_copies_after -= 1
            if self.fail_copies_after < 0:
                raise StoreUnavailable("the disk is full; free some space")
        return await super().copy_messages(*args)


@dataclass
class OneModel:
    """Chooses the same model for every Run, and the small model, if any, for titles."""

    model: Model
    small: Model | None = None
    price: Price | None = None
    context_window: int | None = None

    async def choose(self, config: Config, name: str) -> RunModel:
        return RunModel(self.model, self.context_window, price=self.price)

    async def choose_small(self, config: Config, name: str) -> RunModel:
        return RunModel(self.small or self.model, price=self.price, writes_titles=self.small is not None)

    async def close(self) -> None:
        pass


@dataclass(frozen=True)
class Fault:
    """The failure of a model request after some text."""

    error: KedgeError
    text: str = ""


class FaultyModel(ScriptedModel):
    """Each request fails with the next fault. The script answers if that is None or no fault is left."""

    def __init__(self, *replies: Reply | Callable[[ModelRequest], Reply], faults: list[Fault | None]) -> None:
        super().__init__(*replies)
        self._faults = deque(faults)
        #: The requests that failed.
        self.refused: list[ModelRequest] = []

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[ModelPart]]:
        fault = self._faults.popleft() if self._faults else None
        if fault is None:
            async with super().stream(request) as parts:
                yield parts
        else:
            self.refused.append(request)
            async with aclosing(_failing(fault)) as parts:
                yield parts


async def _failing(fault: Fault) -> AsyncGenerator[ModelPart, None]:
    if fault.text:
        yield TextDelta(fault.text)
        await asyncio.sleep(0)
    raise fault.error


class ActionInput(msgspec.Struct):
    do: str
    #: True if the call requires approval.
    ask: bool = False


class ActingTool(Tool):
    """Runs the function that the test passes under the name in the call: Call("bash", {"do": "name"})."""

    name = "bash"
    description = "Runs an action of the test."
    input: type[msgspec.Struct] = ActionInput

    def __init__(self, **actions: Callable[[ToolContext], Awaitable[ToolOutput | str]]) -> None:
        self._actions = actions
        #: The started actions, in order.
        self.started: list[str] = []

    def title(self, args: ActionInput) -> str:
        return args.do

    async def prepare(self, args: ActionInput, context: ToolContext) -> Prepared:
        intent = Intent(
            names=("bash",),
            action="execute",
            subject=args.do,
            description=args.do,
            path=str(context.root),
            params="{}",
            binding=args.do,
            needs_approval=args.ask,
            parts=(IntentPart(tuple(args.do.split())),),
            grant=f"bash({args.do})",
        )

        async def run() -> ToolOutput:
            self.started.append(args.do)
            if args.do not in self._actions:
                return ToolOutput(f"did {args.do}")
            output = await self._actions[args.do](context)
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
        run_options = RunOptions(**options)
        return await self.engine.submit(self.workspace, self.session, Prompt(prompt), run_options, run_id, when_busy)

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
        """Wait for so many pending Asks and return them."""
        while len(asks := await self.engine.asks.pending(self.workspace)) < count:  # noqa: ASYNC110
            await asyncio.sleep(0)
        return asks

    async def until_started(self, tool: ActingTool, name: str) -> None:
        await until(lambda: name in tool.started)

    async def ends(self) -> list[str]:
        """Return the run ids of all ends in the log, in order."""
        return [entry.event.run_id for entry in await self.log() if isinstance(entry.event, RunEnded)]

    async def results(self) -> list[tuple[str, str]]:
        """Return (call id, content) of all results in the transcript, in order."""
        messages = await self.engine.messages(self.workspace, self.session, None, 10_000)
        return [(result.tool_call_id, result.content) for message in messages for result in message.all(ToolResult)]

    async def call_ends(self) -> dict[str, str]:
        """Return how each call ended, by its id."""
        messages = await self.engine.messages(self.workspace, self.session, None, 10_000)
        return {result.tool_call_id: result.end for message in messages for result in message.all(ToolResult)}

    async def assert_sound(self) -> None:
        """Assert the invariants of an idle session.

        Every Run has one end, every answer is finished, every call has one result, no Ask is pending, the message
        count is correct, no waiter is left, and every request is valid for each provider.
        """
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
        for scripted in self.model.requests:
            assert_valid_for_providers(scripted.request)

    async def transcript(self) -> list[tuple[str, str, str | None]]:
        messages = await self.engine.messages(self.workspace, self.session, None, 1000)
        return [(message.role, message.text, message.finish.reason if message.finish else None) for message in messages]


async def start(
    directory: Path,
    model: ScriptedModel,
    store: FaultyStore | None = None,
    *,
    tools: tuple[Tool, ...] = (),
    machine: Machine | None = None,
    models: OneModel | None = None,
    has_users: Callable[[], bool] = no_users,
    **config: Any,
) -> Rig:
    """Start an engine with one workspace and, in a new store, one session. End it with `close` or `kill`."""
    store, clock = store or FaultyStore(), ManualClock()
    ids = CountingIds(after=100 * sum(len(log.rows) for log in store.data.logs.values()))
    chooser = models or OneModel(model)
    settings = msgspec.convert(config, Config)
    engine = make_engine(
        store, clock, ids, frames, chooser, settings, tools=tools, machine=machine, has_users=has_users
    )
    await engine.open()
    workspace = await engine.workspaces.open(str(directory), CLIENT)
    result = Rig(engine, store, clock, model, workspace, ids=ids)
    sessions = [session for session in await engine.sessions(workspace) if not session.parent_session_id]
    result.session = sessions[0].id if sessions else (await engine.create_session(workspace, "")).id
    return result


@asynccontextmanager
async def rig(
    directory: Path, model: ScriptedModel, store: FaultyStore | None = None, **options: Any
) -> AsyncIterator[Rig]:
    """Start an engine and close it at the end. For `options` see `start`."""
    result = await start(directory, model, store, **options)
    try:
        yield result
    finally:
        await result.engine.close()


async def kill(r: Rig) -> FaultyStore:
    """Simulate a crash: detach the store and cancel all tasks. Return the store for the next process."""
    store = FaultyStore(r.store.data)
    await store.open()
    while left := asyncio.all_tasks() - {asyncio.current_task()}:
        for task in left:  # repeated: some tasks start others while they are cancelled
            task.cancel()
        await spin(5)
    if (timer := r.engine.workspaces._timer) is not None:
        timer.cancel()
    return store


@asynccontextmanager
async def no_asyncio_errors() -> AsyncIterator[None]:
    """Assert that asyncio reports no error, such as an exception that was never retrieved."""
    errors: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda loop, context: errors.append((context["message"], context.get("exception"))))
    try:
        yield
        await spin()
        gc.collect()
        await spin()
    finally:
        loop.set_exception_handler(None)
    assert not errors, errors


def assert_valid_for_providers(request: ModelRequest) -> None:
    """Assert that the request is valid in the formats of two providers."""
    body = _sent(openai_request.request_body(request, "x/y"))
    assert openai_refusal(body) is None, body
    body = _sent(anthropic_request.request_body(request, "x"))
    assert anthropic_refusal(body, {"anthropic-version": "x"}) is None, body


def _sent(body: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(body))


async def spin(times: int = 50) -> None:
    """Let the other tasks run for some passes of the event loop."""
    for _ in range(times):
        await asyncio.sleep(0)


async def until(condition: Callable[[], bool]) -> None:
    """Poll a condition on every pass of the event loop. The timeout of the test ends a hang."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0)


def do(*names: str, ask: bool = False) -> list[Say | Call]:
    """A Step with these calls."""
    return [Say("let me"), *(Call("bash", {"do": name, "ask": ask}) for name in names)]


async def never(context: ToolContext) -> str:
    await asyncio.Event().wait()
    raise AssertionError


class OutageStore(FaultyStore):
    """Fails one Write that matches a condition, before or after it happens, or holds it until the gate opens."""

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


class LookupStore(OutageStore):
    """Signals each lookup of a message before its result arrives."""

    def __init__(self) -> None:
        super().__init__()
        self.looked_up = asyncio.Event()

    async def message(self, workspace_id: str, message_id: str) -> Message | None:
        message = await super().message(workspace_id, message_id)
        self.looked_up.set()
        await spin()
        return message


def make_message(number: int, role: Role, *parts: Part, run_id: str = "r") -> Message:
    return Message(f"m{number}", "s", role, parts, 0, 0, run_id)


class PlainMachine:
    """Real processes without a warden."""

    def __init__(self) -> None:
        self.plain = PlainProcesses()
        self.fails = ""

    async def processes(self, config: Config, workspace: str, files: FileThreads) -> Processes:
        if self.fails:
            raise ToolFailed(self.fails)
        return self.plain

    def stay_alive(self, until: float) -> None:
        pass

    async def close(self) -> None:
        pass


def is_alive(mark: Path) -> bool:
    pid = int(mark.read_text())
    return Path(f"/proc/{pid}").exists() and " Z " not in Path(f"/proc/{pid}/stat").read_text()


async def until_marked(mark: Path) -> None:
    await until(lambda: mark.exists() and mark.read_text().endswith("\n"))


async def until_watched(count: int = 1) -> None:
    """Wait until the starts of so many commands have returned: the commands themselves may be ahead of that."""
    await until(lambda: sum(task.get_name().startswith("command ") for task in asyncio.all_tasks()) == count)


#: A single process, so that the recorded pid is the one that is ended.
WAITS = "echo $$ > mark; exec sleep 1000"
