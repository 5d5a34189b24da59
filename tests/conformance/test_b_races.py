"""SCENARIOS B3, B4, B5, B13: a cancel against everything it can meet, each race many times."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

from tests.conformance.harness import Endpoint, Json, Peer, finish_of, text_of, unique
from tests.conformance.rounds import TRIES, Ends, fence, lag, more_peers, play_rounds


def covered(reply: Json) -> set[str]:
    return {run["run_id"] for run in reply["covered"]}


async def check_nothing_is_left(peer: Peer, sessions: set[str]) -> None:
    for session in sessions:
        assert "queued" not in [run["state"] for run in await peer.runs(session)]
        assert (await peer.call("GET", f"{peer.at}/sessions/{session}"))["is_busy"] is False
        assert all(run["state"] == "ended" for run in await peer.runs(session))


async def test_b3_one_cancel_covers_all_accepted_runs(kedge: Peer, shared: tuple[str, str], endpoint: Endpoint) -> None:
    """Two concurrent prompts, in half of the rounds after an active Run, and one cancel: neither runs later."""
    sessions: set[str] = set()
    not_started: set[str] = set()
    async with more_peers(kedge, shared, 2) as peers, kedge.stream() as stream:
        ends = Ends(stream)

        async def play(session: str, chance: random.Random) -> None:
            sessions.add(session)

            async def submit(peer: Peer, fields: Json) -> str:
                await lag(chance, 10)
                receipt = await peer.submit(session, "script: hold for-ever | say never", **fields)
                return str(receipt["run_id"])

            run_ids = [await submit(kedge, {"run_id": unique("run")})] if chance.random() < 0.5 else []
            # One has a run id, the other does not: it folds if it can.
            named, unnamed = submit(peers[0], {"run_id": unique("run")}), submit(peers[1], {})
            run_ids += await asyncio.gather(named, unnamed)
            reply = await peers[chance.randrange(2)].cancel(session)
            assert covered(reply) == set(run_ids)
            not_started.update(run["run_id"] for run in reply["covered"] if run["was"] == "queued")
            assert {end["outcome"] for end in await ends.until(*run_ids)} == {"cancelled"}

        await play_rounds(kedge, play)
        await fence(kedge, stream)
    assert all(len(completes) == 1 for completes in ends.all().values())
    assert stream.of("agent_event") == []
    await check_nothing_is_left(kedge, sessions)
    for session in sessions:
        answers = [message for message in await kedge.messages(session) if message["role"] == "assistant"]
        assert {(text_of(message), finish_of(message)) for message in answers} == {("", "canceled")}
        runs = await kedge.runs(session)
        assert {message["run_id"] for message in answers} == {run["run_id"] for run in runs if "folded_into" not in run}
        assert not {run["run_id"] for run in runs if "started_at" in run} & not_started, "no Run starts later"
    assert len(not_started) > 100


async def test_b4_a_cancel_spares_later_runs(kedge: Peer, shared: tuple[str, str]) -> None:
    """C races the cancel: Runs that the reply covers are cancelled, all others complete."""
    sessions: set[str] = set()
    fates: Counter[str] = Counter()
    async with more_peers(kedge, shared, 2) as peers, kedge.stream() as stream:
        ends = Ends(stream)

        async def play(session: str, chance: random.Random) -> None:
            sessions.add(session)
            a, b, c = unique("a"), unique("b"), unique("c")
            for run_id in (a, b):
                await kedge.submit(session, "script: hold for-ever | say never", run_id=run_id)

            async def cancel() -> Json:
                await lag(chance, 15)
                return await peers[0].cancel(session)

            async def submit() -> Json:
                await lag(chance, 15)
                return await peers[1].submit(session, "script: say through", run_id=c)

            in_order = chance.random() < 0.3
            if in_order:
                reply, receipt = await cancel(), await submit()
            else:
                reply, receipt = await asyncio.gather(cancel(), submit())
            assert {a, b} <= covered(reply)
            assert (c in covered(reply)) == (receipt["seq"] <= reply["mark"])
            first, second, third = await ends.until(a, b, c)
            assert (first["outcome"], second["outcome"]) == ("cancelled", "cancelled")
            if c in covered(reply):
                assert not in_order
                assert third["outcome"] == "cancelled"
            else:
                assert (third["outcome"], third["text"]) == ("completed", "through")
            fates["in order" if in_order else "covered" if c in covered(reply) else "spared"] += 1

        await play_rounds(kedge, play, tries=TRIES + 50)
        await fence(kedge, stream)
    assert fates["covered"] + fates["spared"] > 100, fates
    assert all(len(completes) == 1 for completes in ends.all().values())
    await check_nothing_is_left(kedge, sessions)


async def test_b5_one_cancel_ends_the_active_run_and_its_follow_up(
    kedge: Peer, shared: tuple[str, str], endpoint: Endpoint
) -> None:
    """At any moment of the first Run. The follow-up queues or waits to fold, and never produces text."""
    sessions: set[str] = set()
    follow_ups: set[str] = set()
    async with more_peers(kedge, shared, 1) as (other,), kedge.stream(deltas=1) as stream:
        ends = Ends(stream)

        async def play(session: str, chance: random.Random) -> None:
            sessions.add(session)
            active = unique("active")
            await kedge.submit(session, "script: words 20 | hold for-ever | say never", run_id=active)
            await lag(chance)
            fields: Json = {"run_id": unique("follow")} if chance.random() < 0.5 else {}
            follow_up = (await other.submit(session, "script: hold for-ever | say never", **fields))["run_id"]
            follow_ups.add(follow_up)
            await lag(chance)
            reply = await kedge.cancel(session)
            assert covered(reply) == {active, follow_up}
            first, second = await ends.until(active, follow_up)
            assert (first["outcome"], second["outcome"]) == ("cancelled", "cancelled")
            assert second["text"] == ""
            said = [f"w{number}" for number in range(1, 21)]
            assert first["text"].split() == said[: len(first["text"].split())], "a prefix of the model's text"

        await play_rounds(kedge, play)
        await fence(kedge, stream)
    assert all(len(completes) == 1 for completes in ends.all().values())
    await check_nothing_is_left(kedge, sessions)
    answers = [frame.payload for frame in stream.of("message") if frame.payload["role"] != "user"]
    assert {text_of(answer) for answer in answers if answer["run_id"] in follow_ups} == {""}


async def test_b13_a_cancel_that_races_the_end_has_one_outcome(
    kedge: Peer, shared: tuple[str, str], endpoint: Endpoint
) -> None:
    """The delay of the cancel grows after each one that was in time and shrinks after each that was not, so that it
    stays close to the end."""
    fates: Counter[str] = Counter()
    messages: dict[str, str] = {}
    async with more_peers(kedge, shared, 1) as (other,), kedge.stream() as mine, other.stream() as theirs:
        ends, seen_by_other = Ends(mine), Ends(theirs)
        delays: dict[str, float] = {}

        async def play(session: str, chance: random.Random) -> None:
            run_id = unique("run")
            await kedge.submit(session, "script: say quick", run_id=run_id)
            for _ in range(int(delays.setdefault(session, 10) * (0.5 + chance.random()))):
                await asyncio.sleep(0)
            reply = await (other.cancel(session) if chance.random() < 0.5 else other.cancel_run(run_id))
            in_time = covered(reply) == {run_id}
            assert in_time or not reply["covered"]
            delays[session] = delays[session] * 1.3 + 1 if in_time else delays[session] / 1.3
            (end,), (theirs_end,) = await ends.until(run_id), await seen_by_other.until(run_id)
            expected = "cancelled" if in_time else "completed"
            assert end["outcome"] == theirs_end["outcome"] == expected
            assert (end["outcome"] == "cancelled") is in_time
            run = await kedge.run(run_id)
            assert (run["outcome"], run["text"]) == (expected, end["text"])
            messages[end["message_id"]] = "canceled" if in_time else "end_turn"
            fates[expected] += 1

        await play_rounds(kedge, play, tries=TRIES + 50)
        await fence(kedge, mine, theirs)
    assert min(fates["cancelled"], fates["completed"]) > 10, f"the race did not occur: {fates}"
    assert all(len(found) == 1 for seen in (ends, seen_by_other) for found in seen.all().values())
    assert mine.of("agent_event") == []
    finishes = {frame.payload["id"]: finish_of(frame.payload) for frame in mine.of("message")}
    assert {message_id: finishes[message_id] for message_id in messages} == messages
    for session in {frame.payload["session_id"] for frame in mine.of("run_complete")}:
        stored = {m["id"]: finish_of(m) for m in await kedge.messages(session) if m["role"] == "assistant"}
        assert stored == {message_id: messages[message_id] for message_id in stored}
