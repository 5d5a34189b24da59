"""Retries of a Step remove the text of the failed attempt everywhere."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from kedge.agent import model_call as model_call
from kedge.core.records import Usage
from kedge.errors import ModelFailed
from kedge.store.base import Write
from kedge.testing.scripted import EndReply, Hold, Say
from tests.engine.rig import Fault, FaultyModel, OutageStore, Rig, kill, no_asyncio_errors, rig, spin, start

#: A provider error that allows an immediate retry.
BUSY = Fault(ModelFailed("busy", retryable=True, wait_s=0), "half an answer")


async def displayed_text(r: Rig, *, deltas: bool, until_run: str) -> str:
    """Return the text of the answer as displayed by a client that is connected from the start."""
    reader = await r.engine.workspaces.read_events(r.workspace, None, None, deltas=deltas)
    run = await r.submit(run_id=until_run)
    texts: dict[str, str] = {}
    ended = False
    while not ended:
        for line in (await reader.read(1) or b"").split(b"\n"):
            if not line.startswith(b"data: "):
                continue
            frame = json.loads(line[6:])
            kind, payload = frame["type"], frame["payload"].get("payload", frame["payload"])
            if kind == "message" and payload["role"] == "assistant":
                texts[payload["id"]] = "".join(
                    part["data"]["text"] for part in payload["parts"] if part["type"] == "text"
                )
            elif kind == "delta":
                texts[payload["message_id"]] = texts.get(payload["message_id"], "") + payload["text"]
            ended = ended or kind == "run_complete"
    reader.close()
    return texts[(await r.end(run)).message_id]


@pytest.mark.parametrize("deltas", [True, False])
async def test_readers_see_only_the_last_attempt(tmp_path: Path, deltas: bool) -> None:
    model = FaultyModel("the whole answer", faults=[BUSY, BUSY])
    async with rig(tmp_path, model) as r:
        assert await displayed_text(r, deltas=deltas, until_run="x") == "the whole answer"
        assert await r.transcript() == [("user", "hello", None), ("assistant", "the whole answer", "end_turn")]
        assert (await r.log_kinds()).count("RetryReported") == 2
        await r.assert_sound()


async def test_stored_text_of_a_failed_attempt_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_call, "CHECKPOINT_S", 0.0)
    model = FaultyModel([Say("new words"), Hold("never")], faults=[BUSY])
    r = await start(tmp_path, model)
    await r.submit(run_id="x")
    await r.model.wait_requests(1)
    while "new words" not in str(await r.store.messages(r.session, None, 10)):  # noqa: ASYNC110
        await asyncio.sleep(0)
    store = await kill(r)
    messages = await store.messages(r.session, None, 10)
    assert messages[-1].text == "new words"


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.usefixtures("one_attempt")
async def test_uncertain_removal_ends_the_run_with_a_sound_transcript(tmp_path: Path, when: str) -> None:
    def removes_text(write: Write) -> bool:
        return write.lane is None and any(message.role == "assistant" for message in write.messages)

    store = OutageStore()
    async with no_asyncio_errors(), rig(tmp_path, FaultyModel("x", faults=[BUSY]), store) as r:
        setattr(store, when, removes_text)
        assert (await r.end(await r.submit())).reason == "store_unavailable"
        await r.assert_sound()


async def test_cancel_during_the_backoff_takes_effect_at_once(tmp_path: Path) -> None:
    later = Fault(ModelFailed("busy", retryable=True, wait_s=100), "half")
    model = FaultyModel("never", faults=[later])
    async with rig(tmp_path, model) as r:
        run = await r.submit()
        while "RetryReported" not in await r.log_kinds():  # noqa: ASYNC110
            await asyncio.sleep(0)
        await r.engine.cancel(r.workspace, r.session)
        ended = await r.end(run)
        assert (ended.outcome, ended.text) == ("cancelled", "")
        assert model.requests == []
        await r.assert_sound()


async def test_excessive_retry_after_ends_the_run(tmp_path: Path) -> None:
    later = Fault(ModelFailed("come back tomorrow", retryable=True, wait_s=86_400), "half")
    async with rig(tmp_path, FaultyModel("never", faults=[later])) as r:
        ended = await r.end(await r.submit())
        assert (ended.outcome, ended.error, ended.text) == ("failed", "come back tomorrow", "half")


async def test_attempts_are_limited_and_the_last_error_is_reported(tmp_path: Path) -> None:
    model = FaultyModel("never", faults=[BUSY] * 3)
    async with rig(tmp_path, model, runs={"retries_max": 3}) as r:
        ended = await r.end(await r.submit())
        assert (ended.outcome, ended.error, len(model.refused)) == ("failed", "busy", 3)
        assert ended.steps == 1
        await r.assert_sound()


async def test_usage_is_that_of_the_successful_attempt(tmp_path: Path) -> None:
    model = FaultyModel([Say("ok"), EndReply(usage=Usage(5, 2))], faults=[BUSY, BUSY])
    async with rig(tmp_path, model) as r:
        assert (await r.end(await r.submit())).usage == Usage(5, 2)


async def test_cancel_during_removal_keeps_the_transcript_sound(tmp_path: Path) -> None:
    def removes_text(write: Write) -> bool:
        return write.lane is None and any(message.role == "assistant" for message in write.messages)

    store = OutageStore()
    async with rig(tmp_path, FaultyModel("next", faults=[BUSY]), store) as r:
        store.held = removes_text
        run = await r.submit(run_id="x")
        await store.waiting.wait()
        cancelling = asyncio.create_task(r.engine.cancel_run(r.workspace, "x"))
        await spin()
        store.gate.set()
        await cancelling
        assert (await r.end(run)).outcome == "cancelled"
        await r.assert_sound()
        assert (await r.end(await r.submit(run_id="y"))).text == "next"
