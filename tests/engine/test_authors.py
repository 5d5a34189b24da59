"""Users: their Runs and cancels have authors, share the queue, and are audited."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kedge.core.commands import WhenBusy
from kedge.core.records import Prompt, RunOptions, RunRecord
from kedge.errors import QueueFull, RunIdReused, TooManyRuns
from kedge.testing.scripted import Call, Hold, ScriptedModel
from kedge.tools.agent import AgentTool
from tests.engine.rig import CLIENT, ActingTool, OutageStore, Rig, do, kill, rig, start


async def submit(
    r: Rig, author: str, run_id: str, when_busy: WhenBusy = "queue", session: str = "", prompt: str = "hello"
) -> RunRecord:
    session_id = session or r.session
    return await r.engine.submit(r.workspace, session_id, Prompt(prompt), RunOptions(), run_id, when_busy, (), author)


async def queue_of(r: Rig) -> list[tuple[str, str]]:
    runs = [run for run in await r.engine.runs(r.workspace, r.session, 100) if run.state == "queued"]
    return [(run.run_id, run.author) for run in sorted(runs, key=lambda run: run.queue_order)]


def audited(r: Rig) -> list[tuple[str, str, str, str]]:
    return [(entry.author, entry.action, entry.run_id, entry.detail) for entry in r.store.data.audit.values()]


async def test_turns_survive_a_crash(tmp_path: Path) -> None:
    r = await start(tmp_path, ScriptedModel([Hold("never")]))
    for author, run_id in (("ann", "a"), ("ann", "b"), ("ann", "c"), ("bob", "d"), ("", "e")):
        await submit(r, author, run_id)
    order = [("b", "ann"), ("d", "bob"), ("e", ""), ("c", "ann")]
    assert await queue_of(r) == order
    async with rig(tmp_path, ScriptedModel([Hold("never")]), await kill(r)) as r:
        assert await queue_of(r) == order
        await submit(r, "bob", "f")
        assert await queue_of(r) == [*order, ("f", "bob")]


async def test_repeated_prompt_keeps_its_first_author(tmp_path: Path) -> None:
    async with rig(tmp_path, ScriptedModel([Hold("never")])) as r:
        await submit(r, "ann", "a")
        assert (await submit(r, "bob", "a")).author == "ann"
        with pytest.raises(RunIdReused):
            await submit(r, "bob", "a", prompt="other")
        assert audited(r) == [("ann", "submit", "a", "queue")]


async def test_named_user_has_a_share_of_the_queue(tmp_path: Path) -> None:
    runs = {"queue_runs_per_user_max": 1}
    async with rig(tmp_path, ScriptedModel([Hold("never")]), runs=runs) as r:
        for author, run_id in (("", "a"), ("ann", "b"), ("", "c"), ("", "d")):
            await submit(r, author, run_id)
        with pytest.raises(QueueFull, match="User ann has 1 queued runs in this session"):
            await submit(r, "ann", "e")
        assert (await submit(r, "ann", "b")).run_id == "b"


async def test_named_user_has_a_number_of_live_runs(tmp_path: Path) -> None:
    server = {"live_runs_per_user_max": 2}
    async with rig(tmp_path, ScriptedModel([Hold("never")], [Hold("never")], [Hold("never")]), server=server) as r:
        others = [await r.engine.create_session(r.workspace, "") for _ in range(3)]
        await submit(r, "ann", "a")
        sent = [submit(r, "ann", f"b{number}", session=other.id) for number, other in enumerate(others)]
        results = await asyncio.gather(*sent, return_exceptions=True)
        assert sum(isinstance(result, TooManyRuns) for result in results) == 2, "also of requests at once"
        await r.engine.cancel(r.workspace, r.session)
        await r.end("a")
        assert (await submit(r, "ann", "c")).author == "ann"
        with pytest.raises(TooManyRuns, match="User ann may have 2 active and queued runs on this server"):
            await submit(r, "ann", "d", session=others[0].id)
        assert [(await submit(r, "ann", run_id)).run_id for run_id in ("c", "a")] == ["c", "a"], "repeated"
        for number in range(3):
            await submit(r, "", f"d{number}")


async def test_cancel_names_its_author(tmp_path: Path) -> None:
    async with rig(tmp_path, ScriptedModel([Hold("never")])) as r:
        for run_id in ("a", "b", "c"):
            await submit(r, "ann", run_id)
        await r.engine.cancel_run(r.workspace, "b", "bob")
        await r.engine.cancel(r.workspace, r.session, "cid")
        ends = [await r.end(run_id) for run_id in ("a", "b", "c")]
        assert [(run.author, run.cancelled_by) for run in ends] == [("ann", "cid"), ("ann", "bob"), ("ann", "cid")]
        assert ends[0].trace[0].author == "cid"
        assert audited(r)[3:] == [("bob", "cancel_run", "b", ""), ("cid", "cancel", "", "")]


async def test_pending_cancel_keeps_its_author(tmp_path: Path) -> None:
    store = OutageStore()
    async with rig(tmp_path, ScriptedModel([Hold("never")]), store) as r:
        await submit(r, "ann", "a")
        await r.model.wait_requests(1)
        store.out = True
        assert not (await r.engine.cancel(r.workspace, r.session, "bob")).is_recorded
        store.out = False
        assert (await r.end("a")).cancelled_by == "bob"
        assert audited(r)[1:] == [("bob", "cancel", "", "")]


async def test_interrupt_cancels_by_its_author(tmp_path: Path) -> None:
    async with rig(tmp_path, ScriptedModel([Hold("never")], "done")) as r:
        await submit(r, "ann", "a")
        await submit(r, "ann", "b")
        await submit(r, "bob", "c", "interrupt")
        assert [(await r.end(run_id)).cancelled_by for run_id in ("a", "b", "c")] == ["bob", "bob", ""]
        assert audited(r)[-1] == ("bob", "submit", "c", "interrupt")


async def test_actions_of_users_are_audited(tmp_path: Path) -> None:
    model = ScriptedModel(do("first", ask=True), do("second", ask=True), [Hold("never")])
    async with rig(tmp_path, model, tools=(ActingTool(),)) as r:
        await submit(r, "ann", "a", prompt="the secret")
        (ask,) = await r.until_asked()
        await r.engine.asks.answer(r.workspace, ask.id, "allow_session", author="bob")
        grants = await r.engine.asks.grants(r.workspace)
        assert [(grant.rule, grant.author) for grant in grants] == [("bash(first)", "bob")]
        assert (await r.engine.asks.ask(r.workspace, ask.id)).author == "bob"
        (ask,) = await r.until_asked()
        await r.engine.asks.answer(r.workspace, ask.id, "deny", "not now", author="ann")
        await r.engine.asks.answer(r.workspace, ask.id, "allow", author="bob")
        for run_id in ("b", "c"):
            await submit(r, "bob", run_id)
        await r.engine.edit_run(r.workspace, "b", Prompt("another secret"), author="ann")
        await r.engine.move_run(r.workspace, "c", "b", "ann")
        await r.engine.fold_run(r.workspace, "c", "ann")
        await r.engine.fold_run(r.workspace, "c", "ann")
        await r.engine.clear_queue(r.workspace, r.session, "ann")
        await r.engine.modes.switch(r.workspace, r.session, "edits", author="ann")
        await r.engine.modes.switch(r.workspace, r.session, "edits", author="bob")
        await r.engine.delete_session(r.workspace, r.session, "bob")
        assert audited(r) == [
            ("ann", "submit", "a", "queue"),
            ("bob", "answer", "a", "allow_session: bash(first)"),
            ("ann", "answer", "a", "deny"),
            ("bob", "submit", "b", "queue"),
            ("bob", "submit", "c", "queue"),
            ("ann", "edit_run", "b", ""),
            ("ann", "move_run", "c", "before b"),
            ("ann", "fold_run", "c", ""),
            ("ann", "clear_queue", "", ""),
            ("ann", "mode", "", "ask to edits"),
            ("bob", "cancel", "", ""),
            ("bob", "delete_session", "", ""),
        ]


async def test_child_runs_have_the_author_of_their_parent(tmp_path: Path) -> None:
    """They are not audited and not counted: the agent submits and cancels them."""
    agent = Call("agent", {"prompt": "look", "description": "look"})
    model, server = ScriptedModel([agent], [Hold("never")]), {"live_runs_per_user_max": 2}
    async with rig(tmp_path, model, tools=(AgentTool(),), has_users=lambda: True, server=server) as r:
        await submit(r, "ann", "a")
        await r.model.wait_requests(2)
        await submit(r, "ann", "b")
        await r.engine.cancel(r.workspace, r.session, "bob")
        await r.end("a")
        runs = r.store.data.runs.values()
        assert [(run.author, run.outcome) for run in runs] == [("ann", "cancelled")] * 3
        assert audited(r) == [("ann", "submit", run_id, "queue") for run_id in "ab"] + [("bob", "cancel", "", "")]


@pytest.mark.parametrize("has_users", [False, True])
async def test_owner_is_audited_if_there_are_users(tmp_path: Path, has_users: bool) -> None:
    async with rig(tmp_path, ScriptedModel("done", [Hold("never")]), has_users=lambda: has_users) as r:
        await r.end(await submit(r, "", "a"))
        await submit(r, "", "b")
        await r.engine.cancel(r.workspace, r.session)
        await r.end("b")
        expected = [("", "submit", "a", "queue"), ("", "submit", "b", "queue"), ("", "cancel", "", "")]
        assert audited(r) == (expected if has_users else [])


async def test_removed_workspaces_and_modes_of_prompts_are_audited(tmp_path: Path) -> None:
    async with rig(tmp_path, ScriptedModel("hello"), has_users=lambda: True) as r:
        run = await r.engine.submit(
            r.workspace, r.session, Prompt("hi"), RunOptions(mode="yolo"), "a", "queue", (), "bob"
        )
        await r.end(run)
        r.engine.workspaces.release(r.workspace.id, CLIENT)
        await r.engine.known_workspaces.remove(r.workspace.id, "bob")
        assert audited(r) == [("bob", "submit", "a", "queue, mode yolo"), ("bob", "remove_workspace", "", "")]
