"""A simulated model that follows its prompt, and simulated tool processes.

A prompt is a script: Steps separated by ";", each a list of instructions. `say 3` streams three words, `run CMD` calls
bash, `agent 2` starts a child agent that streams two words, `ask` asks the user a question, `busy 2` fails twice like
an overloaded provider, `fail` fails permanently, `full` reports a full context once, `wait 5` pauses for five seconds.
A summary contains the number of completed Steps.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import re
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import BinaryIO

from msgspec import Struct

from kedge.agent.model_choice import RunModel
from kedge.agent.system_prompt import NoPrompts
from kedge.config.schema import Config
from kedge.core.approvals import Confinement
from kedge.core.records import Usage
from kedge.core.transcript import SUMMARY, Message, ToolCall
from kedge.errors import ContextFull, ModelFailed
from kedge.llm.base import Model, ModelEnd, ModelPart, ModelRequest, TextDelta
from kedge.tools.file_threads import FileThreads
from kedge.tools.process_port import PipedProcess, Process, Processes
from kedge.tools.tool_failed import ToolFailed
from proof.sim.loop import SimProcess, current_process, outside

#: The longest pause between two words, and the longest a quick command takes. Seconds.
WORD_S, QUICK_S = 0.3, 0.5
#: The duration of a command that hangs: longer than any plan, shorter than SETTLE_S. Seconds.
HANG_S = 90.0

#: The title that the small model gives every session.
TITLE = "a title"
#: The commands that the configuration allows; `risky` needs an approval.
COMMANDS = ("quick", "hang", "stubborn", "leaver", "broken")


class SimModel:
    """One model for all Runs, and its own chooser."""

    provider = "simulated"
    name = "simulated"

    def __init__(self, rng: random.Random, counts: Counter[str]) -> None:
        self._rng = rng
        self.counts = counts
        self._calls = 0
        #: Attempts of a Step, by its script.
        self._attempts: Counter[tuple[str, int]] = Counter()
        #: Open streams of one prompt in one process: more than one means that a Run was started twice.
        self.streaming: Counter[tuple[SimProcess | None, str]] = Counter()
        self.faults: list[str] = []
        #: The messages that rewinds removed.
        self.cut: Mapping[str, Message] = {}

    async def choose(self, config: Config, wanted: str) -> RunModel:
        model: Model = self
        return RunModel(model)

    choose_small = choose

    async def close(self) -> None: ...

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[ModelPart]]:
        for message in request.messages:
            if message.id.removesuffix("-results") in self.cut:
                self.faults.append(f"a model received {message.id}, which a rewind had removed")
        name, answer = self._answer(request)
        key = current_process(), name
        self.streaming[key] += 1
        if self.streaming[key] > 1:
            self.faults.append(f"two Steps of {name!r} at once")
        try:
            async with aclosing(answer) as parts:
                yield parts
        finally:
            self.streaming[key] -= 1

    def _answer(self, request: ModelRequest) -> tuple[str, AsyncGenerator[ModelPart, None]]:
        if not request.messages:
            # A process that wakes up reads what another one has written since: its prompt may be cancelled.
            if (process := current_process()) is None or not process.was_paused:
                self.faults.append("a model received no messages")
            raise ModelFailed("no messages")
        *before, last = request.messages
        if request.system == NoPrompts.title:
            return f"title of {last.text}", self._title()
        if last.text == NoPrompts.summary:
            script, step = _script_and_step(before)
            return script, self._summary(script, step)
        script, step = _script_and_step(request.messages)
        return script, self._parts(script, step)

    async def _title(self) -> AsyncGenerator[ModelPart, None]:
        self.counts["title"] += 1
        await self._pause(WORD_S)
        if self._rng.random() < 0.2:
            raise ModelFailed("no title")
        yield TextDelta(TITLE)
        await self._pause(WORD_S)
        yield ModelEnd("end_turn", (), Usage(0, 1))

    async def _summary(self, script: str, step: int) -> AsyncGenerator[ModelPart, None]:
        await self._pause(WORD_S)
        self._attempts[(f"summary of {script}", step)] += 1
        if self._attempts[(f"summary of {script}", step)] == 1 and self._rng.random() < 0.3:
            yield TextDelta("half of ")
            self.counts["overloaded provider"] += 1
            raise ModelFailed("overloaded", retryable=True)
        yield TextDelta(f"done {step} ")
        await self._pause(WORD_S)
        yield ModelEnd("end_turn", (), Usage(1, 2))

    async def _parts(self, script: str, step: int) -> AsyncGenerator[ModelPart, None]:
        steps = script.partition(":")[2].split(";")
        words = (steps[step] if step < len(steps) else "say 1").split()
        calls: list[ToolCall] = []
        said = 0
        while words:
            match words.pop(0):
                case "say":
                    for _ in range(int(words.pop(0))):
                        await self._pause(WORD_S)
                        said += 1
                        yield TextDelta(f"w{step}.{said} ")
                case "wait":
                    await asyncio.sleep(float(words.pop(0)))
                case "busy":
                    self._attempts[(script, step)] += 1
                    if self._attempts[(script, step)] <= int(words.pop(0)):
                        self.counts["overloaded provider"] += 1
                        raise ModelFailed("overloaded", retryable=True)
                case "full":
                    self._attempts[(f"full {script}", step)] += 1
                    if self._attempts[(f"full {script}", step)] == 1:
                        self.counts["full context"] += 1
                        raise ContextFull("full")
                case "fail":
                    self.counts["failing provider"] += 1
                    raise ModelFailed("no")
                case "run":
                    calls.append(self._call("bash", {"command": words.pop(0)}))
                case "ask":
                    calls.append(self._call("question", {"questions": [{"question": "Which?"}]}))
                case "agent":
                    prompt = f"child of {script.partition(':')[0]}: say {words.pop(0)}"
                    calls.append(self._call("agent", {"prompt": prompt}))
                case other:
                    raise AssertionError(f"unknown instruction {other!r} in {script!r}")
        await self._pause(WORD_S)
        yield ModelEnd("tool_use" if calls else "end_turn", tuple(calls), Usage(1, said))

    def _call(self, name: str, arguments: dict[str, object]) -> ToolCall:
        self._calls += 1
        return ToolCall(f"call{self._calls}", name, json.dumps(arguments))

    async def _pause(self, longest_s: float) -> None:
        # Most pauses are short, some long: both orders of a race occur.
        await asyncio.sleep(self._rng.random() ** 4 * longest_s)


def _script_and_step(messages: Sequence[Message]) -> tuple[str, int]:
    """Return the script of the last prompt, and how many Steps of it are done. (A user's command has no text.)"""
    last = max(index for index, message in enumerate(messages) if message.role == "user" and message.text)
    steps = sum(message.role == "assistant" for message in messages[last + 1 :])
    text = messages[last].text
    if summary := re.match(rf"{re.escape(SUMMARY)}done (\d+) ", text):
        return text.rpartition("\n")[2], steps + int(summary[1])
    return text, steps


class ProcessStart(Struct, frozen=True):
    at: float
    #: The Run and the tool call that started it; no call: a command of the user.
    run_id: str
    call_id: str
    command: str
    confinement: Confinement


class SimProcesses:
    """Tool processes in memory. They die with the server that started them, or when it is too late for it to keep them
    alive, as with the warden."""

    environment: Mapping[str, str] = {"PATH": ""}
    can_confine = True

    def __init__(self, rng: random.Random, counts: Counter[str]) -> None:
        self._rng = rng
        self.counts = counts
        self._alive: dict[int, _SimProcess] = {}
        self._last_pid = 0
        self.starts: list[ProcessStart] = []
        #: The duration of a command that hangs. Seconds.
        self.hang_s = HANG_S
        #: Converts CLOCK_BOOTTIME to the time of the loop.
        self.loop_time: Callable[[float], float] = lambda boot_time: boot_time
        #: Called with each command that is started.
        self.on_start: Callable[[str], None] = lambda command: None
        self._alive_until = math.inf

    async def processes(self, config: Config, workspace: str, files: FileThreads) -> Processes:
        return self

    def stay_alive(self, until: float) -> None:
        # The keeper is a process of its own, which continues while the server is paused.
        self._alive_until = self.loop_time(until)
        asyncio.get_running_loop().call_at(self._alive_until, self._end_late, context=outside())

    def _end_late(self) -> None:
        if self.is_late:
            self.kill_all()

    @property
    def is_late(self) -> bool:
        return asyncio.get_running_loop().time() >= self._alive_until

    def start_again(self) -> None:
        """Replace the keeper by another one, for another server."""
        self.kill_all()
        self._alive_until = math.inf

    async def close(self) -> None:
        self.kill_all()

    def kill_all(self) -> None:
        for process in list(self._alive.values()):
            process.die(-9)

    @property
    def alive(self) -> list[str]:
        return [process.command for process in self._alive.values()]

    def started_by(self, run_id: str, until: float) -> list[str]:
        """Return the commands of a Run that were started until then and are alive."""
        own = [process for process in self._alive.values() if process.run_id == run_id]
        return [process.command for process in own if process.started_at <= until]

    async def start(
        self,
        argv: tuple[str, ...],
        cwd: Path,
        *,
        stdin: BinaryIO | None = None,
        confinement: Confinement = "configured",
    ) -> Process:
        command = argv[-1]
        self.starts.append(_start_of(command, confinement))
        if self._rng.random() < 0.5:  # else immediately: a cancel at the same time is too late
            await asyncio.sleep(self._rng.random() ** 3 * 0.05)
        kind = command.rpartition(" ")[2]
        if kind == "broken" or self.is_late:
            raise ToolFailed("it cannot be started")
        self.on_start(command)
        self._last_pid += 1
        process = _SimProcess(self._last_pid, command, self._alive)
        self._alive[process.pid] = process
        self.counts[f"{command} process"] += 1
        loop = asyncio.get_running_loop()
        lasts_s = self._rng.random() * QUICK_S if kind not in ("hang", "stubborn") else self.hang_s
        loop.call_later(lasts_s, process.exit, context=outside())
        return process

    async def start_piped(
        self,
        argv: tuple[str, ...],
        cwd: Path,
        *,
        environment: Mapping[str, str] | None = None,
        separate_stderr: bool = False,
        confinement: Confinement = "configured",
    ) -> PipedProcess:
        raise ToolFailed("the simulator has no processes with a piped input")


def _start_of(command: str, confinement: Confinement) -> ProcessStart:
    """Return the start of a process. The name of the call's task has its ids: "call C of R"."""
    current = asyncio.current_task()
    words = (current.get_name() if current else "").split()
    call_id, run_id = (words[1], words[3]) if words[:1] == ["call"] and len(words) == 4 else ("", "")
    return ProcessStart(asyncio.get_running_loop().time(), run_id, call_id, command, confinement)


class _SimProcess:
    def __init__(self, pid: int, command: str, alive: dict[int, _SimProcess]) -> None:
        self.pid = pid
        self.command = command
        self._kind = command.rpartition(" ")[2]
        self._alive = alive
        self._is_read = False
        loop = asyncio.get_running_loop()
        self._code: asyncio.Future[int] = loop.create_future()
        self.started_at = loop.time()
        #: The Run whose tool call started it, from the name of the call's task.
        self.run_id = current.get_name().rpartition(" ")[2] if (current := asyncio.current_task()) else ""

    async def read(self) -> bytes:
        if not self._is_read:
            self._is_read = True
            return f"{self.command}\n".encode()
        await asyncio.wait({self._code})
        return b""

    async def wait(self) -> int:
        return await asyncio.shield(self._code)

    async def end(self, grace_s: float) -> tuple[int, ...]:
        if self._kind == "stubborn":
            await asyncio.wait({self._code}, timeout=grace_s)
        await asyncio.sleep(0.01)
        self.die(-15)
        return ()

    async def alive(self) -> int:
        return int(self.pid in self._alive)

    async def withhold(self) -> str:
        return ""

    def exit(self) -> None:
        """Exit normally. A `leaver` leaves a child process running, which must be ended."""
        if not self._code.done():
            self._code.set_result(0)
        if self._kind != "leaver":
            self._alive.pop(self.pid, None)

    def die(self, code: int) -> None:
        if not self._code.done():
            self._code.set_result(code)
        self._alive.pop(self.pid, None)
