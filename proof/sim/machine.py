"""The rest of a simulated machine: a model that follows its prompt, and tool processes that are only pretended.

A prompt is a script: Steps divided by ";", each a row of acts. `say 3` says three words, `run CMD` has bash run it,
`agent 2` has a child agent say two words, `ask` puts a question to people, `busy 2` fails twice as an overloaded
provider does, `fail` fails for good, `full` finds the context full at first, `wait 5` is silent for so long. So a Run
does the same whoever looks at it. A summary says how many Steps are done, and a title is one.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import BinaryIO

from kedge.agent.model_choice import RunModel
from kedge.agent.runner import NoPrompts
from kedge.config.schema import Config
from kedge.core.records import Usage
from kedge.core.transcript import SUMMARY, Message, ToolCall
from kedge.errors import ContextFull, ModelFailed
from kedge.llm.base import Model, ModelEnd, ModelPart, ModelRequest, TextDelta
from kedge.tools.process_port import Process, Processes
from kedge.tools.tool_failed import ToolFailed

#: The longest pause between two words, and the longest a quick command takes. Seconds.
WORD_S, QUICK_S = 0.3, 0.5
#: A command that hangs does so for as long; longer than any plan, shorter than the patience of the judge. Seconds.
HANG_S = 90.0

#: What the small model calls every session.
TITLE = "a title"
#: What the configuration lets every Run do; `risky` is the one that people are asked about.
COMMANDS = ("quick", "hang", "stubborn", "leaver", "broken")


class SimModel:
    """One model for all Runs, and the chooser that gives it to them."""

    provider = "simulated"
    name = "simulated"

    def __init__(self, chance: random.Random, counted: Counter[str]) -> None:
        self._chance = chance
        self.counted = counted
        self._calls = 0
        #: Attempts at a Step of a prompt that was busy.
        self._attempts: Counter[tuple[str, int]] = Counter()
        #: Streams open at once for one prompt: more than one is a Run that was started twice.
        self.streaming: Counter[str] = Counter()
        self.faults: list[str] = []

    async def choose(self, config: Config, wanted: str) -> RunModel:
        model: Model = self
        return RunModel(model)

    choose_small = choose

    async def close(self) -> None: ...

    def forget_streams(self) -> None:
        """The process that read them was killed."""
        self.streaming.clear()

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[ModelPart]]:
        what, answer = self._answer(request)
        self.streaming[what] += 1
        if self.streaming[what] > 1:
            self.faults.append(f"two Steps of {what!r} at once")
        try:
            async with aclosing(answer) as parts:
                yield parts
        finally:
            self.streaming[what] -= 1

    def _answer(self, request: ModelRequest) -> tuple[str, AsyncGenerator[ModelPart, None]]:
        *before, last = request.messages
        if request.system == NoPrompts.title:
            return f"title of {last.text}", self._title()
        if last.text == NoPrompts.summary:
            script, step = _where(before)
            return script, self._summary(script, step)
        script, step = _where(request.messages)
        return script, self._parts(script, step)

    async def _title(self) -> AsyncGenerator[ModelPart, None]:
        self.counted["title"] += 1
        await self._pause(WORD_S)
        if self._chance.random() < 0.2:
            raise ModelFailed("no title")
        yield TextDelta(TITLE)
        await self._pause(WORD_S)
        yield ModelEnd("end_turn", (), Usage(0, 1))

    async def _summary(self, script: str, step: int) -> AsyncGenerator[ModelPart, None]:
        await self._pause(WORD_S)
        self._attempts[(f"summary of {script}", step)] += 1
        if self._attempts[(f"summary of {script}", step)] == 1 and self._chance.random() < 0.3:
            yield TextDelta("half of ")
            self.counted["overloaded provider"] += 1
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
                        self.counted["overloaded provider"] += 1
                        raise ModelFailed("overloaded", retryable=True)
                case "full":
                    self._attempts[(f"full {script}", step)] += 1
                    if self._attempts[(f"full {script}", step)] == 1:
                        self.counted["full context"] += 1
                        raise ContextFull("full")
                case "fail":
                    self.counted["failing provider"] += 1
                    raise ModelFailed("no")
                case "run":
                    calls.append(self._call("bash", {"command": words.pop(0)}))
                case "ask":
                    calls.append(self._call("question", {"questions": [{"question": "Which?"}]}))
                case "agent":
                    prompt = f"child of {script.partition(':')[0]}: say {words.pop(0)}"
                    calls.append(self._call("agent", {"prompt": prompt}))
                case other:
                    raise AssertionError(f"no act {other!r} in {script!r}")
        await self._pause(WORD_S)
        yield ModelEnd("tool_use" if calls else "end_turn", tuple(calls), Usage(1, said))

    def _call(self, name: str, given: dict[str, object]) -> ToolCall:
        self._calls += 1
        return ToolCall(f"call{self._calls}", name, json.dumps(given))

    async def _pause(self, longest_s: float) -> None:
        # Most are short, some are not: both orders of two things that race are seen.
        await asyncio.sleep(self._chance.random() ** 4 * longest_s)


def _where(messages: Sequence[Message]) -> tuple[str, int]:
    """The script of the last prompt, and how many Steps of it are done. (A command that was typed has no text.)"""
    last = max(index for index, message in enumerate(messages) if message.role == "user" and message.text)
    steps = sum(message.role == "assistant" for message in messages[last + 1 :])
    text = messages[last].text
    if summary := re.match(rf"{re.escape(SUMMARY)}done (\d+) ", text):
        return text.rpartition("\n")[2], steps + int(summary[1])
    return text, steps


class SimProcesses:
    """Tool processes that live in memory. It stands for the warden: all die with the server that started them."""

    environment: Mapping[str, str] = {"PATH": ""}

    def __init__(self, chance: random.Random, counted: Counter[str]) -> None:
        self._chance = chance
        self.counted = counted
        self._alive: dict[int, _Pretended] = {}
        self._last_pid = 0

    async def processes(self, config: Config, workspace: str) -> Processes:
        return self

    async def close(self) -> None:
        self.kill_all()

    def kill_all(self) -> None:
        for process in list(self._alive.values()):
            process.die(-9)

    @property
    def alive(self) -> list[str]:
        return [process.command for process in self._alive.values()]

    async def start(self, argv: tuple[str, ...], cwd: Path, *, stdin: BinaryIO | None = None) -> Process:
        command = argv[-1]
        if self._chance.random() < 0.5:  # else at once: a cancel in this very moment is too late
            await asyncio.sleep(self._chance.random() ** 3 * 0.05)
        kind = command.rpartition(" ")[2]
        if kind == "broken":
            raise ToolFailed("it cannot be started")
        self._last_pid += 1
        process = _Pretended(self._last_pid, command, self._alive)
        self._alive[process.pid] = process
        self.counted[f"{command} process"] += 1
        loop = asyncio.get_running_loop()
        lasts_s = self._chance.random() * QUICK_S if kind not in ("hang", "stubborn") else HANG_S
        loop.call_later(lasts_s, process.exit)
        return process


class _Pretended:
    def __init__(self, pid: int, command: str, alive: dict[int, _Pretended]) -> None:
        self.pid = pid
        self.command = command
        self._kind = command.rpartition(" ")[2]
        self._alive = alive
        self._is_read = False
        self._code: asyncio.Future[int] = asyncio.get_running_loop().create_future()

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

    def exit(self) -> None:
        """By itself. One kind leaves a child behind, which holds nothing but has to be ended."""
        if not self._code.done():
            self._code.set_result(0)
        if self._kind != "leaver":
            self._alive.pop(self.pid, None)

    def die(self, code: int) -> None:
        if not self._code.done():
            self._code.set_result(code)
        self._alive.pop(self.pid, None)
