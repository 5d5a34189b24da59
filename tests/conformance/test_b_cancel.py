"""SCENARIOS B: cancel. The races are in test_b_races.py; B16 needs a model that does not stop, see tests/engine."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.client.process import has_reader
from tests.conformance.harness import Endpoint, Json, Peer, Server, Stream, outline, unique
from tests.conformance.rounds import Aim, Ends, fence, lag, more_peers, no_trace
from tests.polling import until


def covered(reply: Json) -> dict[str, str]:
    """Return the state of each covered Run at the cancel, by run id."""
    return {run["run_id"]: run["was"] for run in reply["covered"]}


async def held_run(peer: Peer, endpoint: Endpoint, session: str, *, first: str = "") -> tuple[str, str, str]:
    """Start a Run whose model is held, and return (run_id, tag, key). The key releases it."""
    tag, key = unique("tag"), unique("key")
    said = f"say {first} | " if first else ""
    receipt = await peer.submit(session, f"script: tag {tag} | {said}hold {key} | say more", run_id=unique("run"))
    await endpoint.wait_open(tag)
    return receipt["run_id"], tag, key


# --- B1 --------------------------------------------------------------------------------------------------------------


async def test_b1_a_cancel_of_an_idle_session_leaves_no_trace(kedge: Peer) -> None:
    fresh, used = await kedge.session(), await kedge.session()
    earlier = await kedge.submit(used, "script: say before")
    await kedge.wait(earlier["run_id"])
    for session in (fresh, used):
        async with no_trace(kedge, session):
            replies = await asyncio.gather(*(kedge.cancel(session) for _ in range(5)))
            assert replies == [{"mark": None, "covered": [], "recorded": True, "jobs": []}] * 5
        receipt = await kedge.submit(session, "script: say after")
        run = await kedge.wait(receipt["run_id"])
        assert (run["outcome"], run["text"]) == ("completed", "after")
    assert (await kedge.run(earlier["run_id"]))["outcome"] == "completed"


async def test_b1_a_cancel_of_a_run_that_has_ended_leaves_no_trace(kedge: Peer) -> None:
    session = await kedge.session()
    run_id = (await kedge.submit(session, "script: say before"))["run_id"]
    await kedge.wait(run_id)
    async with no_trace(kedge, session):
        assert await kedge.cancel_run(run_id) == {"mark": None, "covered": [], "recorded": True, "jobs": []}
    receipt = await kedge.submit(session, "script: say after")
    assert (await kedge.wait(receipt["run_id"]))["outcome"] == "completed"


# --- B2, B7 ----------------------------------------------------------------------------------------------------------


async def test_b2_a_cancel_right_after_the_receipt_keeps_the_prompt(kedge: Peer, endpoint: Endpoint) -> None:
    for _ in range(30):
        tag = unique("tag")
        session = await kedge.session()
        prompt = f"script: tag {tag} | hold {tag} | say never"
        run_id = (await kedge.submit(session, prompt))["run_id"]
        reply = await kedge.cancel(session)
        assert covered(reply) == {run_id: "active"}
        assert reply["mark"] == 1
        run = await kedge.wait(run_id)
        assert (run["outcome"], run["cleanup"], run["text"]) == ("cancelled", "clean", "")
        assert outline(await kedge.messages(session)) == [("user", prompt, None), ("assistant", "", "canceled")]
        assert run["message_id"] == (await kedge.messages(session))[1]["id"]
        if run["steps"] == 0:
            assert endpoint.requests(tag) == [], "no Step had begun, so no model request was made"


async def test_b2_a_run_cancelled_before_its_first_step_asks_no_model(kedge: Peer, endpoint: Endpoint) -> None:
    """Cancels are sent before the receipt is read; some arrive while the prompt is being accepted."""
    before_any_step = 0
    async with kedge.stream() as stream:
        for number in range(30):
            chance, tag, run_id = random.Random(number), unique("tag"), unique("run")
            session = await kedge.session()
            prompt = f"script: tag {tag} | hold {tag} | say never"

            async def cancel(chance: random.Random = chance, session: str = session) -> Json:
                await lag(chance, 12)
                return await kedge.cancel(session)

            await asyncio.gather(kedge.submit(session, prompt, run_id=run_id), *(cancel() for _ in range(4)))
            await kedge.cancel(session)  # all of those may have been too early
            (end,) = await stream.until_complete(run_id)
            assert end["outcome"] == "cancelled"
            assert outline(await kedge.messages(session)) == [("user", prompt, None), ("assistant", "", "canceled")]
            if (await kedge.run(run_id))["steps"] == 0:
                before_any_step += 1
                assert endpoint.requests(tag) == []
            await endpoint.wait_open(tag, 0)
        assert stream.of("agent_event") == []
    assert before_any_step > 0, "no cancel was early enough"


async def test_b7_a_cancel_before_the_first_text_ends_the_answer(kedge: Peer, endpoint: Endpoint) -> None:
    session = await kedge.session()
    async with kedge.stream() as stream:
        run_id, tag, _ = await held_run(kedge, endpoint, session)
        await kedge.cancel(session)
        (end,) = await stream.until_complete(run_id)
        await endpoint.wait_open(tag, 0)
    roles = [(role, text, finish) for role, text, finish in outline(await kedge.messages(session)) if role != "user"]
    assert roles == [("assistant", "", "canceled")]
    assert (end["outcome"], end["text"]) == ("cancelled", "")
    assert "error" not in end
    shown = [frame.payload for frame in stream.of("message") if frame.payload["id"] == end["message_id"]]
    assert outline(shown)[-1] == ("assistant", "", "canceled"), "clients saw it, too"


# --- B6 --------------------------------------------------------------------------------------------------------------


async def test_b6_a_second_cancel_changes_nothing(kedge: Peer, endpoint: Endpoint) -> None:
    session = await kedge.session()
    async with kedge.stream() as stream:
        for number in range(1, 11):
            run_id, _, _ = await held_run(kedge, endpoint, session)
            replies = await asyncio.gather(*(kedge.cancel(session) for _ in range(6)))
            reached = [reply for reply in replies if reply["covered"]]
            assert reached, "at least the first one"
            assert all(reply["mark"] == number and covered(reply) == {run_id: "active"} for reply in reached)
            (end,) = await stream.until_complete(run_id)
            assert end["outcome"] == "cancelled"
        await fence(kedge, stream)
        stopping = [frame.payload["run_id"] for frame in stream.of("run") if frame.payload["stopping"]]
        assert len(stopping) == len(set(stopping)) == 10, "one mark each, not six"
        assert all(len(completes) == 1 for completes in Ends(stream).all().values())


async def test_b6_a_later_cancel_covers_what_was_accepted_since(kedge: Peer, endpoint: Endpoint) -> None:
    cancelling = Aim()
    for number in range(30):
        session, chance, tag = await kedge.session(), random.Random(number), unique("tag")
        first, _, _ = await held_run(kedge, endpoint, session)

        async def cancel(session: str = session, chance: random.Random = chance) -> Json:
            await cancelling.lag(chance)
            return await kedge.cancel(session)

        submit = kedge.submit(session, f"script: tag {tag} | hold {tag}", run_id=unique("run"))
        earlier, second = await asyncio.gather(cancel(), submit)
        later = await kedge.cancel(session)
        assert covered(earlier)[first] == "active"
        assert earlier["mark"] in (1, 2)
        cancelling.saw(was_first=earlier["mark"] == 1)
        if earlier["mark"] == 1:
            assert second["run_id"] in covered(later)
            assert later["mark"] == 2
        assert (await kedge.wait(first))["outcome"] == "cancelled"
        assert (await kedge.wait(second["run_id"]))["outcome"] == "cancelled"
    cancelling.check()


# --- B8 --------------------------------------------------------------------------------------------------------------


async def shown_text(stream: Stream, run_id: str, text: str) -> str:
    """Wait until the answer of this Run contains the text, and return the id of the message."""

    def message_with_text(seen: Stream) -> str | None:
        answers = [f.payload for f in seen.of("message") if f.payload["run_id"] == run_id]
        return next((m["id"] for m in answers if m["role"] == "assistant" and seen.text(m["id"]) == text), None)

    return str(await stream.until(message_with_text))


async def test_b8_text_already_shown_stays_and_the_request_is_aborted(
    own_server: Callable[..., Server], workspace: Path, endpoint: Endpoint
) -> None:
    server = own_server()
    async with server.peer(workspace) as peer:
        session = await peer.session()
        async with peer.stream(deltas=1) as stream:
            run_id, tag, key = await held_run(peer, endpoint, session, first="shown to people")
            message_id = await shown_text(stream, run_id, "shown to people")
            assert endpoint.open(tag) == 1
            await peer.cancel(session)
            (end,) = await stream.until_complete(run_id)
            await endpoint.wait_open(tag, 0)
            (request,) = endpoint.requests(tag)
            assert request.closed_early
            assert (end["outcome"], end["text"], end["message_id"]) == ("cancelled", "shown to people", message_id)
            endpoint.release(key)
            await fence(peer, stream)
            assert stream.text(message_id) == "shown to people"
            assert stream.frames[-2].type in ("run_complete", "session"), "nothing of the Run after its end"
        before = outline(await peer.messages(session))
        assert before[1] == ("assistant", "shown to people", "canceled")
        async with peer.stream(after=0) as again:
            await again.until_complete(run_id)
            assert again.text(message_id) == "shown to people"
    server.kill()
    server.start()
    async with server.peer(workspace) as peer:
        assert outline(await peer.messages(session)) == before
        run = await peer.run(run_id)
        assert (run["outcome"], run["text"]) == ("cancelled", "shown to people")
        later = unique("tag")
        after = await peer.submit(session, f"script: tag {later} | say fine")
        assert (await peer.wait(after["run_id"]))["outcome"] == "completed"
    (request,) = endpoint.requests(later)
    assert tag not in repr(request.messages), "neither the cancelled prompt nor its answer is sent to the model"
    assert "shown to people" not in repr(request.messages)


async def test_b8_reasoning_already_shown_stays_too(kedge: Peer, endpoint: Endpoint) -> None:
    tag = unique("tag")
    session = await kedge.session()
    async with kedge.stream(deltas=1) as stream:
        receipt = await kedge.submit(session, f"script: tag {tag} | think let me see | say so | hold {tag}")
        await stream.until(lambda seen: any(frame.payload["text"].endswith("so") for frame in seen.of("delta")))
        await kedge.cancel(session)
        await stream.until_complete(receipt["run_id"])
    parts = (await kedge.messages(session))[1]["parts"]
    assert [part["type"] for part in parts] == ["reasoning", "text", "finish"]
    assert parts[0]["data"]["thinking"] == "let me see"
    assert parts[1]["data"]["text"] == "so"
    assert parts[2]["data"]["reason"] == "canceled"


# --- B12 -------------------------------------------------------------------------------------------------------------


async def test_b12_a_cancel_by_another_client_is_not_an_error(
    kedge: Peer, shared: tuple[str, str], endpoint: Endpoint
) -> None:
    session = await kedge.session()
    async with more_peers(kedge, shared, 2) as (stranger, watcher):
        async with kedge.stream() as mine, stranger.stream() as theirs, watcher.stream() as watched:
            run_id, tag, _ = await held_run(kedge, endpoint, session, first="a word")
            queued = (await kedge.submit(session, "script: say never", run_id=unique("run")))["run_id"]
            waiting = [asyncio.create_task(peer.wait(run_id)) for peer in (kedge, watcher)]
            reply = await stranger.cancel(session)
            assert covered(reply) == {run_id: "active", queued: "queued"}
            for run in await asyncio.gather(*waiting):
                assert (run["outcome"], run.get("error")) == ("cancelled", None)
            for stream in (mine, theirs, watched):
                for end in await stream.until_complete(run_id, queued):
                    assert (end["outcome"], end.get("error")) == ("cancelled", None)
                await fence(kedge, stream)
                assert stream.of("agent_event") == []
                answer = [f.payload for f in stream.of("message") if f.payload["role"] == "assistant"][-1]
                assert outline([answer]) == [("assistant", "a word", "canceled")]
            await endpoint.wait_open(tag, 0)


# --- B14 -------------------------------------------------------------------------------------------------------------


async def test_b14_a_cancel_of_one_queued_run_touches_no_other(kedge: Peer, endpoint: Endpoint) -> None:
    session = await kedge.session()
    async with kedge.stream() as stream:
        active, _, key = await held_run(kedge, endpoint, session)
        receipts = [await kedge.submit(session, f"script: say {word}", run_id=unique(word)) for word in ("b", "c", "d")]
        b, c, d = (receipt["run_id"] for receipt in receipts)
        reply = await kedge.cancel_run(c)
        assert reply == {
            "mark": None,
            "covered": [{"run_id": c, "seq": 3, "was": "queued"}],
            "recorded": True,
            "jobs": [],
        }
        (end,) = await stream.until_complete(c)
        assert end["outcome"] == "cancelled"
        states = {run["run_id"]: run["state"] for run in await kedge.runs(session)}
        assert states == {active: "active", b: "queued", c: "ended", d: "queued"}
        endpoint.release(key)
        ends = await stream.until_complete(active, b, d)
        assert [(end["outcome"], end["text"]) for end in ends] == [
            ("completed", "more"),
            ("completed", "b"),
            ("completed", "d"),
        ]
        await fence(kedge, stream)
        assert all(len(completes) == 1 for completes in Ends(stream).all().values())
    assert not [message for message in await kedge.messages(session) if message["run_id"] == c]
    assert (await kedge.run(c))["prompt"] == "script: say c", "a client can put it back into the input box"


async def test_b14_a_cancel_of_the_active_run_by_id_spares_the_queue(kedge: Peer, endpoint: Endpoint) -> None:
    session = await kedge.session()
    async with kedge.stream() as stream:
        active, tag, _ = await held_run(kedge, endpoint, session, first="a")
        b = (await kedge.submit(session, "script: say b", run_id=unique("b")))["run_id"]
        c = (await kedge.submit(session, "script: say c", run_id=unique("c")))["run_id"]
        reply = await kedge.cancel_run(active)
        assert reply == {
            "mark": None,
            "covered": [{"run_id": active, "seq": 1, "was": "active"}],
            "recorded": True,
            "jobs": [],
        }
        ends = await stream.until_complete(active, b, c)
        assert [(end["outcome"], end["text"]) for end in ends] == [
            ("cancelled", "a"),
            ("completed", "b"),
            ("completed", "c"),
        ]
        assert [frame.payload["run_id"] for frame in stream.of("run_complete")] == [active, b, c]
        await endpoint.wait_open(tag, 0)
    finishes = [(text, finish) for role, text, finish in outline(await kedge.messages(session)) if role == "assistant"]
    assert finishes == [("a", "canceled"), ("b", "end_turn"), ("c", "end_turn")]


async def test_b14_a_cancel_of_an_unknown_run_is_not_found(kedge: Peer, endpoint: Endpoint) -> None:
    session = await kedge.session()
    run_id, _, key = await held_run(kedge, endpoint, session)
    assert (await kedge.cancel_run("nobody", expect=404))["code"] == "run_not_found"
    endpoint.release(key)
    assert (await kedge.wait(run_id))["outcome"] == "completed"


@pytest.mark.found(
    "a review of the server: Esc or Ctrl-C during a command of the user",
    "the server did not notice that the client had disconnected: the command ran for up to two minutes and became part "
    "of the transcript; it ends with its request",
)
async def test_a_user_command_ends_when_its_client_disconnects(kedge: Peer) -> None:
    session, fifo = await kedge.session(), kedge.directory / "fifo"
    os.mkfifo(fifo)
    body = {"command": "sleep 1000 0<>fifo; echo done"}
    request = asyncio.create_task(kedge.call("POST", f"{kedge.at}/agent/sessions/{session}/shell", body))
    await until(lambda: has_reader(fifo))
    request.cancel()
    await asyncio.gather(request, return_exceptions=True)
    await until(lambda: not has_reader(fifo))
    while not (messages := await kedge.messages(session)):
        pass
    assert [message["parts"][0]["data"]["exit_code"] for message in messages] == [130]
