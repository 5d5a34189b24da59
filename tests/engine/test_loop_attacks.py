"""What clients, repositories and models could do to the one event loop, and to the threads beside it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from kedge.agent import model_call as asking
from kedge.agent.system_prompt import INSTRUCTION_FILES_MAX, instruction_files
from kedge.config.load import REPOSITORY_BYTES_MAX, LoadedConfig, _merge, load_layers, load_workspace, repository_files
from kedge.config.schema import CONTEXT_FILES_MAX, Config
from kedge.config.trust import TrustList
from kedge.core.step import RECENT_CALLS, signatures
from kedge.core.transcript import Message, Part, Role, Text, ToolCall, ToolResult, chars_of, for_model
from kedge.engine import forks as forking
from kedge.engine.feed import SNAPSHOT_BYTES_PER_S
from kedge.errors import BadConfig
from kedge.llm.catalogue import Price
from kedge.testing.scripted import EndReply, Hold, Say, ScriptedModel, Think
from tests.engine.rig import OneModel, rig, spin, until
from tests.engine.test_compaction import summary_of


def message(number: int, role: Role, *parts: Part, run_id: str = "r") -> Message:
    return Message(f"m{number}", "s", role, parts, 0, 0, run_id)


def repository(directory: Path, levels: int = 1) -> Path:
    """The innermost directory of a new repository."""
    inner = directory.joinpath("repository", *["d"] * (levels - 1))
    inner.mkdir(parents=True)
    (directory / "repository" / ".git").mkdir()
    return inner


# --- a repository's configuration ------------------------------------------------------------------------------------


@pytest.mark.found(
    "attack round 2: the event loop",
    "two repository files with 16,000 names each were merged in quadratic time, 4 s on the event loop, and so were "
    "thousands of named tables; merging is linear",
)
@pytest.mark.timeout(20)
def test_layers_are_merged_in_linear_time() -> None:
    merged = {"files": [f"a{number}" for number in range(60_000)]}
    _merge(merged, {"files": [f"b{number}" for number in range(60_000)] + ["a1"]}, "x", {})
    assert len(merged["files"]) == 120_000
    sources: dict[str, str] = {}
    _merge({}, {"providers": {f"m{number}": {"base_url": "u"} for number in range(60_000)}}, "x", sources)
    assert len(sources) == 60_000


@pytest.mark.found(
    "attack round 2: the event loop",
    "each of up to 128 files of a repository could have 128 kB, all parsed on the event loop: 4 s; all of them "
    "together have one limit",
)
def test_files_of_a_repository_have_one_limit_together(tmp_path: Path) -> None:
    inner = repository(tmp_path, levels=3)
    for place in (inner.parent.parent, inner.parent, inner):
        (place / "kedge.toml").write_text("#" * (REPOSITORY_BYTES_MAX // 2))
    assert [file.content is not None for file in repository_files(inner)] == [True, True, False]
    with pytest.raises(BadConfig, match="is not read: the repository's configuration has more than"):
        load_workspace(Config(), inner)
    assert load_workspace(Config(), inner, strict=False) == Config()


@pytest.mark.found(
    "attack round 2: the event loop",
    "a repository's file of 60 kB with one deep table and thousands of lines took the parser 2.6 s on the event loop; "
    "for a repository the limit of dots times lines is fifty times lower",
)
def test_a_deep_table_of_a_repository_is_refused(tmp_path: Path) -> None:
    inner = repository(tmp_path)
    lines = "".join(f"{number:x}=1\n" for number in range(3000))
    (inner / "kedge.toml").write_text(f"[{'.'.join('a' * 200)}]\n{lines}")
    with pytest.raises(BadConfig, match="dots"):
        load_workspace(Config(), inner)


@pytest.mark.found(
    "attack round 2: the event loop",
    "context.files had no limit: 300 names in a repository of 61 levels kept a thread busy for 30 s before each Run, "
    "and thousands would have for minutes; names and files have limits, and what is not there costs one look",
)
def test_names_of_instruction_files_are_bounded(tmp_path: Path) -> None:
    inner = repository(tmp_path, levels=3)
    many = [f"f{number}.md" for number in range(CONTEXT_FILES_MAX + 1)]
    (inner / "kedge.toml").write_text(f"context.files = {json.dumps(many)}")
    with pytest.raises(BadConfig, match="length <= 50"):
        load_workspace(Config(), inner)
    (inner / "kedge.toml").write_text(f"context.files = {json.dumps(many[1:])}")
    (inner.parent / "kedge.toml").write_text(f"context.files = {json.dumps(many[:-1])}")
    found = load_layers(LoadedConfig(Config(), {}, (), {}), inner, TrustList(), {})
    assert found.config.context.files == many[:-1]
    assert found.ignored == (f"context.files: only the first {CONTEXT_FILES_MAX} of {len(many)} names are used.",)
    for place in (inner.parent.parent, inner.parent, inner):
        for name in many:
            (place / name).write_text(f"{place} {name}")
    assert len(instruction_files(inner, found.config)) == INSTRUCTION_FILES_MAX


@pytest.mark.found(
    "attack round 2: the event loop",
    "a repository could let 10,000 Runs wait in a session, and one cancel of all of them took 0.6 s of the event loop; "
    "a thousand may wait",
)
def test_a_repository_cannot_make_a_queue_of_thousands(tmp_path: Path) -> None:
    inner = repository(tmp_path)
    (inner / "kedge.toml").write_text("runs.queue_runs_max = 1001")
    with pytest.raises(BadConfig, match="<= 1000"):
        load_workspace(Config(), inner)


# --- histories -------------------------------------------------------------------------------------------------------


@pytest.mark.found(
    "attack round 2: the event loop",
    "a session of 10,000 messages whose Runs each end with a call cost a second on the event loop at every Step, since "
    "the results of each were looked for among all later messages; now only among those of its own Run",
)
@pytest.mark.timeout(20)
def test_a_history_of_many_cut_off_runs_is_read_in_linear_time() -> None:
    history = [
        one
        for number in range(0, 150_000, 3)
        for one in (
            message(number, "user", Text("x"), run_id=f"r{number}"),
            message(number + 1, "assistant", ToolCall("c", "t", "{}"), run_id=f"r{number}"),
            message(number + 2, "tool", ToolResult("c", "t", f"result {number}"), run_id=f"r{number}"),
        )
    ]
    sent = for_model(history)
    assert len(sent) == len(history)
    assert sent[5].all(ToolResult)[0].content == "result 3"


@pytest.mark.found(
    "attack round 2: the event loop",
    "a Run that was resumed hashed all its calls and results on the event loop, to compare the last twenty; only these "
    "are hashed",
)
@pytest.mark.timeout(20)
def test_only_the_latest_calls_are_hashed() -> None:
    given = "\x01" * 1_000_000
    calls = [ToolCall(f"c{number}", "t", given) for number in range(3000)]
    own = [
        message(1, "assistant", *calls),
        message(2, "tool", *(ToolResult(call.id, "t", "x") for call in calls)),
    ]
    assert len(signatures(own)) == RECENT_CALLS


@pytest.mark.found(
    "attack round 2: the event loop",
    "a model that answers with megabytes of calls made each request larger than the last, without a limit; a request "
    "beyond one is summarised as if the provider had refused it",
)
async def test_a_request_beyond_the_limit_is_summarised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = ScriptedModel("x" * 600, "in short", "done")
    monkeypatch.setattr(asking, "REQUEST_CHARS_MAX", 1000)
    async with rig(tmp_path, model) as r:
        await r.end(await r.submit("first"))
        assert sum(map(chars_of, model.requests[0].request.messages)) == len("first")
        ended = await r.end(await r.submit("second " + "y" * 400))
        assert ended.outcome == "completed", ended.error
        assert (await summary_of(r)).startswith("in short")


@pytest.mark.found(
    "attack round 2: the event loop",
    "a model that turns from text to thought and back with every letter made messages of a hundred thousand parts, "
    "each of which cost half a second to show; a message has at most a thousand",
)
async def test_a_message_of_too_many_parts_is_stopped(tmp_path: Path) -> None:
    acts = [act for _ in range(asking.PARTS_MAX // 2 + 1) for act in (Say("a"), Think("b"))]
    model = ScriptedModel(acts)
    async with rig(tmp_path, model) as r:
        ended = await r.end(await r.submit())
        assert ended.outcome == "failed"
        assert ended.error == "The model began more than 1000 parts and was stopped."


@pytest.mark.found(
    "attack round 2: the event loop",
    "a small model could answer with 4 MB in one piece, and half a second of the event loop went into finding a title "
    "in it; it is cut first",
)
async def test_a_title_is_looked_for_in_the_beginning_only(tmp_path: Path) -> None:
    large = ScriptedModel([Hold("k"), Say("done")])
    small = ScriptedModel([Say("\n" * 3000 + "Late"), EndReply()])
    async with rig(tmp_path, large, models=OneModel(large, small, Price(1.0, 1.0))) as r:
        run = await r.submit()
        await until(lambda: len(small.requests) == 1)
        await spin(200)
        large.release("k")
        await r.end(run)
        assert (await r.engine.session(r.workspace, r.session)).title == "hello"


@pytest.mark.found(
    "attack round 2: the event loop",
    "a fork copied up to 100,000 messages in one go, 0.6 s on the event loop; others have their turn in between",
)
async def test_others_have_their_turn_while_a_session_is_forked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forking, "COPY_BATCH", 1)
    async with rig(tmp_path, ScriptedModel()) as r:
        messages = [message(number, "user", Text("x")) for number in range(5)]
        parent = await r.engine.session(r.workspace, r.session)
        copying = asyncio.ensure_future(forking.fork(parent, messages, "m4", r.ids, 0))
        for _ in range(3):
            await asyncio.sleep(0)
            assert not copying.done()
        assert len((await copying)[1]) == 5


@pytest.mark.found(
    "attack round 2: the event loop",
    "readers without Deltas were sent a growing message whole thirty times a second: with megabytes of it this took "
    "all of the event loop's time; the pace now depends on its length",
)
async def test_a_large_streaming_message_is_shown_less_often(tmp_path: Path) -> None:
    size = SNAPSHOT_BYTES_PER_S // 10
    model = ScriptedModel([Say("x" * size), Hold("k")])
    async with rig(tmp_path, model) as r:
        reader = await r.engine.workspaces.read_events(r.workspace, None, None, deltas=False)
        await reader.read(0.0)
        run = await r.submit()
        feed = r.workspace.feed
        await until(lambda: bool(feed._snapshots))
        # What is added from now on is shown one pace behind this time. Its Deltas were flushed at the same time.
        assert feed._snapshot_at - feed._flushed_at > 0.9 * size / SNAPSHOT_BYTES_PER_S
        model.release("k")
        await r.end(run)
        reader.close()
