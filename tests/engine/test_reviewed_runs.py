"""What a second review has found: in the work of Runs, in what a new process does first, in what is told of it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from kedge.agent.model_choice import RunModel
from kedge.config.schema import Config
from kedge.core.approvals import Ask
from kedge.core.records import Attachment, LaneRecord, Prompt, RunOptions, RunRecord, Usage
from kedge.core.transcript import Message
from kedge.errors import AskIsOver, BadConfig, Invalid, ModelFailed, StoreDamaged, StoreUnavailable, TooLarge
from kedge.llm.catalogue import Price
from kedge.store.memory import MemoryData
from kedge.testing.scripted import Call, EndReply, Hold, Say, ScriptedModel
from kedge.tools.agent import AgentTool
from kedge.tools.edit import EditTool
from kedge.tools.view import ViewTool
from tests.engine.rig import (
    CLIENT,
    ActingTool,
    FaultyStore,
    OneModel,
    Rig,
    Trouble,
    TroubledModel,
    begin,
    killed,
    no_complaints,
    rig,
)
from tests.engine.test_calls import do
from tests.engine.test_compaction import NEAR, narrow, summary_of
from tests.engine.test_feed import read_all, reader


@pytest.mark.found(
    "a review of the engine: a provider that breaks off in a summary, and is asked again",
    "the summary was taken from the attempt that had failed, so that all but its ruins was lost to the model for good; "
    "it is that of the last attempt",
)
async def test_a_summary_is_that_of_the_attempt_that_was_whole(tmp_path: Path) -> None:
    broken = Trouble(ModelFailed("busy", retryable=True, wait_s=0), "half a summ")
    model = TroubledModel([*do("a"), NEAR], "in short", "done", troubles=[None, broken])
    async with rig(tmp_path, model, models=narrow(model), tools=(ActingTool(),)) as r:
        assert (await r.end(await r.submit("please"))).text == "done"
        assert (await summary_of(r)).startswith("in short")
        await r.assert_sound()


# --- approvals that outlast their process ---------------------------------------------------------------------------

EDITS = (ViewTool(), EditTool())
CHANGE = Call("edit", {"path": "a.txt", "old_string": "old", "new_string": "new"})


async def asked_for_an_edit(tmp_path: Path) -> tuple[Rig, Ask]:
    (tmp_path / "a.txt").write_text("old\n")
    model = ScriptedModel([Call("view", {"path": "a.txt"})], [CHANGE], [Hold("never")])
    r = await begin(tmp_path, model, tools=EDITS)
    await r.submit(run_id="x")
    (ask,) = await r.until_asked()
    return r, ask


@pytest.mark.found(
    "a review of the engine: a server killed while people are asked about an edit",
    "the next process had not read the file, gave the call an error, and left the question on people's screens, where "
    "an answer was taken and nothing happened; what they were shown stands, and one that nobody needs is withdrawn",
)
async def test_an_approval_of_an_edit_outlasts_the_process_that_asked(tmp_path: Path) -> None:
    r, ask = await asked_for_an_edit(tmp_path)
    new = await begin(tmp_path, ScriptedModel("done"), await killed(r), tools=EDITS)
    assert [again.id for again in await new.until_asked()] == [ask.id]
    assert (await new.engine.asks.answer(new.workspace, ask.id, "allow")).first
    assert (await new.end("x")).text == "done"
    assert (tmp_path / "a.txt").read_text() == "new\n"
    await new.assert_sound()
    await new.engine.close()


async def test_a_question_about_an_edit_that_cannot_be_made_any_more_is_withdrawn(tmp_path: Path) -> None:
    r, ask = await asked_for_an_edit(tmp_path)
    (tmp_path / "a.txt").write_text("old, and more\n")
    new = await begin(tmp_path, ScriptedModel([Hold("k"), Say("done")]), await killed(r), tools=EDITS)
    await new.model.wait_requests(1)
    assert await new.engine.asks.pending(new.workspace) == []
    with pytest.raises(AskIsOver):
        await new.engine.asks.answer(new.workspace, ask.id, "allow")
    assert "was not read yet" in (await new.results())[-1][1]
    new.model.release("k")
    assert (await new.end("x")).text == "done"
    await new.assert_sound()
    await new.engine.close()


async def test_a_question_about_what_is_allowed_by_now_is_withdrawn_before_it_is_done(tmp_path: Path) -> None:
    pending: list[int] = []

    class Counting(EditTool):
        async def prepare(self, given, place):  # type: ignore[no-untyped-def]
            prepared = await super().prepare(given, place)
            made = prepared.run

            async def run():  # type: ignore[no-untyped-def]
                pending.append(len(await new.engine.asks.pending(new.workspace)))
                return await made()

            return type(prepared)(prepared.intent, run)

    r, _ = await asked_for_an_edit(tmp_path)
    store = await killed(r)
    allowed: dict[str, Any] = {"permissions": {"allow": ["edit"]}}
    new = await begin(tmp_path, ScriptedModel("done"), store, tools=(ViewTool(), Counting()), **allowed)
    assert (await new.end("x")).text == "done"
    assert pending == [0]
    assert (tmp_path / "a.txt").read_text() == "new\n"
    await new.assert_sound()
    await new.engine.close()


# --- what a new process does first ----------------------------------------------------------------------------------


@pytest.mark.found(
    "a review of the engine: a resumed Run that ends before it went on",
    "what it had cost was forgotten, and its calls that waited for people had no result; both are known from the start",
)
async def test_a_resumed_run_that_cannot_go_on_keeps_its_cost_and_its_calls_have_results(tmp_path: Path) -> None:
    class NoModel(OneModel):
        async def choose(self, config: Config, wanted: str) -> RunModel:
            raise BadConfig("there is none any more")

    tool, model = ActingTool(), ScriptedModel([*do("a", leave=True), EndReply(usage=Usage(100, 7))])
    r = await begin(tmp_path, model, tools=(tool,))
    await r.submit(run_id="x")
    await r.until_asked()
    none = ScriptedModel()
    new = await begin(tmp_path, none, await killed(r), tools=(tool,), models=NoModel(none))
    ended = await new.end("x")
    assert (ended.outcome, ended.usage.input_tokens, tool.begun) == ("failed", 100, [])
    assert (await new.engine.session(new.workspace, new.session)).usage.input_tokens == 100
    await new.assert_sound()
    await new.engine.close()


class DamagedSince(FaultyStore):
    """Its transcripts can be read by recovery, and not any more after that."""

    reads = 0

    async def last_messages(self, session_id: str, limit: int) -> list[Message]:
        self.reads += 1
        if self.reads > 1:
            raise StoreDamaged("a page does not fit its checksum")
        return await super().last_messages(session_id, limit)


async def test_a_resumed_run_ends_though_its_transcript_cannot_be_read_any_more(tmp_path: Path) -> None:
    tool = ActingTool()
    r = await begin(tmp_path, ScriptedModel(do("a", leave=True)), tools=(tool,))
    await r.submit(run_id="x")
    await r.until_asked()
    store = DamagedSince((await killed(r)).data)
    new = await begin(tmp_path, ScriptedModel(), store, tools=(tool,))
    ended = await new.end("x")
    assert (ended.outcome, ended.reason, store.reads) == ("failed", "store_damaged", 3)
    await new.engine.close()


class UnreadableSecond(FaultyStore):
    """The Lane of one session cannot be read, for a while."""

    def __init__(self, data: MemoryData | None, session_id: str) -> None:
        super().__init__(data)
        self._session_id = session_id

    async def lane(self, session_id: str) -> tuple[LaneRecord, list[RunRecord]]:
        if session_id == self._session_id:
            raise StoreUnavailable("the disk does not answer")
        return await super().lane(session_id)


@pytest.mark.found(
    "a review of recovery: a server that fails to start, again and again",
    "each start resumed the Runs of the first workspaces and then failed at another one: after three of them they were "
    "ended as having taken their process down; everything is read before anything is written",
)
async def test_a_start_that_fails_costs_no_run_a_resumption(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    r = await begin(one, ScriptedModel([Hold("never")], [Hold("never")]))
    await r.submit(run_id="x")
    other = await r.engine.workspaces.open(str(two), CLIENT)
    session = await r.engine.create_session(other, "")
    await r.engine.submit(other, session.id, Prompt("y"), RunOptions(), "y")
    store = await killed(r)
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            await begin(one, ScriptedModel(), UnreadableSecond(store.data, session.id))
        store.data.owner = None  # that process is gone, too
    new = await begin(one, ScriptedModel("first", "second"), FaultyStore(store.data))
    assert ((await new.end("x")).resumes, (await new.end("x")).outcome) == (1, "completed")
    await new.engine.close()


async def test_a_submit_is_found_again_though_its_files_are_gone(tmp_path: Path) -> None:
    """A4: the answer was lost, and the Run has moved what it was given."""
    (tmp_path / "a.txt").write_text("hello")
    prompt = Prompt("b", (Attachment("a.txt", "a.txt", "text/plain", ""),))
    async with rig(tmp_path, ScriptedModel("done")) as r:
        first = await r.engine.submit(r.workspace, r.session, prompt, RunOptions(), "x")
        (tmp_path / "a.txt").unlink()
        again = await r.engine.submit(r.workspace, r.session, prompt, RunOptions(), "x")
        assert (again.seq, again.position, again.accepted_at) == (first.seq, first.position, first.accepted_at)
        for run_id, other in (("y", prompt), ("x", Prompt("c", prompt.attachments))):
            with pytest.raises(Invalid, match="file not found"):
                await r.engine.submit(r.workspace, r.session, other, RunOptions(), run_id)
        await r.end("x")


async def test_files_of_a_prompt_have_a_limit_together(tmp_path: Path) -> None:
    """What is accepted has to fit into one frame of the stream."""
    (tmp_path / "a.bin").write_bytes(bytes(5_000_000))
    given = tuple(Attachment("a.bin", "a.bin", "application/octet-stream", "") for _ in range(3))
    async with rig(tmp_path, ScriptedModel()) as r:
        with pytest.raises(TooLarge, match="in total"):
            await r.engine.submit(r.workspace, r.session, Prompt("b", given), RunOptions(), "x")


# --- what one thing must not do to others ---------------------------------------------------------------------------


@pytest.mark.found(
    "a review of the store: a link in a repository whose target is no text",
    "the question about it could be stored but not told: every stream of the workspace broke off there, for good; its "
    "text is cleaned, and what cannot be told is left out",
)
async def test_a_question_about_a_path_that_is_no_text_is_told(tmp_path: Path) -> None:
    os.symlink(b"/tmp/\xff", bytes(tmp_path / "docs"))
    model = ScriptedModel([Call("view", {"path": "docs/x"})], "done")
    async with no_complaints(), rig(tmp_path, model, tools=(ViewTool(),)) as r:
        live = await reader(r, after=0)
        run = await r.submit()
        (ask,) = await r.until_asked()
        told = {payload["id"]: payload for kind, payload, _ in await read_all(live) if kind == "permission_request"}
        assert "docs" in str(told[ask.id]["params"]) or "tmp" in str(told[ask.id]["params"])
        assert (await read_all(await reader(r, after=0)))[-1][0] == "permission_request"
        await r.engine.asks.answer(r.workspace, ask.id, "deny")
        await r.end(run)
        await r.assert_sound()


class BrokenSource:
    """A configuration that fails in a way nobody foresaw."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self.fails = False

    @property
    def config(self) -> Config:
        if self.fails:
            raise ZeroDivisionError("who would have thought")
        return self._config


