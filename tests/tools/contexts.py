"""A context for tool calls in tests: real files, real processes, and a host that records its calls."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from kedge.core.approvals import Confinement
from kedge.core.modes import Mode
from kedge.core.records import Todo
from kedge.tools.background import BackgroundCommands
from kedge.tools.base import Prepared, Question, Tool, ToolContext, ToolFailed, ToolOutput
from kedge.tools.file_threads import FileThreads
from kedge.tools.known_files import KnownFiles
from kedge.tools.process_port import PipedProcess, Process
from kedge.tools.tool_threads import ToolThreads

#: One read of a process's output, in bytes: a pipe's usual size.
READ_BYTES = 65_536


class PlainProcess:
    """A process in a group of its own, so that its children end with it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    async def read(self) -> bytes:
        assert self._process.stdout is not None
        return await self._process.stdout.read(READ_BYTES)

    async def read_stderr(self) -> bytes:
        return b"" if self._process.stderr is None else await self._process.stderr.read(READ_BYTES)

    async def write(self, data: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(data)
        await self._process.stdin.drain()

    def close_input(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()

    async def wait(self) -> int:
        return await self._process.wait()

    async def end(self, grace_s: float) -> tuple[int, ...]:
        self._signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(grace_s):
                await self._process.wait()
        except TimeoutError:
            pass
        finally:
            self._signal(signal.SIGKILL)
        await self._process.wait()
        return ()

    async def alive(self) -> int:
        return 0 if self._process.returncode is not None else 1

    async def withhold(self) -> str:
        return ""

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)


class PlainProcesses:
    """Starts real processes, without a warden, and remembers what it started."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self.environment: Mapping[str, str] = environment or {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}
        self.started: list[tuple[str, ...]] = []
        self.confinements: list[Confinement] = []
        self.can_confine = True

    async def start(
        self,
        argv: tuple[str, ...],
        cwd: Path,
        *,
        stdin: BinaryIO | None = None,
        confinement: Confinement = "configured",
    ) -> Process:
        self.started.append(argv)
        self.confinements.append(confinement)
        pipe, null = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
        try:
            process = await asyncio.create_subprocess_exec(
                *argv,
                cwd=cwd,
                env=dict(self.environment),
                stdin=null if stdin is None else stdin,
                stdout=pipe,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise ToolFailed(f"{argv[0]} cannot be started: {error.strerror}") from None
        return PlainProcess(process)

    async def start_piped(
        self,
        argv: tuple[str, ...],
        cwd: Path,
        *,
        environment: Mapping[str, str] | None = None,
        separate_stderr: bool = False,
        confinement: Confinement = "configured",
    ) -> PipedProcess:
        self.confinements.append(confinement)
        pipe, env = asyncio.subprocess.PIPE, {**self.environment, **(environment or {})}
        return PlainProcess(
            await asyncio.create_subprocess_exec(
                *argv,
                cwd=cwd,
                env=env,
                stdin=pipe,
                stdout=pipe,
                stderr=pipe if separate_stderr else asyncio.subprocess.STDOUT,
                start_new_session=True,
            )
        )


@dataclass
class RecordingHost:
    """Answers from what the test laid out, and keeps what it was given."""

    #: (path, before, after) in the order they came.
    versions: list[tuple[Path, bytes | None, str]] = field(default_factory=list)
    todos: list[tuple[Todo, ...]] = field(default_factory=list)
    asked: list[tuple[Question, ...]] = field(default_factory=list)
    agents: list[tuple[str, str]] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    #: The answers of the user; None: the user declines.
    answers: list[str] | None = None
    agent_answer: str = "done"
    cut_off: Callable[[], ToolOutput] | None = None
    confinement: Confinement = "configured"
    was_asked: bool = False

    async def keep_version(self, path: Path, before: bytes | None, after: str) -> None:
        self.versions.append((path, before, after))

    async def leave_plan_mode(self, mode: Mode) -> Mode:
        return mode

    async def put_todos(self, todos: tuple[Todo, ...]) -> None:
        self.todos.append(todos)

    async def ask_user(self, questions: tuple[Question, ...]) -> list[str] | None:
        self.asked.append(questions)
        return self.answers

    async def run_agent(self, prompt: str, title: str, name: str = "") -> str:
        self.agents.append((prompt, title))
        return self.agent_answer

    def if_cut_off(self, output: Callable[[], ToolOutput]) -> None:
        self.cut_off = output

    def progress(self, text: str) -> None:
        self.lines.append(text)


def make_context(
    root: Path,
    *,
    host: RecordingHost | None = None,
    processes: PlainProcesses | None = None,
    background: BackgroundCommands | None = None,
    known_files: KnownFiles | None = None,
    todos: tuple[Todo, ...] = (),
    is_hidden: Callable[[str], bool] = lambda subject: False,
) -> ToolContext:
    return ToolContext(
        root=root.resolve(),
        session_id="session-1",
        run_id="run-1",
        call_id="call-1",
        todos=todos,
        known_files=known_files or KnownFiles(),
        background=background or BackgroundCommands(),
        threads=ToolThreads(FileThreads(f"The directory {root}")),
        processes=processes or PlainProcesses(),
        host=host or RecordingHost(),
        is_hidden=is_hidden,
    )


async def prepare(tool: Tool, context: ToolContext, /, **arguments: Any) -> Prepared:
    """As the engine does it: the arguments as JSON values, turned into the tool's own input."""
    return await tool.prepare(msgspec.convert(arguments, tool.input), context)


async def call(tool: Tool, context: ToolContext, /, **arguments: Any) -> ToolOutput:
    """Prepared and run at once, as if it had been allowed."""
    return await (await prepare(tool, context, **arguments)).run()
