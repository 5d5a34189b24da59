"""Approvals and questions during failures and races: uncertain appends, concurrent answers, cancels and ends."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from kedge.core.approvals import BY_RULE, Answer, Ask, Grant
from kedge.core.modes import Mode
from kedge.core.transcript import ToolResult
from kedge.errors import AskWithdrawn, StoreUnavailable
from kedge.store.base import Write
from kedge.testing.scripted import Call, Hold, ScriptedModel
from kedge.tools.base import ToolContext
from kedge.tools.question import QuestionTool
from kedge.tools.view import ViewTool
from tests.engine.rig import ActingTool, OutageStore, Rig, do, kill, never, no_asyncio_errors, rig, spin, start
from tests.engine.test_feed import read_all, reader

SWITCHED: tuple[Mode, ...] = ("yolo", "ask")
ASK = Call("question", {"questions": [{"question": "Which?"}]})


def asks(write: Write) -> bool:
    return any(ask.state == "pending" for ask in write.asks)


def answers(write: Write) -> bool:
    return any(ask.state == "answered" for ask in write.asks)


def withdraws(write: Write) -> bool:
    return any(ask.state == "withdrawn" for ask in write.asks)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.usefixtures("one_attempt")
async def test_uncertain_ask_ends_the_run_and_is_not_pending(tmp_path: Path, when: str) -> None:
    store, tool = OutageStore(), ActingTool()
    async with (
        no_asyncio_errors(),
        rig(tmp_path, ScriptedModel(do("a", ask=True)), store, tools=(tool,)) as r,
    ):
        setattr(store, when, asks)
        ended = await r.end(await r.submit())
        assert (ended.outcome, ended.reason) == ("failed", "store_unavailable")
        assert tool.started == []
        assert await r.store.asks(r.workspace.id) == []


@pytest.mark.parametrize("when", ["before", "after"])
async def test_uncertain_answer_can_be_retried_and_call_runs_once(tmp_path: Path, when: str) -> None:
    store, tool = OutageStore(), ActingTool()
    async with (
        no_asyncio_errors(),
        rig(tmp_path, ScriptedModel(do("a", ask=True), "ok"), store, tools=(tool,)) as r,
    ):
        run = await r.submit()
        (ask,) = await r.until_asked()
        setattr(store, when, answers)
        with pytest.raises(StoreUnavailable):
            await r.engine.asks.answer(r.workspace, ask.id, "allow")
        if when == "before":
            assert (await r.engine.asks.answer(r.workspace, ask.id, "allow")).first
        assert (await r.end(run)).text == "ok"
        assert tool.started == ["a"]
        await r.assert_sound()


async def test_answer_stored_despite_an_error_wins_over_a_later_one(tmp_path: Path) -> None:
    store, tool = OutageStore(), ActingTool()
    async with rig(tmp_path, ScriptedModel(do("a", ask=True), "ok"), store, tools=(tool,)) as r:
        run = await r.submit()
        (ask,) = await r.until_asked()
        store.after = answers
        with pytest.raises(StoreUnavailable):
            await r.engine.asks.answer(r.workspace, ask.id, "deny")
        try:
            again = await r.engine.asks.answer(r.workspace, ask.id, "allow")
        except AskWithdrawn:
            pass  # the Run has ended
        else:
            assert (again.first, again.ask.answer) == (False, "deny")
        await r.end(run)
        assert tool.started == []


async def test_one_concurrent_answer_wins_and_all_callers_see_it(tmp_path: Path) -> None:
    tool = ActingTool()
    async with rig(tmp_path, ScriptedModel(do("a", ask=True), [Hold("k")]), tools=(tool,)) as r:
        run = await r.submit()
        (ask,) = await r.until_asked()
        answers_given: list[Answer] = ["allow", "deny", "allow_session", "allow_always"] * 3
        answer = r.engine.asks.answer
        results = await asyncio.gather(
            *(answer(r.workspace, ask.id, one, by=f"c{number}") for number, one in enumerate(answers_given))
        )
        (first,) = [answered for answered in results if answered.first]
        assert {answered.ask for answered in results} == {first.ask}
        grants = await r.engine.asks.grants(r.workspace)
        assert len(grants) == (first.ask.answer in ("allow_session", "allow_always"))
        r.model.release("k")
        await r.end(run)
        assert tool.started == (["a"] if first.ask.is_allowed else [])


@pytest.mark.parametrize("passes", range(0, 24, 2))
async def test_answer_racing_a_cancel_is_accepted_or_refused(tmp_path: Path, passes: int) -> None:
    tool = ActingTool()
    async with (
        no_asyncio_errors(),
        rig(tmp_path, ScriptedModel(do("a", ask=True), [Hold("never")]), tools=(tool,)) as r,
    ):
        run = await r.submit()
        (ask,) = await r.until_asked()
        answering = asyncio.create_task(r.engine.asks.answer(r.workspace, ask.id, "allow"))
        await spin(passes)
        await r.engine.cancel(r.workspace, r.session)
        (result,) = await asyncio.gather(answering, return_exceptions=True)
        assert (await r.end(run)).outcome == "cancelled"
        settled = await r.store.ask(r.workspace.id, ask.id)
        assert settled is not None
        if isinstance(result, BaseException):
            assert isinstance(result, AskWithdrawn)
            assert (settled.state, tool.started) == ("withdrawn", [])
        else:
            assert settled.state == "answered"
        await r.assert_sound()


@pytest.mark.parametrize("passes", range(0, 24, 2))
async def test_answer_racing_the_end_of_its_run_is_harmless(tmp_path: Path, passes: int) -> None:
    gate = asyncio.Event()

    async def fail_the_store(context: ToolContext) -> str:
        await gate.wait()
        raise StoreUnavailable("the disk is full")

    tool = ActingTool(breaks=fail_the_store)
    calls = [Call("bash", {"do": "a", "ask": True}), Call("bash", {"do": "breaks"})]
    async with no_asyncio_errors(), rig(tmp_path, ScriptedModel(calls), tools=(tool,)) as r:
        run = await r.submit()
        (ask,) = await r.until_asked()
        gate.set()
        await spin(passes)
        (result,) = await asyncio.gather(r.engine.asks.answer(r.workspace, ask.id, "allow"), return_exceptions=True)
        assert not isinstance(result, BaseException) or isinstance(result, AskWithdrawn)
        assert (await r.end(run)).reason == "store_unavailable"
        settled = await r.store.ask(r.workspace.id, ask.id)
        assert settled is not None
        assert settled.state == ("withdrawn" if isinstance(result, BaseException) else "answered")
        await r.assert_sound()


@pytest.mark.parametrize("passes", range(0, 40, 2))
async def test_cancel_during_the_append_of_an_ask_leaves_no_ask(tmp_path: Path, passes: int) -> None:
    store, tool = OutageStore(), ActingTool()
    async with (
        no_asyncio_errors(),
        rig(tmp_path, ScriptedModel(do("a", "b", ask=True)), store, tools=(tool,)) as r,
    ):
        store.held = asks
        run = await r.submit()
        await store.waiting.wait()
        cancelling = asyncio.create_task(r.engine.cancel(r.workspace, r.session))
        await spin(passes)
        store.gate.set()
        await cancelling
        assert (await r.end(run)).outcome == "cancelled"
        assert tool.started == []
        await r.assert_sound()


async def test_shutdown_withdraws_pending_asks_with_the_run(tmp_path: Path) -> None:
    tool = ActingTool()
    async with rig(tmp_path, ScriptedModel(do("a", "b", ask=True)), tools=(tool,)) as r:
        await r.submit(run_id="x")
        first, second = await r.until_asked(2)
        await r.engine.close()
        data = r.store.data
        assert data.runs[r.workspace.id, "x"].outcome == "interrupted"
        assert {data.asks[ask.id].state for ask in (first, second)} == {"withdrawn"}


async def test_shutdown_during_the_append_of_an_ask_completes(tmp_path: Path) -> None:
    store, tool = OutageStore(), ActingTool()
    async with rig(tmp_path, ScriptedModel(do("a", ask=True)), store, tools=(tool,)) as r:
        store.held = asks
        await r.submit(run_id="x")
        await store.waiting.wait()
        closing = asyncio.create_task(r.engine.close())
        await spin()
        store.gate.set()
        await closing
        assert r.store.data.runs[r.workspace.id, "x"].state == "ended"
        assert all(ask.state != "pending" for ask in r.store.data.asks.values())


@pytest.mark.parametrize("how", ["cancel", "cancel_run", "delete", "interrupt"])
async def test_stopping_a_run_withdraws_its_asks_in_the_same_append(tmp_path: Path, how: str) -> None:
    tool = ActingTool()
    model = ScriptedModel(do("a", ask=True), "next")
    async with no_asyncio_errors(), rig(tmp_path, model, tools=(tool,)) as r:
        await r.submit(run_id="x")
        await r.until_asked()
        match how:
            case "cancel":
                await r.engine.cancel(r.workspace, r.session)
            case "cancel_run":
                await r.engine.cancel_run(r.workspace, "x")
            case "delete":
                await r.engine.delete_session(r.workspace, r.session)
            case _:
                await r.submit(run_id="y", when_busy="interrupt")
        assert await r.store.asks(r.workspace.id) == []
        if how != "delete":
            assert (await r.end("x")).outcome == "cancelled"
            await r.assert_sound() if how != "interrupt" else await r.end("y")


async def test_denied_call_is_skipped_and_the_others_run(tmp_path: Path) -> None:
    tool = ActingTool()
    async with rig(tmp_path, ScriptedModel(do("a", "b", "c", ask=True), "ok"), tools=(tool,)) as r:
        run = await r.submit()
        for ask in await r.until_asked(3):
            answer: Answer = "deny" if ask.description == "b" else "allow"
            await r.engine.asks.answer(r.workspace, ask.id, answer, "no b please")
        assert (await r.end(run)).text == "ok"
        assert sorted(tool.started) == ["a", "c"]
        assert "no b please" in dict(await r.results())["call_1_1"]
        await r.assert_sound()


@pytest.mark.parametrize("when", ["before", "after"])
async def test_uncertain_question_answer_reaches_the_model_once(tmp_path: Path, when: str) -> None:
    store = OutageStore()
    async with no_asyncio_errors(), rig(tmp_path, ScriptedModel([ASK], "ok"), store, tools=(QuestionTool(),)) as r:
        run = await r.submit()
        (ask,) = await r.until_asked()
        setattr(store, when, answers)
        with pytest.raises(StoreUnavailable):
            await r.engine.asks.answer_question(r.workspace, ask.id, '["this"]')
        if when == "before":
            await r.engine.asks.answer_question(r.workspace, ask.id, '["this"]')
        assert (await r.end(run)).text == "ok"
        ((_, content),) = await r.results()
        assert "Answer: this" in content
        await r.assert_sound()


async def test_only_one_of_identical_answers_is_first(tmp_path: Path) -> None:
    async with rig(tmp_path, ScriptedModel(do("a", ask=True), "ok"), tools=(ActingTool(),)) as r:
        run = await r.submit()
        (ask,) = await r.until_asked()
        answer = r.engine.asks.answer
        results = await asyncio.gather(*(answer(r.workspace, ask.id, "allow") for _ in range(3)))
        assert sorted(answered.first for answered in results) == [False, False, True]
        await r.end(run)


async def test_question_withdrawn_by_a_cancel_has_no_answer(tmp_path: Path) -> None:
    async with no_asyncio_errors(), rig(tmp_path, ScriptedModel([ASK]), tools=(QuestionTool(),)) as r:
        run = await r.submit()
        await r.until_asked()
        await r.engine.cancel(r.workspace, r.session)
        assert (await r.end(run)).outcome == "cancelled"
        ((_, content),) = await r.results()
        assert "cut off" in content
        await r.assert_sound()


async def stubborn(context: ToolContext) -> str:
    """Ignore the first cancel, so that the end of the Run is not written yet."""
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        await asyncio.Event().wait()
    raise AssertionError


@pytest.mark.found(
    "issue 20",
    "a call whose approval was pending or denied when its Run ended was reported to have had an effect, perhaps; it is "
    "reported as not run, and only a call that began as cut off",
)
async def test_call_that_was_not_approved_is_reported_as_not_run(tmp_path: Path) -> None:
    calls = [Call("bash", {"do": "slow"}), Call("bash", {"do": "a", "ask": True})]
    expected = {"call_1_0": "cut_off", "call_1_1": "not_run"}
    # A cancel.
    tool = ActingTool(slow=never)
    async with rig(tmp_path, ScriptedModel(calls, "next"), tools=(tool,)) as r:
        run = await r.submit()
        await r.until_asked()
        await r.until_started(tool, "slow")
        await r.engine.cancel(r.workspace, r.session)
        assert (await r.end(run)).outcome == "cancelled"
        assert await r.call_ends() == expected
        await r.end(await r.submit("and now?"))
        (results,) = [one for one in r.model.requests[-1].request.messages if one.role == "tool"]
        effects = ["may or may not" in result.content for result in results.all(ToolResult)]
        assert effects == [True, False], "the model is sent the same"
        await r.assert_sound()
    # A denial.
    async with rig(tmp_path, ScriptedModel(do("a", ask=True), "next"), tools=(ActingTool(),)) as r:
        run = await r.submit()
        (ask,) = await r.until_asked()
        await r.engine.asks.answer(r.workspace, ask.id, "deny")
        await r.end(run)
        assert await r.call_ends() == {"call_1_0": "not_run"}
    # A crash after the cancel, which withdrew the approval.
    tool = ActingTool(slow=stubborn)
    r = await start(tmp_path, ScriptedModel(calls), tools=(tool,))
    await r.submit(run_id="x")
    await r.until_asked()
    await r.until_started(tool, "slow")
    await r.engine.cancel(r.workspace, r.session)
    async with rig(tmp_path, ScriptedModel(), await kill(r), tools=(tool,)) as new:
        assert (await new.end("x")).outcome == "cancelled"
        assert await new.call_ends() == expected
    # A crash while the approval was pending, and the Run is not resumed.
    r = await start(tmp_path, ScriptedModel(calls), tools=(ActingTool(slow=never),))
    await r.submit(run_id="x")
    await r.until_asked()
    async with rig(tmp_path, ScriptedModel(), await kill(r), runs={"on_crash": "end"}) as new:
        assert (await new.end("x")).outcome == "interrupted"
        assert await new.call_ends() == expected


async def test_uncertain_end_that_withdrew_an_unawaited_ask(tmp_path: Path) -> None:
    """The call was cancelled with its Run. The reloaded Lane shows its Ask as withdrawn."""
    store, gate = OutageStore(), asyncio.Event()

    async def fail_the_store(context: ToolContext) -> str:
        await gate.wait()
        raise StoreUnavailable("the disk is full")

    tool = ActingTool(breaks=fail_the_store)
    calls = [Call("bash", {"do": "a", "ask": True}), Call("bash", {"do": "breaks"})]
    async with no_asyncio_errors(), rig(tmp_path, ScriptedModel(calls, "next"), store, tools=(tool,)) as r:
        run = await r.submit(run_id="x")
        queued = await r.submit(run_id="y")
        await r.until_asked()
        store.after = withdraws
        gate.set()
        assert (await r.end(run)).reason == "store_unavailable"
        assert (await r.end(queued)).text == "next"
        assert await r.ends() == ["x", "y"]
        await r.assert_sound()


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.usefixtures("one_attempt")
async def test_uncertain_ask_leaves_no_waiter(tmp_path: Path, when: str) -> None:
    store = OutageStore()
    async with rig(tmp_path, ScriptedModel(do("a", ask=True)), store, tools=(ActingTool(),)) as r:
        setattr(store, when, asks)
        await r.end(await r.submit())
        await r.assert_sound()


@pytest.mark.found(
    "a review of the store: a link in a repository whose target is not valid UTF-8",
    "the Ask about it could be stored but not encoded; every stream of the workspace broke off at that event, "
    "permanently; its text is now sanitised, and events that cannot be encoded are skipped",
)
async def test_ask_about_a_non_utf8_path_is_streamed(tmp_path: Path) -> None:
    os.symlink(b"/tmp/\xff", bytes(tmp_path / "docs"))
    model = ScriptedModel([Call("view", {"path": "docs/x"})], "done")
    async with no_asyncio_errors(), rig(tmp_path, model, tools=(ViewTool(),)) as r:
        live = await reader(r, after=0)
        run = await r.submit()
        (ask,) = await r.until_asked()
        frames = {payload["id"]: payload for kind, payload, _ in await read_all(live) if kind == "permission_request"}
        assert "docs" in str(frames[ask.id]["params"]) or "tmp" in str(frames[ask.id]["params"])
        assert (await read_all(await reader(r, after=0)))[-1][0] == "permission_request"
        await r.engine.asks.answer(r.workspace, ask.id, "deny")
        await r.end(run)
        await r.assert_sound()


def by_rule(write: Write) -> list[str]:
    return [ask.id for ask in write.asks if ask.answered_by == BY_RULE]


async def test_grant_settles_what_it_permits_in_one_append(tmp_path: Path) -> None:
    store, tool = OutageStore(), ActingTool()
    written: list[list[str]] = []

    def is_held(write: Write) -> bool:
        if settled := by_rule(write):
            written.append(settled)
        return False

    store.held = is_held
    same = [Call("bash", {"do": "a", "ask": True})] * 3
    async with no_asyncio_errors(), rig(tmp_path, ScriptedModel(same, "ok"), store, tools=(tool,)) as r:
        run = await r.submit()
        first, *others = await r.until_asked(3)
        await r.engine.asks.answer(r.workspace, first.id, "allow_session")
        assert (await r.end(run)).text == "ok"
        assert written == [[ask.id for ask in others]]
        assert tool.started == ["a"] * 3
        await r.assert_sound()


class LateGrantsStore(OutageStore):
    """Returns the grants as they were some time ago, if `is_late`."""

    is_late = False

    async def grants(self, workspace_id: str) -> list[Grant]:
        grants = await super().grants(workspace_id)
        if self.is_late:
            self.waiting.set()
            await self.gate.wait()
        return grants


@asynccontextmanager
async def asked_elsewhere(
    directory: Path, tool: ActingTool, *commands: str
) -> AsyncIterator[tuple[Rig, LateGrantsStore, Ask]]:
    """A session whose next Run asks for `commands`, then for a command that another session has asked for: that Ask is
    the last value."""
    store = LateGrantsStore()
    model = ScriptedModel(*(do(command, ask=True) for command in ("a", *commands, "a")), "ok", "ok")
    async with no_asyncio_errors(), rig(directory, model, store, tools=(tool,)) as r:
        other = await r.engine.create_session(r.workspace, "other")
        await r.submit()
        (first,) = await r.until_asked()
        r.session = other.id
        yield r, store, first
        await r.assert_sound()


async def test_ask_is_settled_by_a_grant_that_is_older(tmp_path: Path) -> None:
    """The decision to ask was made without the grant, and the Ask is written after it. The Run has asked before: the
    task that settles its Asks has already seen the grant."""
    tool = ActingTool()
    async with asked_elsewhere(tmp_path, tool, "b") as (r, store, first):
        run = await r.submit()
        _, before = await r.until_asked(2)
        await spin()
        store.is_late = True
        await r.engine.asks.answer(r.workspace, before.id, "allow")
        await store.waiting.wait()
        await r.engine.asks.answer(r.workspace, first.id, "allow_always")
        await spin()
        store.gate.set()
        assert (await r.end(run)).text == "ok"
        assert sorted(tool.started) == ["a", "a", "b"]


async def test_answer_before_a_grant_wins(tmp_path: Path) -> None:
    """The answer is being written when the grant makes its call be decided again."""
    tool = ActingTool()
    async with asked_elsewhere(tmp_path, tool) as (r, store, first):
        run = await r.submit()
        _, ask = await r.until_asked(2)
        store.held = lambda write: any(one.answer == "deny" for one in write.asks)
        denying = asyncio.create_task(r.engine.asks.answer(r.workspace, ask.id, "deny"))
        await store.waiting.wait()
        await r.engine.asks.answer(r.workspace, first.id, "allow_always")
        await spin()
        store.gate.set()
        assert (await denying).first
        await r.end(run)
        assert tool.started == ["a"]


async def test_mode_that_is_switched_back_settles_nothing(tmp_path: Path) -> None:
    """The second switch is being written when the first one makes the call be decided again."""
    store, tool = OutageStore(), ActingTool()
    async with no_asyncio_errors(), rig(tmp_path, ScriptedModel(do("a", ask=True)), store, tools=(tool,)) as r:
        await r.submit()
        (ask,) = await r.until_asked()
        await r.engine.modes.switch(r.workspace, r.session, "plan")
        await spin()
        store.held = lambda write: any(session.mode == "ask" for session in write.sessions)
        switch = r.engine.modes.switch
        switching = asyncio.gather(*(switch(r.workspace, r.session, mode) for mode in SWITCHED))
        await store.waiting.wait()
        await spin()
        store.gate.set()
        await switching
        await spin()
        assert (await r.engine.asks.pending(r.workspace), tool.started) == ([ask], [])