async def test_an_accepted_run_begins_whatever_is_wrong_with_the_configuration(tmp_path: Path) -> None:
    async with no_complaints(), rig(tmp_path, ScriptedModel("done")) as r:
        broken = r.workspace.source = BrokenSource(r.workspace.config)
        broken.fails = True
        assert (await r.end(await r.submit())).text == "done"


async def test_a_run_ends_though_what_it_cost_fits_no_record(tmp_path: Path) -> None:
    """Infinitely much, which no JSON can say."""
    model = ScriptedModel([Say("dear"), EndReply(usage=Usage(10**15, 1))], "next")
    async with no_complaints(), rig(tmp_path, model, models=OneModel(model, price=Price(1e300, 1.0))) as r:
        ended = await r.end(await r.submit())
        assert (ended.outcome, ended.reason) == ("failed", "internal")
        assert (await r.end(await r.submit())).text == "next"


@pytest.mark.found(
    "a review of the engine: an agent of a session that has a model of its own",
    "it had the configured model instead, or none; and a Run with a budget could begin any number of agents without "
    "one; an agent has the model of its session, and what is left of the budget",
)
async def test_an_agent_has_the_model_of_its_session_and_what_is_left_of_the_budget(tmp_path: Path) -> None:
    class Watching(OneModel):
        async def choose(self, config: Config, wanted: str) -> RunModel:
            self.wanted = [*getattr(self, "wanted", []), wanted]
            return await super().choose(config, wanted)

    agent = Call("agent", {"prompt": "child", "description": "child"})
    model = ScriptedModel([agent, EndReply(usage=Usage(1_000_000, 0))], "found", "done")
    models = Watching(model, price=Price(0.25, 1.0))
    async with rig(tmp_path, model, models=models, tools=(AgentTool(),)) as r:
        await r.engine.change_session(r.workspace, r.session, None, "own/model")
        assert (await r.end(await r.submit(budget_usd=1.0))).text == "done"
        assert models.wanted == ["own/model", "own/model"]
        (child,) = (run for run in r.store.data.runs.values() if run.options.parent_run_id)
        assert child.options.budget_usd == pytest.approx(0.75)
        fork = await r.engine.fork_session(
            r.workspace, r.session, (await r.engine.messages(r.workspace, r.session, None, 1))[0].id
        )
        assert fork.model == "own/model"
