"""What a review of the proofs has found in the engine: each where the simulator, or its judge, could not see it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kedge.core.records import Attachment, LaneRecord, Prompt, RunOptions, RunRecord
from kedge.errors import RunNotActive, StoreDamaged, StoreUnavailable
from kedge.store.base import Write
from kedge.testing.scripted import Call, Hold, Say, ScriptedModel
from kedge.tools.base import ToolContext
from tests.engine.rig import CLIENT, ActingTool, FaultyStore, begin, killed, no_complaints, rig, until
from tests.engine.test_calls import do
from tests.engine.test_shell import PlainMachine


class Watched(FaultyStore):
    """Remembers what was told and could be lost, and may be damaged where a Lane is read."""

    damaged = 0

    def __init__(self) -> None:
        super().__init__()
        self.not_durable: list[Write] = []

    async def append(self, write: Write) -> int:
        if write.events and not write.durable:
            self.not_durable.append(write)
        return await super().append(write)

    async def lane(self, session_id: str) -> tuple[LaneRecord, list[RunRecord]]:
        if self.damaged:
            self.damaged -= 1
            raise StoreDamaged("a page does not fit its checksum")
        return await super().lane(session_id)


@pytest.mark.found(
    "a review of the simulator: a loss of power that it did not play",
    "the beginning of a Step was told to clients before it was on disk; after a loss of power its Position was given "
    "to other events, which a client that resumed there never saw, the end of its Run among them; everything that has "
    "a Position is durable now before it is told",
)
async def test_whatever_has_a_position_is_durable(tmp_path: Path) -> None:
    store = Watched()
    async with rig(tmp_path, ScriptedModel(do("a"), "over"), store, tools=(ActingTool(),)) as r:
        await r.end(await r.submit())
        assert "StepStarted" in await r.log_kinds()
    assert store.not_durable == []


@pytest.mark.found(
    "a review of the simulator: a clock that is set",
    "claims went by the machine's clock: set forward, it ended Runs whose client was away for a moment; set back, it "
    "kept workspaces open for as long; they go by the loop's own time now",
)
@pytest.mark.parametrize("step_s", [3600.0, -3600.0])
async def test_a_clock_that_is_set_ends_no_claim_and_keeps_none(tmp_path: Path, step_s: float) -> None:
    server = {"hold_s": 2.0, "grace_s": 2.0}
    async with rig(tmp_path, ScriptedModel([Hold("never")]), server=server) as r:
        workspaces = r.engine.workspaces
        workspaces.stream_opened(r.workspace, CLIENT, "1")
        await r.submit(run_id="bound", on_disconnect="cancel")
        workspaces.stream_closed(r.workspace, CLIENT, "1")
        r.clock.advance(step_s)
        workspaces.sweep()
        assert not (await r.engine.run(r.workspace, "bound")).stopping
        workspaces.stream_opened(r.workspace, CLIENT, "2")
        assert workspaces.all() == [r.workspace]
        workspaces.stream_closed(r.workspace, CLIENT, "2")
        assert (await r.end("bound")).outcome == "cancelled"
        await until(lambda: not workspaces.all())


@pytest.mark.found(
    "a review of the engine: a command that outlasts the last claim",
    "nobody looked again when a person's command, an undo or an answer was over: a workspace that nobody held any more "
    "stayed open for ever, and its server with it; the last to be over lets go of it",
)
async def test_a_persons_command_that_outlasts_the_last_claim_lets_go_of_the_workspace(tmp_path: Path) -> None:
    async with rig(tmp_path, ScriptedModel(), machine=PlainMachine(), server={"hold_s": 30.0}) as r:
        command = asyncio.create_task(
            r.engine.user_commands.run(r.workspace, r.session, "while [ ! -e go ]; do sleep 0.02; done")
        )
        await until(lambda: r.workspace._in_use > 0)
        r.engine.workspaces.release(r.workspace.id, CLIENT)
        assert r.engine.workspaces.all() == [r.workspace]
        (tmp_path / "go").touch()
        await command
        assert r.engine.workspaces.all() == []


@pytest.mark.found(
    "a review of the engine: damage that is met once",
    "an append whose end was unknown was not looked for any more when the first look met damage: a Run that had been "
    "accepted stayed active for ever, and nobody worked on it; the look is repeated, whatever it meets",
)
async def test_an_append_in_doubt_is_looked_for_though_the_first_look_meets_damage(tmp_path: Path) -> None:
    store = Watched()
    async with no_complaints(), rig(tmp_path, ScriptedModel("done"), store) as r:
        store.fail_after, store.damaged = 1, 1
        with pytest.raises(StoreUnavailable):
            await r.submit(run_id="x")
        async with asyncio.timeout(5):  # the second look comes after a tenth of a second
            await until(lambda: not r.workspace.lanes[r.session].stale)
        assert (await r.end("x")).outcome == "completed"


async def test_files_of_an_edit_that_are_given_by_their_path_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("hello")
    given = (Attachment("a.txt", "a.txt", "text/plain", ""),)
    async with rig(tmp_path, ScriptedModel([Hold("k"), Say("one")], "two")) as r:
        await r.submit(run_id="first")
        submitted = await r.engine.submit(r.workspace, r.session, Prompt("b", given), RunOptions(), "second", "queue")
        edited = await r.engine.edit_run(r.workspace, "second", "b, edited", given)
        assert edited.prompt.attachments == submitted.prompt.attachments
        assert edited.prompt.attachments[0].content
        r.model.release("k")
        await r.end("second")


async def test_b15_a_tool_left_behind_changes_no_file_after_the_end_of_its_run(tmp_path: Path) -> None:
    """It is told so before it writes: the version that an undo would need can no longer be kept."""
    ended, said = asyncio.Event(), list[str]()

    async def stubborn(context: ToolContext) -> str:
        while not ended.is_set():
            try:
                await ended.wait()
            except asyncio.CancelledError:
                continue
        try:
            await context.host.keep_version(tmp_path / "a", b"old", "digest")
            said.append("kept")
        except RunNotActive:
            said.append("refused")
        return "late"

    tool = ActingTool(stubborn=stubborn)
    async with rig(tmp_path, ScriptedModel(do("stubborn")), tools=(tool,), runs={"cleanup_s": 0.05}) as r:
        await r.submit(run_id="x")
        await r.until_begun(tool, "stubborn")
        await r.engine.cancel(r.workspace, r.session)
        assert (await r.end("x")).cleanup == "failed"
        ended.set()
        await until(lambda: bool(said))
        assert said == ["refused"]
        assert "FileChanged" not in await r.log_kinds()


async def test_g2_steps_of_a_resumed_run_are_counted_on(tmp_path: Path) -> None:
    tool, model = ActingTool(), ScriptedModel(do("a"), [Say("half"), Hold("never")])
    r = await begin(tmp_path, model, tools=(tool,))
    await r.submit(run_id="x", max_steps=3)
    await r.model.wait_requests(2)
    endless = ScriptedModel(*([Call("bash", {"do": name})] for name in "bcdef"))
    new = await begin(tmp_path, endless, await killed(r), tools=(tool,))
    ended = await new.end("x")
    assert (ended.reason, ended.steps) == ("max_steps", 3)
    await new.engine.close()
