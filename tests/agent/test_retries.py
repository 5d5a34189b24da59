"""Another attempt at a Step: what was said by the failed one is taken back, everywhere."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from kedge.agent import model_call as asking
from kedge.core.records import Usage
from kedge.errors import ModelFailed
from kedge.store.base import Write
from kedge.testing.scripted import EndReply, Hold, Say
from tests.engine.rig import Outages, Rig, Trouble, TroubledModel, begin, killed, no_complaints, rig, spin

#: A provider that may be asked again at once.
BUSY = Trouble(ModelFailed("busy", retryable=True, wait_s=0), "half an answer")


async def shown(r: Rig, *, deltas: bool, until_run: str) -> str:
    """The text of the answer as a client that was there from the beginning has it on its screen."""
    reader = await r.engine.workspaces.read_events(r.workspace, None, None, deltas=deltas)
    run = await r.submit(run_id=until_run)
    texts: dict[str, str] = {}
    over = False
    while not over:
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
            over = over or kind == "run_complete"
    reader.close()
    return texts[(await r.end(run)).message_id]


@pytest.mark.parametrize("deltas", [True, False])
async def test_readers_see_only_the_last_attempt(tmp_path: Path, deltas: bool) -> None:
    model = TroubledModel("the whole answer", troubles=[BUSY, BUSY])
    async with rig(tmp_path, model) as r:
        assert await shown(r, deltas=deltas, until_run="x") == "the whole answer"
        assert await r.transcript() == [("user", "hello", None), ("assistant", "the whole answer", "end_turn")]
        assert (await r.log_kinds()).count("RetryReported") == 2
        await r.assert_sound()


async def test_stored_text_of_a_failed_attempt_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "CHECKPOINT_S", 0.0)
    model = TroubledModel([Say("new words"), Hold("never")], troubles=[BUSY])
    r = await begin(tmp_path, model)
    await r.submit(run_id="x")
    await r.model.wait_requests(1)
    while "new words" not in str(await r.store.messages(r.session, None, 10)):  # noqa: ASYNC110
        await asyncio.sleep(0)
    store = await killed(r)
    found = await store.messages(r.session, None, 10)
    assert found[-1].text == "new words"


@pytest.mark.parametrize("when", ["before", "after"])
async def test_uncertain_removal_ends_the_run_with_a_sound_transcript(tmp_path: Path, when: str) -> None:
    def takes_back(write: Write) -> bool:
        return write.lane is None and any(message.role == "assistant" for message in write.messages)

    store = Outages()
    async with no_complaints(), rig(tmp_path, TroubledModel("x", troubles=[BUSY]), store) as r:
        setattr(store, when, takes_back)
        assert (await r.end(await r.submit())).reason == "store_unavailable"
        await r.assert_sound()


async def test_cancel_during_the_backoff_takes_effect_at_once(tmp_path: Path) -> None:
    later = Trouble(ModelFailed("busy", retryable=True, wait_s=100), "half")
    model = TroubledModel("never", troubles=[later])
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
    later = Trouble(ModelFailed("come back tomorrow", retryable=True, wait_s=86_400), "half")
    async with rig(tmp_path, TroubledModel("never", troubles=[later])) as r:
        ended = await r.end(await r.submit())
        assert (ended.outcome, ended.error, ended.text) == ("failed", "come back tomorrow", "half")


async def test_attempts_are_limited_and_the_last_error_is_reported(tmp_path: Path) -> None:
    model = TroubledModel("never", troubles=[BUSY] * 3)
    async with rig(tmp_path, model, runs={"retries_max": 3}) as r:
        ended = await r.end(await r.submit())
        assert (ended.outcome, ended.error, len(model.refused)) == ("failed", "busy", 3)
        assert ended.steps == 1
        await r.assert_sound()


async def test_usage_is_that_of_the_successful_attempt(tmp_path: Path) -> None:
    model = TroubledModel([Say("ok"), EndReply(usage=Usage(5, 2))], troubles=[BUSY, BUSY])
    async with rig(tmp_path, model) as r:
        assert (await r.end(await r.submit())).usage == Usage(5, 2)


async def test_cancel_during_removal_keeps_the_transcript_sound(tmp_path: Path) -> None:
    def takes_back(write: Write) -> bool:
        return write.lane is None and any(message.role == "assistant" for message in write.messages)

    store = Outages()
    async with rig(tmp_path, TroubledModel("next", troubles=[BUSY]), store) as r:
        store.held = takes_back
        run = await r.submit(run_id="x")
        await store.waiting.wait()
        cancelling = asyncio.create_task(r.engine.cancel_run(r.workspace, "x"))
        await spin()
        store.gate.set()
        await cancelling
        assert (await r.end(run)).outcome == "cancelled"
        await r.assert_sound()
        assert (await r.end(await r.submit(run_id="y"))).text == "next"
