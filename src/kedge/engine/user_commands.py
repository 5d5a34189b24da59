"""A command that a person has run in the workspace (`!ls` in a prompt): no Run, no model; part of the transcript."""

from __future__ import annotations

import asyncio
from typing import Any

from msgspec import Struct

from kedge.core.records import SessionRecord
from kedge.core.transcript import USER_COMMAND_S_MAX, Message, ShellCommand
from kedge.engine.door import Door
from kedge.engine.lane_state import Draught
from kedge.engine.ports import Clock, Ids, Machine
from kedge.engine.workspaces import Workspace, Workspaces
from kedge.errors import Invalid, ShuttingDown
from kedge.tools.background import GRACE_S, RunningCommand
from kedge.tools.base import OUTPUT_CHARS_MAX, ToolFailed

#: Like a shell's own code for a command that was killed because its time was over.
EXIT_TIMEOUT = 124


class Done(Struct, frozen=True):
    exit_code: int
    output: str


class Shell:
    def __init__(self, door: Door, workspaces: Workspaces, machine: Machine, clock: Clock, ids: Ids) -> None:
        self._door = door
        self._workspaces = workspaces
        self._machine = machine
        self._clock = clock
        self._ids = ids
        #: In the order in which they began.
        self._at_work: dict[asyncio.Task[Any], None] = {}
        self._closing = False

    async def run(self, workspace: Workspace, session_id: str, command: str) -> Done:
        """Whoever asked has the right to: no approval. Ends with the request that asked for it, and with the server."""
        if self._closing:
            raise ShuttingDown("The server is shutting down and takes no new work; try again in a moment.")
        with self._workspaces.in_use(workspace):
            lane = await self._workspaces.lane(workspace, session_id)
            work = asyncio.get_running_loop().create_task(self._run(workspace, command))
            self._at_work[work] = None
            try:
                done = await work
            except ToolFailed as failed:
                raise Invalid(str(failed)) from None
            except asyncio.CancelledError:
                if self._closing and not _is_cancelled():
                    raise ShuttingDown("The server is shutting down; the command was ended.") from None
                raise
            finally:
                self._at_work.pop(work, None)
            now = self._clock.now_ms()
            part = ShellCommand(command, done.output, done.exit_code)
            message = Message(self._ids.new("m"), session_id, "user", (part,), now, now)

            def put(draught: Draught, session: SessionRecord) -> SessionRecord:
                draught.put("created", message)
                return session

            await self._door.put(lane, put)
            return done

    async def _run(self, workspace: Workspace, command: str) -> Done:
        processes = await self._machine.processes(workspace.config, workspace.record.path)
        running = RunningCommand(await processes.start(("/bin/sh", "-c", command), workspace.root), command)
        try:
            is_over = await running.wait(USER_COMMAND_S_MAX)
        finally:
            if not running.is_gone:
                await running.end_shielded(GRACE_S)
        output = running.take().excerpt(OUTPUT_CHARS_MAX).text
        if not is_over:
            return Done(EXIT_TIMEOUT, f"{output}\n(ended after {USER_COMMAND_S_MAX:g} s)")
        return Done(-1 if running.exit_code is None else running.exit_code, output)

    async def close(self) -> None:
        self._closing = True
        for work in self._at_work:
            work.cancel()
        if self._at_work:
            await asyncio.wait(self._at_work)


def _is_cancelled() -> bool:
    """Whether our own caller went away, and not only what we wait for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
