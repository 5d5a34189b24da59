"""SCENARIOS A4, A6, A7: concurrent submits, each race many times."""

from __future__ import annotations

import asyncio
import random

from tests.conformance import raw
from tests.conformance.harness import Endpoint, Json, Peer, unique
from tests.conformance.rounds import WORKERS, Ends, fence, lag, more_peers, play_rounds


async def test_a4_the_same_concurrent_prompt_of_two_clients_is_one_run(kedge: Peer, shared: tuple[str, str]) -> None:
    run_ids: list[str] = []
    async with more_peers(kedge, shared, 2) as peers, kedge.stream() as stream:
        ends = Ends(stream)

        async def play(session: str, chance: random.Random) -> None:
            run_id = unique("run")
            run_ids.append(run_id)

            async def submit(peer: Peer) -> Json:
                await lag(chance)
                return await peer.submit(session, "script: say once", run_id=run_id)

            first, second = await asyncio.gather(*map(submit, peers))
            assert first == second
            (end,) = await ends.until(run_id)
            assert (end["outcome"], end["text"]) == ("completed", "once")

        await play_rounds(kedge, play, tries=100)
        await fence(kedge, stream)
        assert {run_id: len(completes) for run_id, completes in ends.all().items()} == dict.fromkeys(run_ids, 1)


async def test_a6_of_concurrent_prompts_one_is_active(kedge: Peer, shared: tuple[str, str], endpoint: Endpoint) -> None:
    tags: dict[str, str] = {}
    async with more_peers(kedge, shared, 3) as peers, kedge.stream() as stream:
        ends = Ends(stream)

        async def play(session: str, chance: random.Random) -> None:
            tag = tags.setdefault(session, unique("tag"))

            async def submit(peer: Peer) -> Json:
                await lag(chance)
                return await peer.submit(session, f"script: tag {tag} | say hello", run_id=unique("run"))

            receipts = await asyncio.gather(*map(submit, peers))
            receipts.sort(key=lambda receipt: receipt["seq"])
            first = receipts[0]["seq"]
            assert [receipt["seq"] for receipt in receipts] == list(range(first, first + len(peers)))
            run_ids = [receipt["run_id"] for receipt in receipts]
            for end in await ends.until(*run_ids):
                assert (end["outcome"], end["text"]) == ("completed", "hello")
            started_at_once = [receipt["run_id"] for receipt in receipts if receipt["state"] == "active"]
            assert started_at_once[0] == run_ids[0], "the first accepted Run was active at once"

        await play_rounds(kedge, play)
        await fence(kedge, stream)
    assert all(len(completes) == 1 for completes in ends.all().values())
    assert len(tags) == WORKERS
    for session, tag in tags.items():
        assert endpoint.open_max(tag) == 1, "never two model streams at once"
        runs = sorted(await kedge.runs(session), key=lambda run: run["seq"])
        assert [run["seq"] for run in runs] == list(range(1, len(runs) + 1))
        in_order = [run["run_id"] for run in runs]
        mine = [frame for frame in stream.frames if frame.payload.get("session_id") == session]
        assert [frame.payload["run_id"] for frame in mine if frame.type == "run_complete"] == in_order
        users = [f.payload["run_id"] for f in mine if f.type == "message" and f.payload["role"] == "user"]
        assert users == in_order, "they started in the order of acceptance"


async def test_a6_a_burst_on_an_idle_session_starts_one_run(
    kedge: Peer, shared: tuple[str, str], endpoint: Endpoint
) -> None:
    """While the model is held, no Run ends, so all but the first must queue."""
    tag, key = unique("tag"), unique("key")
    session = await kedge.session()
    async with more_peers(kedge, shared, 20) as peers, kedge.stream() as stream:
        prompt = f"script: tag {tag} | hold {key} | say hello"
        receipts = await asyncio.gather(*(peer.submit(session, prompt, run_id=unique("run")) for peer in peers))
        assert sorted(receipt["state"] for receipt in receipts) == ["active", *["queued"] * 19]
        assert sorted(receipt["seq"] for receipt in receipts) == list(range(1, 21))
        states = [run["state"] for run in await kedge.runs(session)]
        assert sorted(states) == ["active", *["queued"] * 19]
        await endpoint.wait_open(tag)
        endpoint.release(key)
        await stream.until_complete(*(receipt["run_id"] for receipt in receipts))
    assert endpoint.open_max(tag) == 1
    assert len(endpoint.requests(tag)) == 20


async def test_a7_a_run_whose_receipt_is_read_late_has_one_end(kedge: Peer, shared: tuple[str, str]) -> None:
    """Half of the attempts read the 202 only after the end on the stream; the others at once."""
    url, token = shared
    early = 0
    async with kedge.stream() as stream:
        ends = Ends(stream)

        async def play(session: str, chance: random.Random) -> None:
            nonlocal early
            run_id = unique("run")
            fields = {"session_id": session, "prompt": "script: say quick", "run_id": run_id}
            async with raw.connect(url) as line:
                await line.send(raw.submit(token, kedge.workspace, fields))
                if chance.random() < 0.5:
                    (end,) = await ends.until(run_id)
                    early += 1
                    status, receipt = await line.reply()
                else:
                    await lag(chance)
                    (status, receipt), (end,) = await asyncio.gather(line.reply(), ends.until(run_id))
            assert (status, receipt["run_id"]) == (202, run_id)
            assert (end["outcome"], end["text"]) == ("completed", "quick")

        await play_rounds(kedge, play)
        await fence(kedge, stream)
    assert early > 0
    assert len(ends.all()) == 200
    assert all(len(completes) == 1 for completes in ends.all().values())
