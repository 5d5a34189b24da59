"""SCENARIOS C: queue and fold. Changes of the queue (C8, C9) are in test_c_changes.py."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conformance.harness import Endpoint, Json, Peer, Server, Stream, finish_of, outline, unique
from tests.conformance.rounds import Aim, Ends, fence, lag, play_rounds


async def held_run(peer: Peer, endpoint: Endpoint, session: str, then: str = "say done") -> tuple[str, str, str]:
    """Start a Run whose model is held, and return (run_id, tag, key)."""
    tag, key = unique("tag"), unique("key")
    receipt = await peer.submit(session, f"script: tag {tag} | say a | hold {key} | {then}", run_id=unique("a"))
    await endpoint.wait_open(tag)
    return receipt["run_id"], tag, key


async def queue_up(peer: Peer, session: str, *words: str) -> list[str]:
    """Queue one prompt per word, each with its own run id."""
    receipts = [await peer.submit(session, f"script: say {word}", run_id=unique(word)) for word in words]
    assert {receipt["state"] for receipt in receipts} == {"queued"}
    return [receipt["run_id"] for receipt in receipts]


async def queued(peer: Peer, session: str) -> list[str]:
    """Return the prompts of the queued Runs in order."""
    runs = [run for run in await peer.runs(session) if run["state"] == "queued"]
    return [run["prompt"] for run in sorted(runs, key=lambda run: run["queue_order"])]


def outcomes(ends: list[Json]) -> list[tuple[str, str]]:
    return [(end["outcome"], end["text"]) for end in ends]


def end_order(stream: Stream) -> list[str]:
    return [frame.payload["run_id"] for frame in stream.of("run_complete")]


# --- C1 --------------------------------------------------------------------------------------------------------------


async def test_c1_prompts_with_run_ids_run_one_after_the_other(kedge: Peer, endpoint: Endpoint) -> None:
    session = await kedge.session()
    async with kedge.stream() as stream:
        a, _, key = await held_run(kedge, endpoint, session)
        b, c = await queue_up(kedge, session, "b", "c")
        assert await queued(kedge, session) == ["script: say b", "script: say c"]
        assert [run["state"] for run in sorted(await kedge.runs(session), key=lambda run: run["seq"])] == [
            "active",
            "queued",
            "queued",
        ]
        endpoint.release(key)
        ends = await stream.until_complete(a, b, c)
        assert outcomes(ends) == [("completed", "a done"), ("completed", "b"), ("completed", "c")]
        assert end_order(stream) == [a, b, c]
        await fence(kedge, stream)
        assert all(len(completes) == 1 for completes in Ends(stream).all().values())
    messages = await kedge.messages(session)
    assert [(m["run_id"], m["role"]) for m in messages] == [
        (r, role) for r in (a, b, c) for role in ("user", "assistant")
    ]
    assert [end["message_id"] for end in ends] == [m["id"] for m in messages if m["role"] == "assistant"]
    assert "folded_into" not in ends[1]


# --- C2 --------------------------------------------------------------------------------------------------------------


async def test_c2_a_prompt_without_a_run_id_folds_at_the_next_step(kedge: Peer, endpoint: Endpoint) -> None:
    session = await kedge.session()
    async with kedge.stream() as stream:
        a, tag, key = await held_run(kedge, endpoint, session, then="tool nothing {} | say b")
        folding = await kedge.submit(session, "and mind the gap")
        assert folding["state"] == "queued"
        endpoint.release(key)
        host, joined = await stream.until_complete(a, folding["run_id"])
        assert (host["outcome"], host["text"]) == ("completed", "b")
        assert "folded_into" not in host
        assert (joined["outcome"], joined["folded_into"]) == ("completed", a)
        assert (joined["text"], joined["message_id"]) == (host["text"], host["message_id"])
        assert joined["usage"] == {"input_tokens": 0, "output_tokens": 0, "cost_usd": 0.0}, "counted once, for the host"
        await fence(kedge, stream)
        assert all(len(completes) == 1 for completes in Ends(stream).all().values())
        reported = [f.payload for f in stream.of("run") if f.payload["run_id"] == folding["run_id"]]
        assert [run.get("folded_into") for run in reported] == [None, a, a], "accepted, folded, ended"
    first, second = endpoint.requests(tag)
    assert "and mind the gap" not in str(first.messages)
    assert [m["role"] for m in second.messages][-4:] == ["user", "assistant", "tool", "user"]
    assert second.text == "and mind the gap"
    roles = [(role, text) for role, text, _ in outline(await kedge.messages(session))]
    assert [role for role, _ in roles] == ["user", "assistant", "tool", "user", "assistant"]
    assert roles[3] == ("user", "and mind the gap")
    run = await kedge.run(folding["run_id"])
    assert (run["outcome"], run["folded_into"], run["prompt"]) == ("completed", a, "and mind the gap")


async def test_c2_prompts_fold_in_order_before_the_queue(kedge: Peer, endpoint: Endpoint) -> None:
    session = await kedge.session()
    async with kedge.stream() as stream:
        a, tag, key = await held_run(kedge, endpoint, session, then="tool nothing {} | say b")
        (own,) = await queue_up(kedge, session, "own")
        folds = [(await kedge.submit(session, f"also {number}"))["run_id"] for number in range(3)]
        by_wish = (await kedge.submit(session, "also this", run_id=unique("r"), when_busy="fold"))["run_id"]
        endpoint.release(key)
        ends = await stream.until_complete(a, *folds, by_wish, own)
        assert [end.get("folded_into") for end in ends] == [None, a, a, a, a, None]
        assert outcomes(ends)[-1] == ("completed", "own")
        assert end_order(stream)[-1] == own
    said = [m["content"] for m in endpoint.requests(tag)[1].messages if m["role"] == "user"]
    assert said[1:] == ["also 0", "also 1", "also 2", "also this"]


async def test_c2_a_fold_without_a_further_step_becomes_a_run(kedge: Peer, endpoint: Endpoint) -> None:
    session = await kedge.session()
    async with kedge.stream() as stream:
        a, tag, key = await held_run(kedge, endpoint, session)
        (before,) = await queue_up(kedge, session, "before")
        folding = (await kedge.submit(session, "script: say alone"))["run_id"]
        (behind,) = await queue_up(kedge, session, "behind")
        endpoint.release(key)
        ends = await stream.until_complete(a, before, folding, behind)
        assert outcomes(ends) == [("completed", word) for word in ("a done", "before", "alone", "behind")]
        assert all("folded_into" not in end for end in ends)
        assert end_order(stream) == [a, before, folding, behind], "at its position in the queue"
    assert len(endpoint.requests(tag)) == 1


async def test_c2_a_prompt_to_an_idle_session_is_a_run(kedge: Peer) -> None:
    receipt = await kedge.submit(await kedge.session(), "script: say alone", when_busy="fold")
    assert receipt["state"] == "active"
    assert (await kedge.wait(receipt["run_id"]))["text"] == "alone"


async def test_c2_a_folded_run_ends_with_its_host(kedge: Peer, endpoint: Endpoint) -> None:
    second = unique("key")
    session = await kedge.session()
    async with kedge.stream() as stream:
        a, tag, key = await held_run(kedge, endpoint, session, then=f"tool nothing {{}} | hold {second} | say b")
        folding = (await kedge.submit(session, "join in"))["run_id"]
        endpoint.release(key)
        await endpoint.wait_requests(tag, 2)
        error = await kedge.cancel_run(folding, expect=409)
        assert error["code"] == "run_is_folded"
        assert a in error["message"], "it names the host"
        reply = await kedge.cancel_run(a)
        assert {run["run_id"]: run["was"] for run in reply["covered"]} == {a: "active", folding: "folded"}
        ends = await stream.until_complete(a, folding)
        assert [end["outcome"] for end in ends] == ["cancelled", "cancelled"]
        assert ends[1]["folded_into"] == a


# --- C3 --------------------------------------------------------------------------------------------------------------


async def test_c3_a_cancel_drops_queued_runs_and_spares_later_ones(kedge: Peer, endpoint: Endpoint) -> None:
    session = await kedge.session()
    async with kedge.stream() as stream:
        a, _, _ = await held_run(kedge, endpoint, session)
        dropped = await queue_up(kedge, session, "b", "c")
        folding = (await kedge.submit(session, "waits to fold"))["run_id"]
        reply = await kedge.cancel(session)
        assert {run["run_id"]: run["was"] for run in reply["covered"]} == {
            a: "active",
            **dict.fromkeys([*dropped, folding], "queued"),
        }
        later = (await kedge.submit(session, "script: say later", run_id=unique("later")))["run_id"]
        ends = await stream.until_complete(a, *dropped, folding, later)
        assert outcomes(ends) == [("cancelled", "a"), *[("cancelled", "")] * 3, ("completed", "later")]
        await fence(kedge, stream)
        assert all(len(completes) == 1 for completes in Ends(stream).all().values())
        shown = [f.payload["run_id"] for f in stream.of("message")]
        assert [shown.count(run_id) for run_id in [*dropped, folding]] == [2] * 3
    messages = await kedge.messages(session)
    expected = [a, a, *(run_id for run_id in [*dropped, folding] for _ in range(2)), later, later]
    assert [m["run_id"] for m in messages] == expected
    assert [finish_of(m) for m in messages[1:8:2]] == ["canceled"] * 4
    assert (await kedge.run(dropped[0]))["prompt"] == "script: say b"


# --- C4 --------------------------------------------------------------------------------------------------------------


async def test_c4_a_run_is_reported_before_the_next_one_streams(kedge: Peer, endpoint: Endpoint) -> None:
    hold = unique("key")
    session = await kedge.session()
    async with kedge.stream(deltas=1) as stream:
        a, _, key = await held_run(kedge, endpoint, session)
        b = (await kedge.submit(session, f"script: say b | hold {hold}", run_id=unique("b")))["run_id"]
        (c,) = await queue_up(kedge, session, "c")
        endpoint.release(key)
        await stream.until_complete(a)
        assert (await kedge.run(b))["state"] == "active", "it is not withheld until later Runs end"
        assert end_order(stream) == [a]
        endpoint.release(hold)
        await stream.until_complete(b, c)
        kinds = [(frame.type, frame.payload.get("run_id")) for frame in stream.frames]
        for one, following in ((a, b), (b, c)):
            end = kinds.index(("run_complete", one))
            assert ("message", following) not in kinds[:end]
            assert ("message", one) not in kinds[end:], "it comes after the Run's last message"
        assert end_order(stream) == [a, b, c]


# --- C5 --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("then", ["fail 400 no such thing", "fail 401 who are you", "cut"])
async def test_c5_the_queue_continues_after_a_failed_run(kedge: Peer, endpoint: Endpoint, then: str) -> None:
    session = await kedge.session()
    async with kedge.stream() as stream:
        a, _, key = await held_run(kedge, endpoint, session, then=then)
        b, c = await queue_up(kedge, session, "b", "c")
        endpoint.release(key)
        failed, *others = await stream.until_complete(a, b, c)
        assert failed["outcome"] == "failed"
        assert failed["error"]
        assert outcomes(others) == [("completed", "b"), ("completed", "c")]
        errors = [frame.payload for frame in stream.of("agent_event") if frame.payload["type"] == "error"]
        assert [(error["run_id"], error["session_id"]) for error in errors] == [(a, session)]


async def test_c5_a_provider_outage_does_not_lose_the_next_run(
    own_server: Callable[..., Server], workspace: Path, endpoint: Endpoint
) -> None:
    dead = '[providers.dead]\nbase_url = "http://127.0.0.1:9/v1"\nmodels = [{ id = "gone" }]'
    async with own_server(dead).peer(workspace) as peer:
        session = await peer.session()
        async with peer.stream() as stream:
            down = (await peer.submit(session, "hello", run_id=unique("a"), model="dead/gone"))["run_id"]
            up = (await peer.submit(session, "script: say b", run_id=unique("b")))["run_id"]
            ends = await stream.until_complete(down, up)
            assert [end["outcome"] for end in ends] == ["failed", "completed"]
            assert end_order(stream) == [down, up]


# --- C6 --------------------------------------------------------------------------------------------------------------


async def test_c6_a_run_that_fails_early_ends_under_its_own_id(kedge: Peer, endpoint: Endpoint) -> None:
    session = await kedge.session()
    async with kedge.stream() as stream:
        a, _, key = await held_run(kedge, endpoint, session)
        bad = [
            (await kedge.submit(session, "hello", run_id=unique("bad"), model=model))["run_id"]
            for model in ("nobody/nothing", "local/unknown", "nonsense")
        ]
        (b,) = await queue_up(kedge, session, "b")
        endpoint.release(key)
        first, *failed, last = await stream.until_complete(a, *bad, b)
        assert (first["outcome"], last["outcome"]) == ("completed", "completed")
        for end, model in zip(failed, ("nobody", "unknown", "nonsense"), strict=True):
            assert end["outcome"] == "failed"
            assert model in end["error"], "the error names the model"
        assert end_order(stream) == [a, *bad, b]
        errors = [frame.payload for frame in stream.of("agent_event") if frame.payload["type"] == "error"]
        assert [error["run_id"] for error in errors] == bad
        await fence(kedge, stream)
        assert all(len(completes) == 1 for completes in Ends(stream).all().values())
    steps = {run["run_id"]: run["steps"] for run in await kedge.runs(session)}
    assert [steps[run_id] for run_id in bad] == [0, 0, 0]


async def test_c6_runs_of_a_deleted_session_end_under_their_own_ids(kedge: Peer, endpoint: Endpoint) -> None:
    session = await kedge.session()
    async with kedge.stream() as stream:
        a, tag, _ = await held_run(kedge, endpoint, session)
        b, c = await queue_up(kedge, session, "b", "c")
        waiting = asyncio.create_task(stream.until_complete(a, b, c))
        await kedge.call("DELETE", f"{kedge.at}/sessions/{session}")
        assert [end["outcome"] for end in await waiting] == ["cancelled"] * 3
        await endpoint.wait_open(tag, 0)
        await fence(kedge, stream)
        assert all(len(completes) == 1 for completes in Ends(stream).all().values())
        assert ("deleted", session) in [(f.change, f.payload["id"]) for f in stream.of("session")]
    assert (await kedge.submit(session, "hello", expect=404))["code"] == "session_not_found"
    assert [run for run in await kedge.call("GET", "/runs") if run["session_id"] == session] == []


async def test_c6_a_prompt_during_a_delete_ends_or_is_refused(kedge: Peer) -> None:
    """Two clients delete a session while a third submits: a 202 is followed by an end, an error leaves no trace."""
    accepted: list[str] = []
    deleting = Aim()
    async with kedge.stream() as stream:
        ends = Ends(stream)

        async def play(_: str, chance: random.Random) -> None:
            session, run_id = await kedge.session(), unique("run")

            async def delete() -> int:
                await deleting.lag(chance)
                return (await kedge.reply("DELETE", f"{kedge.at}/sessions/{session}")).status_code

            async def submit() -> int:
                await lag(chance, 15)
                body = {"session_id": session, "prompt": "script: say hello", "run_id": run_id}
                return (await kedge.reply("POST", f"{kedge.at}/agent", body)).status_code

            first, second, status = await asyncio.gather(delete(), delete(), submit())
            assert {first, second} <= {200, 404}
            assert 200 in (first, second)
            deleting.saw(was_first=status != 202)
            if status == 202:
                accepted.append(run_id)
                (end,) = await ends.until(run_id)
                assert end["outcome"] in ("cancelled", "completed")
            else:
                assert status == 404
            await kedge.call("GET", f"{kedge.at}/sessions/{session}", expect=404)

        await play_rounds(kedge, play, tries=100)
        await fence(kedge, stream)
    deleting.check(10)
    assert {run_id: len(completes) for run_id, completes in ends.all().items()} == dict.fromkeys(accepted, 1)
    assert [run for run in await kedge.call("GET", "/runs") if run["workspace_id"] == kedge.workspace] == []


# --- C7 --------------------------------------------------------------------------------------------------------------


async def test_c7_a_new_prompt_never_overtakes_the_queue(kedge: Peer, endpoint: Endpoint) -> None:
    """D is submitted while A ends and the queue advances."""
    async with kedge.stream() as stream:
        ends = Ends(stream)
        accepted: dict[str, list[str]] = {}

        async def play(session: str, chance: random.Random) -> None:
            key = unique("key")
            prompts = [f"script: hold {key} | say a", "script: say b", "script: say c"]
            run_ids = [(await kedge.submit(session, p, run_id=unique("r")))["run_id"] for p in prompts]

            async def release() -> None:
                await lag(chance)
                endpoint.release(key)

            async def submit() -> str:
                await lag(chance)
                return str((await kedge.submit(session, "script: say d", run_id=unique("d")))["run_id"])

            _, late = await asyncio.gather(release(), submit())
            found = await ends.until(*run_ids, late)
            assert outcomes(found) == [("completed", word) for word in "abcd"]
            accepted.setdefault(session, []).extend([*run_ids, late])

        await play_rounds(kedge, play, tries=60)
    for session, run_ids in accepted.items():
        started = [f.payload for f in stream.of("message") if f.payload["session_id"] == session]
        assert [m["run_id"] for m in started if m["role"] == "user"] == run_ids


def memory_kb(server: Server) -> int:
    status = Path(f"/proc/{server.pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS:")).split()[1])


async def test_c7_a_thousand_queued_prompts_cost_little(
    own_server: Callable[..., Server], workspace: Path, endpoint: Endpoint
) -> None:
    server = own_server("[runs]\nqueue_runs_max = 1000")
    async with server.peer(workspace) as peer:
        session = await peer.session()
        async with peer.stream() as stream:
            a, tag, _ = await held_run(peer, endpoint, session)
            before_kb = memory_kb(server)
            run_ids = [unique("r") for _ in range(1000)]
            for start in range(0, 1000, 50):
                some = run_ids[start : start + 50]
                await asyncio.gather(*(peer.submit(session, "script: say x", run_id=run_id) for run_id in some))
            assert len(await queued(peer, session)) == 1000
            body = {"session_id": session, "prompt": "one more", "run_id": unique("r")}
            for fields in (body, {**body, "when_busy": "fold"}):
                reply = await peer.reply("POST", f"{peer.at}/agent", fields)
                assert (reply.status_code, reply.json()["code"]) == (429, "queue_full")
                assert int(reply.headers["retry-after"]) > 0
                await peer.run(body["run_id"], expect=404)
            assert memory_kb(server) < before_kb * 2, "one record each, not a copy of the queue each"
            covered = (await peer.cancel(session))["covered"]
            assert {run["run_id"] for run in covered} == {a, *run_ids}
            ends = Ends(stream)
            assert {end["outcome"] for end in await ends.until(a, *run_ids)} == {"cancelled"}
            await fence(peer, stream)
            counts = {run_id: len(completes) for run_id, completes in ends.all().items()}
            assert counts == dict.fromkeys([a, *run_ids], 1)
            assert await queued(peer, session) == []
            assert memory_kb(server) < before_kb * 2
            after = await peer.submit(session, "script: say after")
            assert (await peer.wait(after["run_id"]))["text"] == "after"
        assert len(endpoint.requests(tag)) == 1


# --- C11 -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["kill", "terminate"])
async def test_c11_queued_prompts_run_in_order_after_a_restart(
    own_server: Callable[..., Server], workspace: Path, endpoint: Endpoint, how: str
) -> None:
    server = own_server()
    async with server.peer(workspace) as peer:
        session = await peer.session()
        a, _, key = await held_run(peer, endpoint, session)
        b, c, d = await queue_up(peer, session, "b", "c", "d")
        await peer.call("POST", f"{peer.at}/agent/runs/{d}/move", {"before": c})
        (head,) = [run for run in await peer.runs(session) if run["run_id"] == d]
        assert head["state"] == "queued"
    server.kill() if how == "kill" else server.terminate()
    endpoint.release(key)
    server.start()
    async with server.peer(workspace) as peer:
        for run_id in (b, d, c):
            assert (await peer.wait(run_id))["outcome"] == "completed"
        first = await peer.wait(a)
        assert first["outcome"] == ("completed" if how == "kill" else "interrupted")
        async with peer.stream(after=0) as stream:
            ends = await stream.until_complete(a, b, d, c)
            assert [end["text"] for end in ends[1:]] == ["b", "d", "c"]
            assert end_order(stream) == [a, b, d, c]
            assert all(len(completes) == 1 for completes in Ends(stream).all().values())
        users = [m["run_id"] for m in await peer.messages(session) if m["role"] == "user"]
        assert users == [a, b, d, c]
