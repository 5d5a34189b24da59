"""Shell commands of the user (`!ls` in a prompt): no Run and no model, but part of the transcript."""

from __future__ import annotations

import asyncio
from typing import Any

from msgspec import Struct

from kedge.core.transcript import USER_COMMAND_S_MAX, Message, ShellCommand
from kedge.engine.append import Append
from kedge.engine.door import Door
from kedge.engine.ports import Machine
from kedge.engine.workspace import Workspace
from kedge.engine.workspaces import Workspaces
from kedge.errors import Invalid, ShuttingDown
from kedge.tools.background import GRACE_S, RunningCommand
from kedge.tools.base import OUTPUT_CHARS_MAX, ToolFailed

#: The exit code of a command that was killed at its time limit, as with timeout(1).
EXIT_TIMEOUT = 124
#: The exit code of a command that was stopped, as after ctrl-c in a shell.
EXIT_STOPPED = 130


class CommandResult(Struct, frozen=True):
    exit_code: int
    output: str


class UserCommands:
    def __init__(self, door: Door, workspaces: Workspaces, machine: Machine) -> None:
        self._door = door
        self._workspaces = workspaces
        self._machine = machine
        #: In order of their start.
        self._running: dict[asyncio.Task[Any], None] = {}
        self._closing = False

    async def run(self, workspace: Workspace, session_id: str, command: str, author: str = "") -> CommandResult:
        """Run a command without approval: the user typed it. It ends with its request, or with the server.

        The transcript has it in any case, with the output that it had printed."""
        if self._closing:
            raise ShuttingDown("The server is shutting down and accepts no new work; try again in a moment.")
        workspace.require_directory()
        with self._workspaces.in_use(workspace):
            state = await self._workspaces.lane(workspace, session_id)
            work = asyncio.get_running_loop().create_task(self._run(workspace, command))
            self._running[work] = None
            try:
                result = await work
            except ToolFailed as failed:
                raise Invalid(str(failed)) from None
            except asyncio.CancelledError:
                if self._closing and not _is_cancelled():
                    raise ShuttingDown("The server is shutting down; the command was ended.") from None
                raise
            finally:
                self._running.pop(work, None)

            async def plan(tx: Append) -> None:
                part = ShellCommand(command, result.output, result.exit_code)
                tx.put_message("created", Message(tx.new_id("m"), session_id, "user", (part,), tx.now, tx.now))
                tx.record("shell", author, detail=f"exit code {result.exit_code}")

            await self._door.write(state, plan)
            if _is_cancelled():
                raise asyncio.CancelledError
            if self._closing and result.exit_code == EXIT_STOPPED:
                raise ShuttingDown("The server is shutting down; the command was ended.")
            return result

    async def _run(self, workspace: Workspace, command: str) -> CommandResult:
        processes = await self._machine.processes(workspace.config, workspace.record.path, workspace.files)
        try:
            process = await processes.start(("/bin/sh", "-c", command), workspace.root)
        except asyncio.CancelledError:  # it is dead by now, and may have had an effect
            return CommandResult(EXIT_STOPPED, "(stopped)")
        running = RunningCommand(process, command)
        killed: tuple[int, str] | None = None
        try:
            if not await running.wait(USER_COMMAND_S_MAX):
                killed = EXIT_TIMEOUT, f"ended after {USER_COMMAND_S_MAX:g} s"
        except asyncio.CancelledError:
            killed = EXIT_STOPPED, "stopped"
        finally:
            if not running.is_gone:
                await running.end_shielded(GRACE_S)
        excerpt = running.take().excerpt(OUTPUT_CHARS_MAX)
        output = f"{excerpt.text.rstrip()}\n({excerpt.note})" if excerpt.note else excerpt.text
        if killed is not None:
            return CommandResult(killed[0], f"{output}\n({killed[1]})")
        return CommandResult(-1 if running.exit_code is None else running.exit_code, output)

    async def close(self) -> None:
        self._closing = True
        for work in self._running:
            work.cancel()
        if self._running:
            await asyncio.wait(self._running)


def _is_cancelled() -> bool:
    """Return whether the caller itself was cancelled, and not only the task it waits for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
