"""Statistics and timelines of the real engine: each Run is counted once, whatever happens to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kedge.core.records import EVERY_RUN, RunSpan, Usage
from kedge.core.run_facts import RunFacts
from kedge.core.run_trace import ToolUse, TraceEntry
from kedge.engine import reports
from kedge.errors import WrongType
from kedge.store.base import Store
from kedge.testing.scripted import Act, Call, EndReply, Fail, Hold, Reply, Say, ScriptedModel
from kedge.tools.agent import AgentTool
from kedge.tools.base import ToolContext, ToolFailed
from tests.engine.rig import ActingTool, OutageStore, do, has_results, kill, never, rig, spin, start

ONE = EndReply(usage=Usage(10, 1, 0.5))
CHILD = Call("agent", {"prompt": "child", "description": "child"})


async def fail(context: ToolContext) -> str:
    raise ToolFailed("no")


def billed(*acts: Act) -> Reply:
    return [*acts, ONE]


async def facts_of(store: Store) -> dict[str, RunFacts]:
    """Return the facts by run_id, which must be unique: a Run that is counted twice fails here."""
    rows, _ = await store.run_facts(0, 1000, 0, 2**53)
    facts = {one.run_id: one for one in rows}
    assert len(facts) == len(rows), rows
    return facts


async def test_scripted_history_is_counted_exactly(tmp_path: Path) -> None:
    """Runs that complete, call tools, have a child, fold, are cancelled, removed, fail, crash and resume."""
    tool = ActingTool(fail=fail, slow=never)
    model = ScriptedModel()
    options: dict[str, Any] = {
        "tools": (tool, AgentTool()),
        "runs": {"on_crash": "resume", "retries_max": 1},
    }
    r = await start(tmp_path, model, **options)

    model.add(billed(*do("a", "fail", ask=False)), billed(Say("done")))
    await r.end(await r.submit(run_id="tools"))
    model.add(billed(CHILD), billed(Say("found")), billed(Say("done")))
    await r.end(await r.submit(run_id="parent"))

    model.add(billed(Say("half"), Hold("go"), *do("b")), billed(Say("both")))
    await r.submit(run_id="host")
    await model.wait_requests(6)
    await r.submit(run_id="joins", when_busy="fold")
    await r.submit(run_id="late")
    await r.submit(run_id="removed")
    await r.engine.move_run(r.workspace, "removed", "late")
    await r.engine.cancel_run(r.workspace, "removed")
    r.clock.advance(5)
    model.add([Fail("down")])
    model.release("go")
    await r.end("host")
    await r.end("joins")
    assert (await r.end("late")).outcome == "failed"

    model.add([Say("half"), Hold("never")])
    await r.submit(run_id="stopped")
    await r.submit(run_id="waiting")
    await model.wait_requests(9)
    await spin()
    await r.engine.cancel(r.workspace, r.session)
    await r.end("stopped")

    model.add(billed(*do("a", "slow")))
    await r.submit(run_id="resumed")
    await r.until_started(tool, "slow")
    await spin()
    store = await kill(r)
    after = ScriptedModel(billed(Say("continued")), [Say("again"), Hold("never")])
    r = await start(tmp_path, after, store, **options)
    assert (await r.end("resumed")).resumes == 1
    await r.submit(run_id="interrupted")
    await after.wait_requests(2)
    await spin()
    await r.engine.close()
    store = r.store
    await store.open()

    facts = await facts_of(store)
    (child,) = [one for one in facts.values() if one.is_child]
    assert {run_id: (one.outcome, one.reason) for run_id, one in facts.items() if one is not child} == {
        "tools": ("completed", ""),
        "parent": ("completed", ""),
        "host": ("completed", ""),
        "joins": ("completed", ""),
        "removed": ("cancelled", "removed"),
        "late": ("failed", "model_failed"),
        "stopped": ("cancelled", "cancelled"),
        "waiting": ("cancelled", "cancelled_in_queue"),
        "resumed": ("completed", ""),
        "interrupted": ("interrupted", "shutdown"),
    }
    two, one = Usage(20, 2, 1.0), Usage(10, 1, 0.5)
    expected = {"tools": two, "parent": two, child.run_id: one, "host": two, "resumed": two}
    assert {run_id: row.usage for run_id, row in facts.items() if row.usage != Usage()} == expected
    assert facts["tools"].tools == (ToolUse("bash", 2, 1),)
    assert facts["parent"].tools == (ToolUse("agent", 1),)
    assert facts["resumed"].tools == (ToolUse("bash", 2, 1),), "one result before the crash, one cut off by it"
    assert (facts["joins"].is_folded, facts["joins"].model) == (True, "scripted/scripted")
    assert (facts["removed"].started_at, facts["removed"].model) == (None, "")
    late = facts["late"]
    assert late.started_at is not None
    assert late.started_at - late.accepted_at == 5_000
    assert facts["host"].first_token_at is not None
    assert facts["late"].first_token_at is None
    assert facts["resumed"].first_token_at == facts["resumed"].started_at, "before the crash"


async def test_result_of_uncertain_append_is_counted_once(tmp_path: Path) -> None:
    store = OutageStore()
    store.after = has_results
    async with rig(tmp_path, ScriptedModel(do("a"), "done"), store, tools=(ActingTool(),)) as r:
        await r.end(await r.submit(run_id="x"))
        assert (await facts_of(r.store))["x"].tools == (ToolUse("bash", 1),)


async def test_statistics_cover_the_chosen_range(tmp_path: Path) -> None:
    async with rig(tmp_path, ScriptedModel(*["answer"] * 3)) as r:
        for run_id in ("a", "b", "c"):
            await r.end(await r.submit(run_id=run_id))
            r.clock.advance(86_400)
        now = r.clock.now_ms()
        report = await r.engine.reports.statistics("day")
        assert (report.since, report.until) == (max(0, now + 1 - 30 * 86_400_000), now + 1)
        assert (report.total.runs, [group.runs for group in report.groups]) == (3, [1, 1, 1])
        recent = await r.engine.reports.statistics("workspace", now - 2 * 86_400_000, now, r.workspace.id)
        assert (recent.total.runs, recent.workspaces) == (2, {r.workspace.id: str(tmp_path)})
        assert (await r.engine.reports.statistics("model", workspace_id="unknown")).groups == []
        with pytest.raises(WrongType, match="more than 1000 days"):
            await r.engine.reports.statistics("day", 0, 2**53)


async def test_timeline_has_runs_steps_calls_and_cancels(tmp_path: Path) -> None:
    tool = ActingTool(slow=never)
    model = ScriptedModel(do("a"), "done", do("slow"), "next")
    async with rig(tmp_path, model, tools=(tool,)) as r:
        await r.end(await r.submit("first", "a"))
        await r.submit("second", "b")
        await r.until_started(tool, "slow")
        for run_id in ("c", "d"):
            await r.submit(run_id=run_id)
        await r.engine.move_run(r.workspace, "d", "c")
        moved_at = r.clock.now_ms()
        r.clock.advance(1)
        await r.engine.cancel(r.workspace, r.session)
        cancelled_at = r.clock.now_ms()
        await r.end("b")
        r.clock.advance(1)
        await r.store.trim(r.workspace.id, 0)
        await r.end(await r.submit(run_id="e"))

        page = await r.engine.reports.timeline(r.workspace, r.session, EVERY_RUN, 10)
        runs = {item.run.run_id: item for item in page.runs}
        assert ([item.run.seq for item in page.runs], page.next_before) == ([1, 2, 3, 4, 5], None)
        assert runs["b"].run.trace == (TraceEntry("cancel", cancelled_at, 4),), "it covers all but the last Run"
        assert runs["d"].run.trace == (TraceEntry("move", moved_at, before="c"),)
        assert [len(runs[name].items.steps) for name in "abcde"] == [2, 1, 0, 0, 1]
        first, cut = runs["a"].items.steps[0].calls[0], runs["b"].items.steps[0].calls[0]
        assert (first.title, first.is_error, first.end) == ("a", False, "returned")
        assert (cut.started_at, cut.ended_at, cut.end) == (moved_at, cancelled_at, "cut_off")

        last = await r.engine.reports.timeline(r.workspace, r.session, EVERY_RUN, 2)
        assert ([item.run.seq for item in last.runs], last.next_before) == ([4, 5], 4)
        rest = await r.engine.reports.timeline(r.workspace, r.session, RunSpan(before_seq=4), 3)
        assert ([item.run.seq for item in rest.runs], rest.next_before) == ([1, 2, 3], None)
        later = RunSpan(since=cancelled_at + 1)
        assert [item.run.seq for item in (await r.engine.reports.timeline(r.workspace, r.session, later, 9)).runs] == [
            5
        ]


async def test_page_of_a_timeline_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "PAGE_STEPS_AND_CALLS", 3)
    monkeypatch.setattr(reports, "MESSAGES_PAGE", 1)
    replies: list[Reply] = [do("a"), "done"] * 3
    async with rig(tmp_path, ScriptedModel(*replies), tools=(ActingTool(),)) as r:
        for run_id in ("a", "b", "c"):
            await r.end(await r.submit(run_id=run_id))
        seqs, before = [], EVERY_RUN.before_seq
        while True:
            page = await r.engine.reports.timeline(r.workspace, r.session, RunSpan(before), 100)
            seqs.append([(item.run.seq, item.items.count) for item in page.runs])
            if page.next_before is None:
                break
            before = page.next_before
        assert seqs == [[(3, 3)], [(2, 3)], [(1, 3)]]
        monkeypatch.setattr(reports, "PAGE_STEPS_AND_CALLS", 9)
        monkeypatch.setattr(reports, "BYTES_MAX", 1)
        page = await r.engine.reports.timeline(r.workspace, r.session, EVERY_RUN, 100)
        assert ([item.run.seq for item in page.runs], page.next_before) == ([3], 3)


async def test_live_lanes_of_the_server(tmp_path: Path) -> None:
    model = ScriptedModel([Say("half"), Hold("go")], do("push", ask=True))
    async with rig(tmp_path, model, tools=(ActingTool(),)) as r:
        assert list(r.engine.reports.live_lanes()) == []
        await r.submit(run_id="a")
        await model.wait_requests(1)
        await r.submit(run_id="b")
        (lane,) = r.engine.reports.live_lanes()
        assert (lane.session.id, lane.active.run_id, lane.queued, lane.folded) == (r.session, "a", 1, 0)
        assert (lane.asks, lane.asked_at, lane.workspace.path) == (0, None, str(tmp_path))
        assert list(r.engine.reports.live_lanes(r.session)) == []
        model.release("go")
        await r.end("a")
        (ask,) = await r.until_asked()
        (lane,) = r.engine.reports.live_lanes()
        assert (lane.active.run_id, lane.active.steps, lane.asks, lane.asked_at) == ("b", 1, 1, ask.asked_at)
        await r.engine.cancel(r.workspace, r.session)
        await r.end("b")
        assert list(r.engine.reports.live_lanes()) == []
