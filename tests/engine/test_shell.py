"""Commands of people (`!ls`) and undo: what happens when the client, the session or the server goes away meanwhile."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kedge.config.schema import Config
from kedge.errors import (
    FilesChanged,
    KedgeError,
    LaneBusy,
    RunNotFound,
    SessionNotFound,
    ShuttingDown,
    StoreUnavailable,
)
from kedge.testing.scripted import Hold, ScriptedModel
from kedge.tools.base import ToolContext
from kedge.tools.known_files import digest
from kedge.tools.process_port import Processes
from kedge.tools.tool_failed import ToolFailed
from tests.engine.rig import ActingTool, no_complaints, rig, spin, until
from tests.engine.test_calls import do
from tests.engine.test_doubt import Outages
from tests.tools.contexts import PlainProcesses


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


async def test_a_command_is_part_of_the_transcript(tmp_path: Path) -> None:
    async with rig(tmp_path, ScriptedModel("seen"), machine=PlainMachine()) as r:
        done = await r.engine.user_commands.run(r.workspace, r.session, "echo here; exit 3")
        assert (done.exit_code, done.output.strip()) == (3, "here")
        await r.end(await r.submit())
        assert len(r.model.requests[0].request.messages) == 2
        await r.assert_sound()


async def test_a_command_ends_with_the_client_that_asked_for_it(tmp_path: Path) -> None:
    async with no_complaints(), rig(tmp_path, ScriptedModel(), machine=PlainMachine()) as r:
        asking = asyncio.create_task(r.engine.user_commands.run(r.workspace, r.session, WAITS))
        await begun(tmp_path / "mark")
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert not is_alive(tmp_path / "mark")
        assert await r.transcript() == []


async def test_a_server_that_closes_ends_the_command_and_says_why(tmp_path: Path) -> None:
    """The client waits for a reply: it is told that the server goes away, and not left with a broken connection."""
    async with no_complaints(), rig(tmp_path, ScriptedModel(), machine=PlainMachine()) as r:
        asking = asyncio.create_task(r.engine.user_commands.run(r.workspace, r.session, WAITS))
        await begun(tmp_path / "mark")
        await r.engine.close()
        (told,) = await asyncio.gather(asking, return_exceptions=True)
        assert not is_alive(tmp_path / "mark")
        assert isinstance(told, ShuttingDown), repr(told)


async def test_no_command_begins_while_the_server_closes(tmp_path: Path) -> None:
    machine = PlainMachine()
    async with no_complaints(), rig(tmp_path, ScriptedModel(), machine=machine) as r:
        closing = asyncio.create_task(r.engine.close())
        await asyncio.sleep(0)
        with pytest.raises(KedgeError):
            await r.engine.user_commands.run(r.workspace, r.session, "true")
        await closing
        assert machine.plain.started == []


async def test_a_session_deleted_meanwhile_is_not_brought_back(tmp_path: Path) -> None:
    async with no_complaints(), rig(tmp_path, ScriptedModel(), machine=PlainMachine()) as r:
        command = "echo $$ > mark; while [ ! -e go ]; do sleep 0.01; done"
        asking = asyncio.create_task(r.engine.user_commands.run(r.workspace, r.session, command))
        await begun(tmp_path / "mark")
        await r.engine.delete_session(r.workspace, r.session)
        (tmp_path / "go").touch()
        with pytest.raises(SessionNotFound):
            await asking
        assert await r.engine.sessions(r.workspace) == []


async def test_a_machine_that_cannot_start_anything_is_an_error_with_its_reason(tmp_path: Path) -> None:
    machine = PlainMachine()
    machine.fails = "the warden is gone"
    async with (
        no_complaints(),
        rig(tmp_path, ScriptedModel(do("a"), "well"), machine=machine, tools=(ActingTool(),)) as r,
    ):
        with pytest.raises(KedgeError, match="the warden is gone"):
            await r.engine.user_commands.run(r.workspace, r.session, "true")
        assert (await r.end(await r.submit())).text == "well"
        assert (await r.results())[0][1] == "the warden is gone"


async def test_a_command_while_a_run_is_at_work_breaks_no_rule_of_a_provider(tmp_path: Path) -> None:
    gate = asyncio.Event()

    async def waits(context: ToolContext) -> str:
        await gate.wait()
        return "done"

    tool = ActingTool(waits=waits)
    async with rig(tmp_path, ScriptedModel(do("waits"), "ok"), machine=PlainMachine(), tools=(tool,)) as r:
        run = await r.submit()
        await r.until_begun(tool, "waits")
        await r.engine.user_commands.run(r.workspace, r.session, "echo between call and result")
        gate.set()
        assert (await r.end(run)).text == "ok"
        await r.assert_sound()


# --- undo ----------------------------------------------------------------------------------------------------------


def writes(path: Path, text: str) -> ActingTool:
    async def write(context: ToolContext) -> str:
        before = path.read_bytes() if path.exists() else None
        await context.host.keep_version(path, before, digest(text.encode()))
        path.write_text(text)
        return "written"

    return ActingTool(write=write)


@pytest.mark.parametrize("when", ["before", "after"])
async def test_an_undo_in_doubt_is_done_again_without_harm(tmp_path: Path, when: str) -> None:
    file, store = tmp_path / "a.txt", Outages()
    file.write_text("one")
    async with rig(tmp_path, ScriptedModel(do("write"), "ok"), store, tools=(writes(file, "two"),)) as r:
        run = await r.end(await r.submit())
        setattr(store, when, lambda write: bool(write.files))
        with pytest.raises(StoreUnavailable):
            await r.engine.undo.undo(r.workspace, r.session, run.run_id)
        assert file.read_text() == "one"
        if when == "before":
            assert await r.engine.undo.undo(r.workspace, r.session, run.run_id) == (run.run_id, [])
        assert await r.store.runs_with_files(r.session) == []
        with pytest.raises(RunNotFound):
            await r.engine.undo.undo(r.workspace, r.session, None)


async def test_a_run_that_is_accepted_during_an_undo_begins_behind_it(tmp_path: Path) -> None:
    """Else the Run may change the very files that are being put back."""
    file, store = tmp_path / "a.txt", Outages()
    file.write_text("one")
    model = ScriptedModel(do("write"), "ok", [Hold("never")])
    async with no_complaints(), rig(tmp_path, model, store, tools=(writes(file, "two"),)) as r:
        await r.end(await r.submit())
        store.held = lambda write: bool(write.files)
        undoing = asyncio.create_task(r.engine.undo.undo(r.workspace, r.session, None))
        await until(lambda: r.workspace._in_use > 0)
        submitting = asyncio.create_task(r.submit(run_id="y"))
        await store.waiting.wait()
        await spin()
        asked = len(model.requests)
        store.gate.set()
        assert (await undoing)[1] == [str(file)]
        assert asked == 2, "nothing of the Run has begun while files are put back"
        await submitting
        await model.wait_requests(3)
        assert file.read_text() == "one"


async def test_no_undo_while_a_run_is_at_work(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    model = ScriptedModel(do("write"), "ok", [Hold("never")])
    async with rig(tmp_path, model, tools=(writes(file, "two"),)) as r:
        await r.end(await r.submit())
        await r.submit(run_id="y")
        with pytest.raises(LaneBusy):
            await r.engine.undo.undo(r.workspace, r.session, None)
        assert file.exists()


async def test_a_file_that_cannot_be_put_back_is_an_error_people_can_read(tmp_path: Path) -> None:
    directory = tmp_path / "d"
    directory.mkdir()
    file = directory / "a.txt"
    file.write_text("one")
    async with rig(tmp_path, ScriptedModel(do("write"), "ok"), tools=(writes(file, "two"),)) as r:
        await r.end(await r.submit())
        file.unlink()
        directory.rmdir()
        directory.write_text("a file where the directory was")
        with pytest.raises(KedgeError) as told:
            await r.engine.undo.undo(r.workspace, r.session, None)
        assert isinstance(told.value, FilesChanged)
        await spin()
