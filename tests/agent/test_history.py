"""The history that a model receives, and its limits."""

from __future__ import annotations

from pathlib import Path

import pytest

from kedge.agent import history
from kedge.core.step import RECENT_CALLS, signatures
from kedge.core.transcript import Message, Text, ToolCall, ToolResult, for_model
from kedge.testing.scripted import ScriptedModel
from tests.engine.rig import FaultyStore, make_message, rig
from tests.pass_counter import PassCounter


async def test_model_receives_the_newest_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "HISTORY_MESSAGES_MAX", 4)
    async with rig(tmp_path, ScriptedModel(lambda request: "ok")) as r:
        for number in range(4):
            await r.end(await r.submit(f"prompt {number}", run_id=f"r{number}"))
        assert r.model.requests[-1].request.messages[-1].text == "prompt 3"


@pytest.mark.found(
    "attack round 2: the event loop",
    "a session of 10,000 messages whose Runs each end with a call took a second of the event loop at every Step, since "
    "the results of each were searched in all later messages; now only in those of its own Run",
)
@pytest.mark.timeout(20)
def test_history_of_many_unfinished_runs_takes_linear_time() -> None:
    history = [
        one
        for number in range(0, 150_000, 3)
        for one in (
            make_message(number, "user", Text("x"), run_id=f"r{number}"),
            make_message(number + 1, "assistant", ToolCall("c", "t", "{}"), run_id=f"r{number}"),
            make_message(number + 2, "tool", ToolResult("c", "t", f"result {number}"), run_id=f"r{number}"),
        )
    ]
    sent = for_model(history)
    assert len(sent) == len(history)
    assert sent[5].all(ToolResult)[0].content == "result 3"


@pytest.mark.found(
    "attack round 2: the event loop",
    "a resumed Run hashed all its calls and results on the event loop, to compare the last twenty; now only these are "
    "hashed",
)
@pytest.mark.timeout(20)
def test_only_the_latest_calls_are_hashed() -> None:
    arguments = "\x01" * 1_000_000
    calls = [ToolCall(f"c{number}", "t", arguments) for number in range(3000)]
    own = [
        make_message(1, "assistant", *calls),
        make_message(2, "tool", *(ToolResult(call.id, "t", "x") for call in calls)),
    ]
    assert len(signatures(own)) == RECENT_CALLS


class CountingStore(FaultyStore):
    """Counts the messages that it returns for histories."""

    returned = 0

    async def last_messages(self, session_id: str, limit: int, first: str = "") -> list[Message]:
        messages = await super().last_messages(session_id, limit, first)
        self.returned += len(messages)
        return messages


@pytest.mark.found(
    "fault 20",
    "each Run of a summarised session read its last 10,000 messages to use ten; it reads from the summary on",
)
async def test_run_reads_from_the_summary_on(tmp_path: Path) -> None:
    store = CountingStore()
    async with rig(tmp_path, ScriptedModel(lambda request: "ok"), store) as r:
        for number in range(20):
            await r.end(await r.submit(f"prompt {number}"))
        await r.end(await r.engine.summarize(r.workspace, r.session))
        store.returned = 0
        await r.end(await r.submit("the next prompt"))
        # The summary, the prompt, and the empty answer if it is read after the Step began.
        assert store.returned in (2, 3)
        sent = r.model.requests[-1].request.messages
        assert [message.role for message in sent] == ["user", "user"]
        assert sent[1].text == "the next prompt"


@pytest.mark.found(
    "fault 13",
    "each Step of a session of 10,000 messages whose Runs were cut off stopped the event loop for 600 ms; its history "
    "is built in one pass, and other tasks get a turn about every hundred messages",
)
async def test_other_tasks_run_while_a_history_is_built() -> None:
    messages = [make_message(number, "assistant", ToolCall("c", "t", "{}"), run_id="r") for number in range(10_000)]
    passes = PassCounter()
    assert await history.for_model_in_slices(messages) == for_model(messages)
    assert passes.stop() > 20_000 // 200


async def test_history_stays_within_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "HISTORY_MESSAGES_MAX", 3)
    async with rig(tmp_path, ScriptedModel("x")) as r:
        lane = await r.engine.workspaces.lane(r.workspace, r.session)
        messages = history.History(r.store, lane)
        await messages.read()
        for number in range(5):
            messages.put(Message(f"m{number}", r.session, "user", (Text("x"),), 0, 0))
        assert list(messages._messages) == ["m2", "m3", "m4"]
