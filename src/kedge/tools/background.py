"""Commands of a Run: read, waited for and ended here, in the foreground of a call or in the background.

Background commands keep running while the agent does other things. They belong to a Run and end with it, except for
kept ones, which belong to the session.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from kedge.core.kept_commands import KeptCommand
from kedge.tools.head_tail import HeadTail, RecentOutput
from kedge.tools.process_port import Process
from kedge.tools.tool_failed import ToolFailed
from kedge.waiting import wait_uncancelled

#: Background commands of a Run. An agent that starts more is in a loop. Items.
BACKGROUND_MAX = 20
#: Foreground commands of a Run; others wait for a slot. Each takes processes, and 10 ms of the server's time in each
#: second if it prints without end. Items.
FOREGROUND_MAX = 20
#: Between TERM and KILL. Seconds.
GRACE_S = 2.0
#: For output that is still in the pipe when the command has exited. Its children may hold the pipe open. Seconds.
DRAIN_S = 0.2
#: A deadline that fires later than this was delayed by a pause of the server (SIGSTOP). The command may have ended
#: meanwhile, so its messages are read first, for at most as long. Seconds.
LATE_S = 1.0
#: Between two reports of progress: often enough to look live. Seconds.
PROGRESS_S = 0.1
#: The same for a kept command, which may print for days. Seconds.
KEPT_PROGRESS_S = 0.5
#: Limits of one report of progress. Lines and characters.
PROGRESS_LINES_MAX = 20
PROGRESS_CHARS_MAX = 4000


class RunningCommand:
    """One command. Its output is read as it comes, so that it never blocks."""

    def __init__(self, process: Process, command: str, progress: Callable[[str], None] | None = None) -> None:
        self.process = process
        self.command = command
        #: Output since the last `take`.
        self.output = HeadTail()
        #: The recent output of a kept command, for users: the agent does not take from it.
        self.recent: RecentOutput | None = None
        self.exit_code: int | None = None
        #: Time of the event loop. Seconds.
        self.ended_at: float | None = None
        #: Number of its processes that still ran when it exited; they were ended.
        self.strays = 0
        #: Pids of its processes that could not be ended.
        self.survivors: tuple[int, ...] = ()
        self._progress = progress
        self._progress_timer: asyncio.TimerHandle | None = None
        self._withholding: asyncio.Future[str] | None = None
        self._changed = asyncio.Event()
        self._task = asyncio.create_task(self._watch(), name=f"command {process.pid}")

    @property
    def has_ended(self) -> bool:
        return self._task.done()

    @property
    def is_gone(self) -> bool:
        """The command and all its processes have ended. False if the connection to them was lost."""
        return self._task.done() and not self._task.cancelled() and self._task.exception() is None

    async def wait(self, timeout_s: float) -> bool:
        """Return whether it has ended by then."""
        loop = asyncio.get_running_loop()
        late = loop.time() + timeout_s + LATE_S
        done, _ = await asyncio.wait({self._task}, timeout=timeout_s)
        if not done and loop.time() > late:
            done, _ = await asyncio.wait({self._task}, timeout=LATE_S)
        if done:
            self._task.result()  # raises if we or the warden failed
        return bool(done)

    async def wait_for_output(self, timeout_s: float) -> None:
        """Wait until there is new output, or the command has ended."""
        if self.output.bytes_total or self.has_ended:
            return
        self._changed.clear()
        changed = asyncio.create_task(self._changed.wait())
        try:
            await asyncio.wait({changed, self._task}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            changed.cancel()

    def take(self) -> HeadTail:
        """Return the output since the last call."""
        output, self.output = self.output, HeadTail()
        return output

    def keep(self, progress: Callable[[str], None]) -> None:
        """Collect the recent output from now on, and report it to `progress`."""
        self.stop_progress()
        self.recent = RecentOutput(self.output)
        self._progress = progress

    async def wait_ended(self) -> None:
        """Wait for the end, without its error."""
        await asyncio.wait({self._task})

    def stop_progress(self) -> None:
        self._progress = None
        if self._progress_timer is not None:
            self._progress_timer.cancel()
            self._progress_timer = None

    async def end(self, grace_s: float) -> tuple[int, ...]:
        """End all its processes. Return the pids that survive, normally none."""
        self.survivors = await self.process.end(grace_s)
        await self._withhold()
        # Without the tree its output ends, too. Survivors may hold it open for ever.
        await asyncio.wait({self._task}, timeout=2 * DRAIN_S)
        self._task.cancel()
        await asyncio.wait({self._task})
        self.stop_progress()
        return self.survivors

    async def end_shielded(self, grace_s: float) -> tuple[int, ...]:
        """Like `end`, but completes even if the current task is cancelled, however often."""
        ending = asyncio.create_task(self.end(grace_s))
        await wait_uncancelled([ending])
        return ending.result()

    async def _watch(self) -> None:
        reader = asyncio.create_task(self._read())
        try:
            self.exit_code = await self.process.wait()
            await asyncio.wait({reader}, timeout=DRAIN_S)
            self.strays = await self.process.alive()
            if self.strays:
                self.survivors = await self.process.end(GRACE_S)
                await asyncio.wait({reader}, timeout=DRAIN_S)
            await self._withhold()
        finally:
            reader.cancel()
            await asyncio.wait({reader})
            self.ended_at = asyncio.get_running_loop().time()
            self.stop_progress()

    async def _withhold(self) -> None:
        """Check its files once, after the end of all its processes. Completes even if the current task is cancelled."""
        if self._withholding is None:
            self._withholding = asyncio.ensure_future(self.process.withhold())
            self._withholding.add_done_callback(self._add_note)
        await wait_uncancelled([self._withholding])

    def _add_note(self, withholding: asyncio.Future[str]) -> None:
        if not withholding.cancelled() and withholding.exception() is None and (note := withholding.result()):
            self._add(("\n" * bool(self.output.bytes_total) + f"{note}\n").encode())

    async def _read(self) -> None:
        while piece := await self.process.read():
            self._add(piece)
            if self._progress is not None and self._progress_timer is None:
                delay_s = PROGRESS_S if self.recent is None else KEPT_PROGRESS_S
                self._progress_timer = asyncio.get_running_loop().call_later(delay_s, self._report_progress)
            await asyncio.sleep(0)  # a command that prints without end must not starve other tasks

    def _add(self, piece: bytes) -> None:
        self.output.add(piece)
        self._changed.set()
        if self.recent is not None:
            self.recent.add(piece)

    def _report_progress(self) -> None:
        self._progress_timer = None
        if self._progress is not None:
            output = self.output if self.recent is None else self.recent
            self._progress(output.last_lines(PROGRESS_LINES_MAX, PROGRESS_CHARS_MAX))


class BackgroundCommands:
    """The background commands of a Run."""

    def __init__(self) -> None:
        self._commands: dict[str, RunningCommand] = {}
        self._count = 0
        #: The slot of a call while it waits for its command.
        self.foreground = asyncio.Semaphore(FOREGROUND_MAX)
        #: Pids of this Run's processes that could not be ended.
        self.survivors: set[int] = set()

    def check_room(self) -> None:
        if sum(not running.has_ended for running in self._commands.values()) >= BACKGROUND_MAX:
            raise ToolFailed(f"{BACKGROUND_MAX} commands already run in the background; end one with the jobs tool")

    def add(self, running: RunningCommand) -> str:
        """Take over a command and return its id. ToolFailed if there are too many; the caller then keeps it."""
        self.check_room()
        ended = [id_ for id_, other in self._commands.items() if other.has_ended]
        for id_ in ended[: max(len(self._commands) + 1 - BACKGROUND_MAX, 0)]:
            del self._commands[id_]
        self._count += 1
        running.stop_progress()
        self._commands[f"b{self._count}"] = running
        return f"b{self._count}"

    def list(self) -> dict[str, RunningCommand]:
        return dict(self._commands)

    def get(self, id_: str) -> RunningCommand:
        running = self._commands.get(id_)
        if running is None:
            known = ", ".join(self._commands) or "none"
            raise ToolFailed(f"background command {id_!r} not found; commands of this run: {known}")
        return running

    def add_survivors(self, pids: tuple[int, ...]) -> None:
        """Record processes that could not be ended. The Run reports them when it ends."""
        self.survivors.update(pids)

    async def end_one(self, id_: str, grace_s: float = GRACE_S) -> RunningCommand:
        running = self.get(id_)
        if not running.is_gone:
            await running.end_shielded(grace_s)
        self.add_survivors(running.survivors)
        return running

    async def end_all(self, grace_s: float = GRACE_S) -> tuple[int, ...]:
        """End all commands at the end of the Run. Return the pids that survive, of earlier calls too."""
        await asyncio.gather(*(self.end_one(id_, grace_s) for id_ in self._commands))
        return tuple(sorted(self.survivors))


class KeptCommands(Protocol):
    """The kept commands of a session, for one call. ToolFailed where a command is missing or cannot be kept."""

    def check_room(self) -> None: ...

    async def keep(self, running: RunningCommand) -> str:
        """Take over a command and return its id. It is durable that it runs. If this fails, the caller keeps it."""
        ...

    def list(self) -> tuple[KeptCommand, ...]: ...

    def get(self, id_: str) -> RunningCommand: ...

    async def end_one(self, id_: str) -> RunningCommand: ...


class NoKeptCommands:
    """A session that cannot keep commands."""

    def check_room(self) -> None:
        raise ToolFailed("commands cannot be kept here")

    async def keep(self, running: RunningCommand) -> str:
        raise ToolFailed("commands cannot be kept here")

    def list(self) -> tuple[KeptCommand, ...]:
        return ()

    def get(self, id_: str) -> RunningCommand:
        raise ToolFailed(f"kept command {id_!r} not found")

    async def end_one(self, id_: str) -> RunningCommand:
        return self.get(id_)
