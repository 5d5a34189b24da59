"""SCENARIOS C8, C9: changes of the queue, and prompts that do not wait."""

from __future__ import annotations

import asyncio
import random

import httpx2
import pytest

from tests.conformance.harness import Endpoint, Json, Peer, unique
from tests.conformance.rounds import Aim, Ends, fence, more_peers, no_trace
from tests.conformance.test_c_queue import end_order, held_run, outcomes, queue_up, queued

# --- C8 --------------------------------------------------------------------------------------------------------------


async def test_c8_an_edited_prompt_is_seen_by_all_and_runs_as_edited(
    kedge: Peer, shared: tuple[str, str], endpoint: Endpoint
) -> None:
    session = await kedge.session()
    async with more_peers(kedge, shared, 1) as (other,), kedge.stream() as mine, other.stream() as theirs:
        a, _, key = await held_run(kedge, endpoint, session)
        b, c = await queue_up(kedge, session, "b", "c")
        edited = await other.call("PATCH", f"{kedge.at}/agent/runs/{b}", {"prompt": "script: say better"})
        assert (edited["prompt"], edited["state"]) == ("script: say better", "queued")
        await fence(kedge, mine, theirs)
        for stream in (mine, theirs):
            shown = [frame for frame in stream.of("run") if frame.payload["run_id"] == b]
            assert [(frame.change, frame.payload["prompt"]) for frame in shown] == [
                ("created", "script: say b"),
                ("updated", "script: say better"),
            ]
        assert await queued(kedge, session) == ["script: say better", "script: say c"]
        endpoint.release(key)
        ends = await mine.until_complete(a, b, c)
        assert outcomes(ends) == [("completed", "a done"), ("completed", "better"), ("completed", "c")]
        assert mine.of("run_complete") == (await theirs.until(lambda s: len(s.of("run_complete")) == 3 and s)).of(
            "run_complete"
        )
    users = [m["parts"][0]["data"]["text"] for m in await kedge.messages(session) if m["role"] == "user"]
    assert users[1:] == ["script: say better", "script: say c"]


async def test_c8_a_moved_prompt_is_seen_by_all_and_runs_in_order(
    kedge: Peer, shared: tuple[str, str], endpoint: Endpoint
) -> None:
    session = await kedge.session()
    async with more_peers(kedge, shared, 1) as (other,), kedge.stream() as mine, other.stream() as theirs:
        a, _, key = await held_run(kedge, endpoint, session)
        b, c, d, e = await queue_up(kedge, session, "b", "c", "d", "e")
        seen_before = len(mine.of("run"))
        for run_id, before in ((e, b), (b, None), (d, c)):
            await other.call("POST", f"{kedge.at}/agent/runs/{run_id}/move", {"before": before})
        assert await queued(kedge, session) == [f"script: say {word}" for word in "edcb"]
        await fence(kedge, mine, theirs)
        for stream in (mine, theirs):
            assert [frame.payload["run_id"] for frame in stream.of("run")[seen_before:]] == [e, b, d]
        endpoint.release(key)
        await mine.until_complete(a, b, c, d, e)
        assert end_order(mine) == [a, e, d, c, b]


async def test_c8_moving_a_prompt_to_its_own_position_is_a_no_op(kedge: Peer, endpoint: Endpoint) -> None:
    session = await kedge.session()
    _, _, key = await held_run(kedge, endpoint, session)
    b, c = await queue_up(kedge, session, "b", "c")
    async with no_trace(kedge, session):
        for run_id, before in ((b, c), (b, b), (c, None)):
            await kedge.call("POST", f"{kedge.at}/agent/runs/{run_id}/move", {"before": before})
    endpoint.release(key)
    await kedge.wait(c)


async def test_c8_a_removed_prompt_ends_cancelled_for_all(
    kedge: Peer, shared: tuple[str, str], endpoint: Endpoint
) -> None:
    session = await kedge.session()
    async with more_peers(kedge, shared, 1) as (other,), kedge.stream() as mine, other.stream() as theirs:
        a, _, key = await held_run(kedge, endpoint, session)
        b, c = await queue_up(kedge, session, "b", "c")
        await other.cancel_run(b)
        for stream in (mine, theirs):
            (end,) = await stream.until_complete(b)
            assert end["outcome"] == "cancelled"
        assert await queued(kedge, session) == ["script: say c"]
        endpoint.release(key)
        assert outcomes(await mine.until_complete(a, c)) == [("completed", "a done"), ("completed", "c")]


