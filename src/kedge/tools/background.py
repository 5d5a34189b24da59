"""Commands at work: each is read, waited for and ended here, in the foreground of a call or in the background.

Those in the background go on while the agent does other things. They belong to a Run and end with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from kedge.tools.head_tail import HeadTail
from kedge.tools.processes import Process, ToolFailed
from kedge.waiting import wait_uncancelled

#: Commands a Run may have in the background at once. More is a loop, not work.
BACKGROUND_MAX = 20
#: Commands of a Run that are waited for at once; the others wait for their turn. Each takes processes, and 10 ms of the
#: server's time in each second if it prints without end. Items.
FOREGROUND_MAX = 20
#: Between TERM and KILL.
GRACE_S = 2.0
#: For output that is still in the pipe when the command itself has exited. Its children may hold the pipe for ever.
DRAIN_S = 0.2
#: Between two looks at the output for people: often enough to feel live.
PROGRESS_S = 0.1
#: Of what people see of a command at work.
PROGRESS_LINES_MAX = 20
PROGRESS_CHARS_MAX = 4000


class RunningCommand:
    """One command: its output is taken in as it comes, so that it never waits for us."""

    def __init__(self, process: Process, command: str, progress: Callable[[str], None] | None = None) -> None:
        self.process = process
        self.command = command
        #: What it wrote since it was last taken.
        self.output = HeadTail()
        self.exit_code: int | None = None
        #: Processes it had left running when it exited itself; they were ended.
        self.strays = 0
        #: Pids of its tree that could not be ended.
        self.left: tuple[int, ...] = ()
        self._progress = progress
        self._progress_timer: asyncio.TimerHandle | None = None
        self._changed = asyncio.Event()
        self._life = asyncio.create_task(self._live(), name=f"command {process.pid}")

    @property
    def is_over(self) -> bool:
        return self._life.done()

    @property
    def is_gone(self) -> bool:
        """It is over with all that it has started; not so if it is over because nobody can tell any more."""
        return self._life.done() and not self._life.cancelled() and self._life.exception() is None

    async def wait(self, timeout_s: float) -> bool:
        """Whether it is over by then."""
        done, _ = await asyncio.wait({self._life}, timeout=timeout_s)
        if done:
            self._life.result()  # it is a failure of ours or of the warden if this raises
        return bool(done)

    async def wait_for_news(self, timeout_s: float) -> None:
        """Until there is output that was not taken, or it is over."""
        if self.output.bytes_total or self.is_over:
            return
        self._changed.clear()
        news = asyncio.create_task(self._changed.wait())
        try:
            await asyncio.wait({news, self._life}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            news.cancel()

    def take(self) -> HeadTail:
        """What it wrote since the last time."""
        taken, self.output = self.output, HeadTail()
        return taken

    def without_progress(self) -> None:
        """Nobody looks at the call any more."""
        self._progress = None
        if self._progress_timer is not None:
            self._progress_timer.cancel()
            self._progress_timer = None

    async def end(self, grace_s: float) -> tuple[int, ...]:
        """End it with all it started. The pids that are left, normally none."""
        self.left = await self.process.end(grace_s)
        # With the tree gone its output ends as well; what is left of it may never let go.
        await asyncio.wait({self._life}, timeout=2 * DRAIN_S)
        self._life.cancel()
        await asyncio.wait({self._life})
        self.without_progress()
        return self.left

    async def end_surely(self, grace_s: float) -> tuple[int, ...]:
        """Like `end`, when our own task is being cancelled: it goes on to the end however often that is repeated."""
        ending = asyncio.create_task(self.end(grace_s))
        await wait_uncancelled([ending])
        return ending.result()

    async def _live(self) -> None:
        reader = asyncio.create_task(self._read())
        try:
            self.exit_code = await self.process.wait()
            await asyncio.wait({reader}, timeout=DRAIN_S)
            self.strays = await self.process.alive()
            if self.strays:
                self.left = await self.process.end(GRACE_S)
                await asyncio.wait({reader}, timeout=DRAIN_S)
        finally:
            reader.cancel()
            await asyncio.wait({reader})
            self.without_progress()

    async def _read(self) -> None:
        while piece := await self.process.read():
            self.output.add(piece)
            self._changed.set()
            if self._progress is not None and self._progress_timer is None:
                self._progress_timer = asyncio.get_running_loop().call_later(PROGRESS_S, self._show)
            await asyncio.sleep(0)  # a command that writes without end is not the only one to be served

    def _show(self) -> None:
        self._progress_timer = None
        if self._progress is not None:
            self._progress(self.output.last_lines(PROGRESS_LINES_MAX, PROGRESS_CHARS_MAX))


class BackgroundCommands:
    """The commands a Run has in the background."""

    def __init__(self) -> None:
        self._commands: dict[str, RunningCommand] = {}
        self._count = 0
        #: Held by a call while it waits for its command.
        self.foreground = asyncio.Semaphore(FOREGROUND_MAX)
        #: Pids of this Run's processes that could not be ended, whoever tried.
        self.left_pids: set[int] = set()

    def check_room(self) -> None:
        if sum(not running.is_over for running in self._commands.values()) >= BACKGROUND_MAX:
            raise ToolFailed(f"{BACKGROUND_MAX} commands run in the background already; end one with the jobs tool")

    def add(self, running: RunningCommand) -> str:
        """Its id. ToolFailed when there are too many; then it is still the caller's."""
        self.check_room()
        over = [id_ for id_, other in self._commands.items() if other.is_over]
        for id_ in over[: max(len(self._commands) + 1 - BACKGROUND_MAX, 0)]:
            del self._commands[id_]  # the oldest of those that are over make room
        self._count += 1
        running.without_progress()
        self._commands[f"b{self._count}"] = running
        return f"b{self._count}"

    def list(self) -> dict[str, RunningCommand]:
        return dict(self._commands)

    def get(self, id_: str) -> RunningCommand:
        running = self._commands.get(id_)
        if running is None:
            known = ", ".join(self._commands) or "there are none"
            raise ToolFailed(f"no background command {id_!r}; those of this run: {known}")
        return running

    def left(self, pids: tuple[int, ...]) -> None:
        """Processes that could not be ended: the Run says so when it ends."""
        self.left_pids.update(pids)

    async def end_one(self, id_: str, grace_s: float = GRACE_S) -> RunningCommand:
        running = self.get(id_)
        if not running.is_gone:
            await running.end_surely(grace_s)
        self.left(running.left)
        return running

    async def end_all(self, grace_s: float = GRACE_S) -> tuple[int, ...]:
        """All at once, at the end of the Run. The pids that are left, also of earlier calls."""
        await asyncio.gather(*(self.end_one(id_, grace_s) for id_ in self._commands))
        return tuple(sorted(self.left_pids))
