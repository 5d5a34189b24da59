"""Commands of the user (`!ls`) while the client, the session or the server goes away."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from kedge.core.transcript import ShellCommand
from kedge.engine.user_commands import EXIT_STOPPED
from kedge.errors import KedgeError, SessionNotFound, ShuttingDown
from kedge.testing.scripted import ScriptedModel
from kedge.tools.base import ToolContext
from kedge.tools.process_port import Process
from tests.engine.rig import (
    WAITS,
    ActingTool,
    PlainMachine,
    do,
    is_alive,
    no_asyncio_errors,
    rig,
    until_marked,
    until_watched,
)
from tests.tools.contexts import PlainProcesses


async def test_command_is_part_of_the_transcript(tmp_path: Path) -> None:
    async with rig(tmp_path, ScriptedModel("seen"), machine=PlainMachine()) as r:
        done = await r.engine.user_commands.run(r.workspace, r.session, "echo here; exit 3")
        assert (done.exit_code, done.output.strip()) == (3, "here")
        await r.end(await r.submit())
        assert len(r.model.requests[0].request.messages) == 2
        await r.assert_sound()


@pytest.mark.found(
    "issue 20", "a command of the user that was stopped left no trace; it is in the transcript, with its output"
)
async def test_command_ends_with_the_client_that_started_it(tmp_path: Path) -> None:
    async with no_asyncio_errors(), rig(tmp_path, ScriptedModel(), machine=PlainMachine()) as r:
        command = f"echo first words; {WAITS}"
        command_task = asyncio.create_task(r.engine.user_commands.run(r.workspace, r.session, command))
        await until_marked(tmp_path / "mark")
        await until_watched()
        command_task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await command_task
        assert not is_alive(tmp_path / "mark")
        (message,) = await r.engine.messages(r.workspace, r.session, None, 10)
        assert message.all(ShellCommand) == [ShellCommand(command, "first words\n\n(stopped)", EXIT_STOPPED)]


class SlowStart(PlainProcesses):
    """Its starts return late, as on a busy machine. A cancelled one has ended its process."""

    async def start(self, *arguments: Any, **options: Any) -> Process:
        process = await super().start(*arguments, **options)
        try:
            await asyncio.Event().wait()
        finally:
            await process.end(0.0)
        return process


@pytest.mark.found(
    "a run of all tests on a busy machine",
    "a command of the user whose client left between its start and the report of the start was not in the transcript",
)
async def test_command_that_ends_while_it_starts_is_in_the_transcript(tmp_path: Path) -> None:
    machine = PlainMachine()
    machine.plain = SlowStart()
    async with no_asyncio_errors(), rig(tmp_path, ScriptedModel(), machine=machine) as r:
        command_task = asyncio.create_task(r.engine.user_commands.run(r.workspace, r.session, WAITS))
        await until_marked(tmp_path / "mark")
        command_task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await command_task
        (message,) = await r.engine.messages(r.workspace, r.session, None, 10)
        assert message.all(ShellCommand) == [ShellCommand(WAITS, "(stopped)", EXIT_STOPPED)]


async def test_shutdown_ends_the_command_and_reports_why(tmp_path: Path) -> None:
    """The client waits for a reply, so it receives an error instead of a broken connection."""
    async with no_asyncio_errors(), rig(tmp_path, ScriptedModel(), machine=PlainMachine()) as r:
        command_task = asyncio.create_task(r.engine.user_commands.run(r.workspace, r.session, WAITS))
        await until_marked(tmp_path / "mark")
        await r.engine.close()
        (result,) = await asyncio.gather(command_task, return_exceptions=True)
        assert not is_alive(tmp_path / "mark")
        assert isinstance(result, ShuttingDown), repr(result)


async def test_no_command_starts_during_shutdown(tmp_path: Path) -> None:
    machine = PlainMachine()
    async with no_asyncio_errors(), rig(tmp_path, ScriptedModel(), machine=machine) as r:
        closing = asyncio.create_task(r.engine.close())
        await asyncio.sleep(0)
        with pytest.raises(KedgeError):
            await r.engine.user_commands.run(r.workspace, r.session, "true")
        await closing
        assert machine.plain.started == []


async def test_command_does_not_restore_a_deleted_session(tmp_path: Path) -> None:
    async with no_asyncio_errors(), rig(tmp_path, ScriptedModel(), machine=PlainMachine()) as r:
        command = "echo $$ > mark; while [ ! -e go ]; do sleep 0.01; done"
        command_task = asyncio.create_task(r.engine.user_commands.run(r.workspace, r.session, command))
        await until_marked(tmp_path / "mark")
        await r.engine.delete_session(r.workspace, r.session)
        (tmp_path / "go").touch()
        with pytest.raises(SessionNotFound):
            await command_task
        assert await r.engine.sessions(r.workspace) == []


async def test_failed_process_start_is_reported_with_its_reason(tmp_path: Path) -> None:
    machine = PlainMachine()
    machine.fails = "the warden is gone"
    async with (
        no_asyncio_errors(),
        rig(tmp_path, ScriptedModel(do("a"), "well"), machine=machine, tools=(ActingTool(),)) as r,
    ):
        with pytest.raises(KedgeError, match="the warden is gone"):
            await r.engine.user_commands.run(r.workspace, r.session, "true")
        assert (await r.end(await r.submit())).text == "well"
        assert (await r.results())[0][1] == "the warden is gone"


async def test_command_during_a_run_keeps_requests_valid(tmp_path: Path) -> None:
    gate = asyncio.Event()

    async def waits(context: ToolContext) -> str:
        await gate.wait()
        return "done"

    tool = ActingTool(waits=waits)
    async with rig(tmp_path, ScriptedModel(do("waits"), "ok"), machine=PlainMachine(), tools=(tool,)) as r:
        run = await r.submit()
        await r.until_started(tool, "waits")
        await r.engine.user_commands.run(r.workspace, r.session, "echo between call and result")
        gate.set()
        assert (await r.end(run)).text == "ok"
        await r.assert_sound()