async def test_c8_clearing_the_queue_ends_only_queued_runs(
    kedge: Peer, shared: tuple[str, str], endpoint: Endpoint
) -> None:
    session, neighbour = await kedge.session(), await kedge.session()
    clear = f"{kedge.at}/agent/sessions/{session}/queue/clear"
    async with more_peers(kedge, shared, 1) as (other,), kedge.stream() as mine, other.stream() as theirs:
        a, _, key = await held_run(kedge, endpoint, session)
        next_door, _, other_key = await held_run(kedge, endpoint, neighbour)
        (beside,) = await queue_up(kedge, neighbour, "beside")
        gone = await queue_up(kedge, session, "b", "c")
        gone.append((await kedge.submit(session, "waits to fold"))["run_id"])
        reply = await other.call("POST", clear)
        assert [run["run_id"] for run in reply["covered"]] == gone
        assert {run["was"] for run in reply["covered"]} == {"queued"}
        for stream in (mine, theirs):
            assert {end["outcome"] for end in await stream.until_complete(*gone)} == {"cancelled"}
        assert (await kedge.run(a))["stopping"] is False
        assert (await other.call("POST", clear))["covered"] == []
        later = await queue_up(kedge, session, "later")
        endpoint.release(key)
        endpoint.release(other_key)
        ends = await mine.until_complete(a, *later, next_door, beside)
        assert outcomes(ends) == [("completed", word) for word in ("a done", "later", "a done", "beside")]
        await fence(kedge, mine, theirs)
        assert all(len(completes) == 1 for stream in (mine, theirs) for completes in Ends(stream).all().values())


async def test_c8_only_queued_prompts_can_be_changed(kedge: Peer, endpoint: Endpoint) -> None:
    session, elsewhere = await kedge.session(), await kedge.session()
    ended = (await kedge.submit(session, "script: say early"))["run_id"]
    await kedge.wait(ended)
    a, _, key = await held_run(kedge, endpoint, session)
    _, _, other_key = await held_run(kedge, endpoint, elsewhere)
    (b,) = await queue_up(kedge, session, "b")
    (stranger,) = await queue_up(kedge, elsewhere, "x")
    at = f"{kedge.at}/agent/runs"
    async with no_trace(kedge, session):
        for run_id in (a, ended):
            error = await kedge.call("PATCH", f"{at}/{run_id}", {"prompt": "other"}, expect=409)
            assert error["code"] == "run_not_queued"
            for body in ({"before": None}, {"before": b}):
                error = await kedge.call("POST", f"{at}/{run_id}/move", body, expect=409)
                assert error["code"] == "run_not_queued"
            error = await kedge.call("POST", f"{at}/{b}/move", {"before": run_id}, expect=409)
            assert error["code"] == "run_not_queued"
        await kedge.call("POST", f"{at}/{b}/move", {"before": stranger}, expect=409)
        await kedge.call("POST", f"{at}/{b}/move", {"before": "nobody"}, expect=404)
        await kedge.call("PATCH", f"{at}/nobody", {"prompt": "other"}, expect=404)
        await kedge.call("PATCH", f"{at}/{b}", {"prompt": " "}, expect=400)
    endpoint.release(key)
    endpoint.release(other_key)
    assert (await kedge.wait(b))["text"] == "b"
    await kedge.wait(stranger)


async def test_c8_changes_that_race_a_start_apply_or_are_refused(kedge: Peer, endpoint: Endpoint) -> None:
    """An edit, a move and a removal while the queue advances: 200 means it took effect, 409 that it was too late."""
    session = await kedge.session()
    editing, removing = Aim(), Aim(1000)  # the third in the queue starts that much later
    for number in range(40):
        chance = random.Random(number)
        a, _, key = await held_run(kedge, endpoint, session)
        b, c, d = await queue_up(kedge, session, "b", "c", "d")

        async def edit_it(run_id: str = b, chance: random.Random = chance) -> httpx2.Response:
            await editing.lag(chance)
            return await kedge.reply("PATCH", f"{kedge.at}/agent/runs/{run_id}", {"prompt": "script: say edited"})

        async def remove(run_id: str = d, chance: random.Random = chance) -> Json:
            await removing.lag(chance)
            return await kedge.cancel_run(run_id)

        async def release(key: str = key) -> None:
            for _ in range(20):  # so that some requests come before it
                await asyncio.sleep(0)
            endpoint.release(key)

        edit, removal, _ = await asyncio.gather(edit_it(), remove(), release())
        assert edit.status_code in (200, 409)
        editing.saw(was_first=edit.status_code == 200)
        removing.saw(was_first=bool(removal["covered"]))
        first, edited, last = [await kedge.wait(run_id) for run_id in (a, b, d)]
        assert first["outcome"] == "completed"
        assert edited["text"] == ("edited" if edit.status_code == 200 else "b")
        assert last["outcome"] == ("cancelled" if removal["covered"] else "completed")
        await kedge.wait(c)
    editing.check()
    removing.check()


# --- C9 --------------------------------------------------------------------------------------------------------------


async def test_c9_a_rejected_prompt_leaves_no_trace(kedge: Peer, endpoint: Endpoint) -> None:
    session, run_id = await kedge.session(), unique("run")
    a, _, key = await held_run(kedge, endpoint, session)
    async with no_trace(kedge, session):
        for fields in ({"run_id": run_id}, {}):
            error = await kedge.submit(session, "script: say now", when_busy="reject", **fields, expect=409)
            assert error["code"] == "lane_busy"
            assert a in error["message"]
        await kedge.run(run_id, expect=404)
    endpoint.release(key)
    await kedge.wait(a)
    receipt = await kedge.submit(session, "script: say now", when_busy="reject", run_id=run_id)
    assert (receipt["state"], receipt["seq"]) == ("active", 2), "no seq was used, and the id is still free"
    assert (await kedge.wait(run_id))["text"] == "now"


async def test_c9_an_interrupt_ends_and_starts_in_one_decision(kedge: Peer, endpoint: Endpoint) -> None:
    session = await kedge.session()
    async with kedge.stream() as stream:
        a, tag, _ = await held_run(kedge, endpoint, session)
        b, c = await queue_up(kedge, session, "b", "c")
        seen = len(stream.frames)
        receipt = await kedge.submit(session, "script: say now", when_busy="interrupt", run_id=unique("new"))
        new = receipt["run_id"]
        assert receipt["state"] == "queued", "accepted during the clean-up of the interrupted Run"
        ends = await stream.until_complete(a, b, c, new)
        assert outcomes(ends) == [("cancelled", "a"), ("cancelled", ""), ("cancelled", ""), ("completed", "now")]
        await endpoint.wait_open(tag, 0)
        decided = [(f.type, f.payload.get("run_id")) for f in stream.frames[seen:] if f.position is not None]
        dropped = [(kind, one) for one in (b, c) for kind in ("message", "message", "run", "run_complete")]
        assert decided[:10] == [("run", a), *dropped, ("run", new)]
        positions = stream.positions
        assert positions == list(range(positions[0], positions[0] + len(positions)))
        assert stream.of("agent_event") == []
        await fence(kedge, stream)
        assert all(len(completes) == 1 for completes in Ends(stream).all().values())
    users = [m["run_id"] for m in await kedge.messages(session) if m["role"] == "user"]
    assert users == [a, b, c, new]


async def test_c9_of_concurrent_interrupts_the_last_completes(kedge: Peer, endpoint: Endpoint) -> None:
    session = await kedge.session()
    async with kedge.stream() as stream:
        for _ in range(10):
            a, _, _ = await held_run(kedge, endpoint, session)
            prompt = "script: words 5 | say now"
            submits = (kedge.submit(session, prompt, when_busy="interrupt", run_id=unique("new")) for _ in range(5))
            receipts: list[Json] = sorted(await asyncio.gather(*submits), key=lambda receipt: receipt["seq"])
            run_ids = [receipt["run_id"] for receipt in receipts]
            first, *others, last = await stream.until_complete(a, *run_ids)
            assert first["outcome"] == "cancelled"
            assert last["outcome"] == "completed"
            # A Run in between may have ended before the next interrupt.
            assert {end["outcome"] for end in others} <= {"cancelled", "completed"}
        await fence(kedge, stream)
        assert all(len(completes) == 1 for completes in Ends(stream).all().values())


@pytest.mark.parametrize("when_busy", ["queue", "fold", "reject", "interrupt"])
async def test_c9_an_idle_session_starts_every_prompt_at_once(kedge: Peer, when_busy: str) -> None:
    receipt = await kedge.submit(await kedge.session(), "script: say now", when_busy=when_busy)
    assert receipt["state"] == "active"
    run = await kedge.wait(receipt["run_id"])
    assert (run["outcome"], run["text"]) == ("completed", "now")
