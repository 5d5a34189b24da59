"""SCENARIOS D: events, live and replayed. Slow and hostile readers are in test_d_readers.py."""

from __future__ import annotations

import asyncio
import base64
import json
import random
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.conformance.harness import Endpoint, Frame, Json, Peer, Server, Stream, text_of, unique
from tests.conformance.watching import Screen, another, identity_of, in_parallel, until_closed, words


async def finish_log(peer: Peer, *streams: Stream) -> str:
    """Append a last event, wait until each stream has it, and return the id of its session."""
    last = await peer.session("the last event")
    for stream in streams:
        await stream.until(lambda stream: any(frame.payload.get("id") == last for frame in stream.of("session")))
    return last


async def varied_runs(peer: Peer, endpoint: Endpoint) -> list[str]:
    """Make Runs in two sessions that complete, use a tool, queue, fail and are cancelled; return their ids."""
    key, tag = unique("key"), unique("tag")
    one, two = await peer.session("one"), await peer.session("two")
    prompts = [
        (one, f"script: words 30 | hold {key} | say more"),
        (one, "script: say let me look | tool nothing {} | say done"),
        (two, "script: fail 400 no such luck"),
        (two, "script: think hard | words 5"),
        (two, f"script: tag {tag} | say partly | hang"),
    ]
    runs = [(await peer.submit(session, prompt, run_id=unique("run")))["run_id"] for session, prompt in prompts]
    endpoint.release(key)
    await endpoint.wait_open(tag)
    await peer.cancel_run(runs[-1])
    outcomes = [(await peer.wait(run_id))["outcome"] for run_id in runs]
    assert outcomes == ["completed", "completed", "failed", "completed", "cancelled"]
    return runs


# --- D1 --------------------------------------------------------------------------------------------------------------


async def test_d1_every_client_gets_the_same_durable_events(kedge: Peer, endpoint: Endpoint) -> None:
    async with (
        kedge.stream(deltas=1) as first,
        another(kedge).stream(deltas=1) as second,
        another(kedge).stream() as plain,
        another(kedge).stream() as plain_too,
    ):
        runs = await varied_runs(kedge, endpoint)
        streams = (first, second, plain, plain_too)
        last = await finish_log(kedge, *streams)
        for stream in streams:
            assert stream.durable == first.durable
            assert stream.positions == sorted(set(stream.positions))
            assert [len(stream.completes(run_id)) for run_id in runs] == [1] * len(runs)
        assert first.durable[-1].payload["id"] == last


async def test_d1_run_complete_follows_the_last_message_event(kedge: Peer, endpoint: Endpoint) -> None:
    async with kedge.stream(deltas=1) as stream:
        runs = await varied_runs(kedge, endpoint)
        await finish_log(kedge, stream)
    for run_id in runs:
        kinds = [frame.type for frame in stream.frames if frame.payload.get("run_id") == run_id]
        assert "message" not in kinds[kinds.index("run_complete") :]


async def test_d1_a_replay_equals_the_live_events(kedge: Peer, endpoint: Endpoint) -> None:
    async with kedge.stream(after=0) as live:
        runs = await varied_runs(kedge, endpoint)
        await finish_log(kedge, live)
    async with another(kedge).stream(after=0) as late:
        await late.until(lambda stream: stream.positions[-1:] == live.positions[-1:])
    assert [identity_of(frame) for frame in late.durable] == [identity_of(frame) for frame in live.durable]
    assert not late.of("gap")
    completes = {run_id: stream.completes(run_id) for stream in (late,) for run_id in runs}
    assert completes == {run_id: live.completes(run_id) for run_id in runs}


async def test_d1_a_new_client_starts_at_the_present(kedge: Peer) -> None:
    session = await kedge.session()
    before = await kedge.submit(session, "script: say before")
    await kedge.wait(before["run_id"])
    async with kedge.stream() as stream:
        after = await kedge.submit(session, "script: say after")
        await stream.until_complete(after["run_id"])
        assert not any(frame.payload.get("run_id") == before["run_id"] for frame in stream.frames)


# --- D2 --------------------------------------------------------------------------------------------------------------

#: Of 1,000 reconnects, those in a finished log; the others happen while it grows, slowly and in a storm. Items.
FINISHED_RECONNECTS, LIVE_RECONNECTS, STORM_RECONNECTS = 500, 250, 250


async def test_d2_a_finished_log_can_be_resumed_at_any_point(kedge: Peer, endpoint: Endpoint) -> None:
    async with kedge.stream(deltas=1, after=0) as reference:
        await varied_runs(kedge, endpoint)
        await finish_log(kedge, reference)
    whole = [identity_of(frame) for frame in reference.durable]
    sessions = sorted({session for _, _, _, session in whole if session})
    finals = {message["id"]: text_of(message) for session in sessions for message in await kedge.messages(session)}

    async def resume(number: int) -> None:
        index = number % len(whole)
        session = [None, *sessions][number // len(whole) % 3]
        expected = [kind for kind in whole[index:] if session in (None, kind[2], kind[3])]
        params: Json = {"deltas": number % 2} | ({"session_id": session} if session else {})
        after = whole[index - 1][0] if index else 0
        # Browsers send the header, scripts the parameter.
        stream = kedge.stream(after=after, **params) if number % 3 else kedge.stream(last_event_id=after, **params)
        async with stream:
            # Events come in order: with the last one, none is missing.
            await stream.until(lambda stream: not expected or stream.positions[-1:] == [expected[-1][0]])
            assert [identity_of(frame) for frame in stream.durable] == expected
            assert not stream.of("gap")
            screen = Screen()
            screen.show(stream.frames)
            for message_id in screen.states:
                screen.check(message_id, finals[message_id])

    half = FINISHED_RECONNECTS // 2
    await in_parallel([partial(resume, number) for number in range(half)], at_once=10)
    # Repeat from the log: a workspace that was closed and reopened has nothing in memory.
    await kedge.call("DELETE", kedge.at, client_id=kedge.client_id)
    await until_closed(kedge, kedge.workspace)
    await kedge.open()
    await in_parallel([partial(resume, number) for number in range(half)], at_once=10)


async def test_d2_a_reconnecting_reader_gets_each_event_once(kedge: Peer) -> None:
    chance = random.Random(2)
    reconnects = 0
    count = 300

    async def follow(run_id: str, after: int) -> tuple[list[Frame], Screen]:
        nonlocal reconnects
        reader, screen, seen, complete = another(kedge), Screen(), list[Frame](), False
        deltas = chance.randrange(4) > 0
        while not complete:
            enough = chance.randrange(1, 12)
            async with reader.stream(last_event_id=after, deltas=int(deltas)) as stream:
                await stream.until(
                    lambda stream, enough=enough: len(stream.frames) >= enough or stream.completes(run_id)  # type: ignore[misc]
                )
            complete = bool(stream.completes(run_id))
            seen += stream.durable
            screen.show(stream.frames)
            after = seen[-1].position or 0 if seen else after
            reconnects += 1
        return seen, screen

    while reconnects < LIVE_RECONNECTS:
        async with kedge.stream(deltas=1) as reference:
            session = await kedge.session()
            start = await reference.until(lambda stream: stream.positions[-1:])
            prompt = (
                f"script: pause 1 | say a b c | tool nothing {{}} | words {count} | tool nothing {{}} | words {count}"
            )
            run_id = (await kedge.submit(session, prompt))["run_id"]
            followed = await asyncio.gather(*(follow(run_id, start[0]) for _ in range(12)))
            await reference.until_complete(run_id)
        finals = {message["id"]: text_of(message) for message in await kedge.messages(session)}
        assert list(finals.values())[1::2] == ["a b c", words(count), words(count)]
        for seen, screen in followed:
            expected = reference.durable[1 : len(seen) + 1]
            assert [identity_of(frame) for frame in seen] == [identity_of(frame) for frame in expected]
            for message_id, final in finals.items():
                if final:
                    screen.check(message_id, final)


async def test_d2_reconnects_in_a_storm_get_each_event_once(kedge: Peer) -> None:
    """Each reader reads events from the log while they are added to the ring."""
    reconnects = 0

    async def follow(chance: random.Random, after: int, runs: set[str]) -> list[Frame]:
        nonlocal reconnects
        reader, seen, ended = another(kedge), list[Frame](), set[str]()
        while not runs <= ended:
            enough, before = chance.randrange(1, 40), frozenset(ended)
            async with reader.stream(last_event_id=after, deltas=1) as stream:
                await stream.until(
                    lambda stream, enough=enough, before=before: (  # type: ignore[misc]
                        len(stream.durable) >= enough or runs <= before | ends_in(stream)
                    )
                )
            ended |= ends_in(stream)
            seen += stream.durable
            after = seen[-1].position or after
            reconnects += 1
        return seen

    def ends_in(stream: Stream) -> set[str]:
        return {frame.payload["run_id"] for frame in stream.of("run_complete")}

    sessions = await asyncio.gather(*(kedge.session() for _ in range(10)))
    chance = random.Random(22)
    while reconnects < STORM_RECONNECTS:
        async with kedge.stream() as reference:
            runs = [unique("run") for _ in range(50)]
            start = (await kedge.submit(sessions[0], "script: say first", run_id=runs[0]))["position"]
            seeds = [chance.randrange(1 << 32) for _ in range(8)]
            readers = [asyncio.create_task(follow(random.Random(seed), start, set(runs[1:]))) for seed in seeds]
            await asyncio.gather(
                *(
                    kedge.submit(sessions[number % 10], "script: tool nothing {} | say x", run_id=run_id)
                    for number, run_id in enumerate(runs[1:])
                )
            )
            followed = await asyncio.gather(*readers)
            await reference.until_complete(*runs)
        whole = [identity_of(frame) for frame in reference.durable if (frame.position or 0) > start]
        for seen in followed:
            assert [identity_of(frame) for frame in seen] == whole[: len(seen)]


# --- D3 --------------------------------------------------------------------------------------------------------------


def has_positions(count: int) -> Callable[[Stream], bool]:
    return lambda stream: len(stream.positions) >= count


async def goes_live(peer: Peer, stream: Stream) -> None:
    receipt = await peer.submit(await peer.session(), "script: say here I am")
    (complete,) = await stream.until_complete(receipt["run_id"])
    assert complete["text"] == "here I am"


@pytest.mark.found(
    "fault 18",
    "the log was trimmed at starts only, so that a running server filled the disk; it is trimmed as it grows",
)
async def test_d3_a_trimmed_position_gets_a_gap(own_server: Callable[..., Server], workspace: Path) -> None:
    server = own_server("[server]\nlog_entries_max = 20")
    async with server.peer(workspace) as peer, peer.stream(after=0) as before:
        session = await peer.session()
        for _ in range(4):
            await peer.wait((await peer.submit(session, "script: say x"))["run_id"])
        await finish_log(peer, before)
        old = list(before.positions)
        assert len(old) > 25
        while True:
            async with peer.stream(after=0) as stream:
                await stream.until(lambda stream: stream.frames)
                if stream.frames[0].type == "gap":
                    break
        assert stream.frames[0].payload["reason"] == "evicted"
        floor = old.index(stream.frames[0].payload["position"])
        assert 20 < len(old) - floor <= 24, "20 entries are kept, and a tenth more before they are trimmed"
        async with peer.stream(last_event_id=old[0]) as stream:
            gap = await stream.until(lambda stream: stream.of("gap"))
            assert gap == [Frame("gap", "created", {"reason": "evicted", "position": old[-1]}, None)]
        # The oldest and the newest Position that can be resumed.
        for index in (floor, len(old) - 1):
            async with peer.stream(last_event_id=old[index]) as stream:
                left = old[index + 1 :]
                await stream.until(has_positions(len(left)))
                assert not stream.of("gap")
                assert stream.positions[: len(left)] == left
        async with peer.stream(last_event_id=old[0]) as stream:
            await goes_live(peer, stream)
            assert stream.frames[0].type == "gap"
            assert min(stream.positions) > old[-1]


async def test_d3_a_position_of_another_log_gets_a_gap(kedge: Peer, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = await Peer(kedge.http, tmp_path / "other").open()
    async with other.stream(after=0) as stream:
        await goes_live(other, stream)
    foreign = stream.positions
    async with kedge.stream(after=0) as stream:
        await goes_live(kedge, stream)
    head = stream.positions[-1]
    for position in (1, 5_000, foreign[0], foreign[-1], head + 1_000, 2**53):
        async with kedge.stream(last_event_id=position) as stream:
            await goes_live(kedge, stream)
            assert stream.frames[0].type == "gap", position
            assert stream.frames[0].payload["reason"] == "epoch"
            assert stream.frames[0].payload["position"] >= head
            assert stream.frames[0].position is None
            assert len(stream.of("gap")) == 1
            assert min(stream.positions) > stream.frames[0].payload["position"]


@pytest.mark.parametrize("position", ["-1", "1.5", "abc", "9" * 17, str(2**53 + 1), "١٢", " "])
async def test_d3_an_invalid_position_is_refused(kedge: Peer, position: str) -> None:
    await kedge.call("GET", f"{kedge.at}/events", expect=400, client_id=kedge.client_id, after=position)


# --- D5 --------------------------------------------------------------------------------------------------------------

FORGED = '\n\nid: 5\ndata: {"type":"run_complete","payload":{"type":"created","payload":{"run_id":"forged"}}}\n\n'
NASTY = [
    f"before{FORGED}behind",
    f"before{FORGED.replace(chr(10), chr(13))}behind",
    f"before{FORGED.replace(chr(10), chr(13) + chr(10))}behind",
    f"before{FORGED.replace(chr(10), chr(0x2028))}{chr(0x2029)}{chr(0x85)}behind",
    ": heartbeat\n\nevent: gap\nretry: 1\n\n" + '{"id": 5}\\n\\ndata: x\x0b\x0c\x1b[2J\x7f\ufeff',
]


@pytest.mark.parametrize("nasty", NASTY)
async def test_d5_text_cannot_forge_a_frame(kedge: Peer, nasty: str) -> None:
    """The reply is parsed according to the SSE standard, in which CR alone also ends a line."""
    session = await kedge.session(nasty[:150])
    file = {"file_path": nasty, "file_name": nasty, "mime_type": "text/plain", "content": encoded(nasty)}
    receipt = await kedge.submit(session, nasty, attachments=[file])
    run = await kedge.wait(receipt["run_id"])
    assert nasty.strip() in run["text"]
    last = await kedge.session("the last event")
    received = b""
    params: Json = {"client_id": kedge.client_id, "after": 0, "deltas": 1}
    async with kedge.http.stream("GET", f"/v1{kedge.at}/events", params=params) as reply:
        async for data in reply.aiter_raw():
            received += data
            if last.encode() in received and received.endswith(b"\n\n"):
                break
    assert b"\r" not in received
    envelopes, ids = standard_reader(received.decode())
    assert ids == sorted(set(ids))
    assert 5 not in ids
    completes = [envelope["payload"]["payload"] for envelope in envelopes if envelope["type"] == "run_complete"]
    assert [(complete["run_id"], complete["text"]) for complete in completes] == [(receipt["run_id"], run["text"])]
    users = [envelope["payload"]["payload"] for envelope in envelopes if envelope["type"] == "message"]
    assert text_of(users[0]) == nasty
    assert users[0]["parts"][1]["data"]["path"] == nasty


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def standard_reader(text: str) -> tuple[list[Json], list[int]]:
    """Parse events and ids as in the HTML standard: CRLF, CR and LF each end a line."""
    envelopes: list[Json] = []
    ids: list[int] = []
    data: list[str] = []
    for line in re.split(r"\r\n|\r|\n", text):
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not line:
            if data:
                envelopes.append(json.loads("\n".join(data)))
            data = []
        elif name == "data":
            data.append(value)
        elif name == "id":
            ids.append(int(value))
        else:
            assert name == "", f"unexpected field: {line[:100]!r}"
    return envelopes, ids


# --- D8 --------------------------------------------------------------------------------------------------------------


async def test_d8_an_error_names_its_run_and_session(kedge: Peer, endpoint: Endpoint) -> None:
    key, tag = unique("key"), unique("tag")
    good, bad = await kedge.session("good"), await kedge.session("bad")
    async with kedge.stream() as stream, another(kedge).stream(session_id=good) as only_good:
        held = await kedge.submit(good, f"script: tag {tag} | say fine | hold {key} | say indeed")
        failing = await kedge.submit(bad, "script: say half | fail 500 out of luck")
        stopped = await kedge.submit(good, "script: say never", run_id=unique("run"))
        (complete,) = await stream.until_complete(failing["run_id"])
        assert complete["outcome"] == "failed"
        await kedge.cancel_run(stopped["run_id"])
        endpoint.release(key)
        (complete,) = await stream.until_complete(held["run_id"])
        assert (complete["outcome"], complete["text"]) == ("completed", "fine indeed")
        assert "error" not in complete
        await only_good.until_complete(held["run_id"], stopped["run_id"])
    (error,) = [frame for frame in stream.of("agent_event") if frame.payload["type"] == "error"]
    assert error.payload["type"] == "error"
    assert (error.payload["run_id"], error.payload["session_id"]) == (failing["run_id"], bad)
    assert "out of luck" in error.payload["error"]
    assert error.position is not None
    assert not only_good.of("agent_event")


# --- options of a stream ---------------------------------------------------------------------------------------------


async def test_d_without_deltas_a_reader_gets_snapshots(kedge: Peer) -> None:
    count = 700
    session = await kedge.session()
    async with kedge.stream(deltas=1) as with_deltas, another(kedge).stream() as plain:
        run_id = (await kedge.submit(session, f"script: pause 1 | words {count}"))["run_id"]
        await with_deltas.until_complete(run_id)
        await plain.until_complete(run_id)
    run = await kedge.run(run_id)
    message_id = run["message_id"]
    assert not plain.of("delta")
    snapshots = [frame for frame in plain.of("message") if frame.position is None]
    deltas = with_deltas.of("delta")
    assert {frame.change for frame in snapshots} == {"updated"}
    assert {frame.payload["id"] for frame in snapshots} == {message_id}
    took_s = (run["ended_at"] - run["started_at"]) / 1000
    assert 2 <= len(snapshots) <= 30 * took_s + 5
    assert len(snapshots) < len(deltas) * 2 / 3 < count
    assert not [frame for frame in with_deltas.of("message") if frame.position is None]
    # Text of the final message need not come as Deltas before it.
    assert words(count).startswith("".join(frame.payload["text"] for frame in deltas))
    for stream in (with_deltas, plain):
        screen = Screen()
        screen.show(stream.frames)
        screen.check(message_id, words(count))


async def test_d_a_late_client_gets_the_text_so_far(kedge: Peer, endpoint: Endpoint) -> None:
    key = unique("key")
    session = await kedge.session()
    async with kedge.stream(deltas=1) as first:
        run_id = (await kedge.submit(session, f"script: say so far | hold {key} | say and on"))["run_id"]
        await first.until(lambda stream: "".join(frame.payload["text"] for frame in stream.of("delta")) == "so far")
        message_id = first.of("delta")[0].payload["message_id"]
        async with another(kedge).stream(deltas=1) as late, another(kedge).stream() as plain:
            for stream in (late, plain):
                await stream.until(lambda stream: stream.text(message_id) == "so far")
                assert stream.positions == []
            assert text_of((await kedge.messages(session))[1]) == "so far"
            endpoint.release(key)
            for stream in (first, late, plain):
                await stream.until_complete(run_id)
                assert stream.text(message_id) == "so far and on"


async def test_d_a_session_stream_shows_only_its_session(kedge: Peer, endpoint: Endpoint) -> None:
    mine, other = await kedge.session("mine"), await kedge.session("other")
    async with kedge.stream(session_id=mine, deltas=1) as filtered, another(kedge).stream(deltas=1) as whole:
        others = await kedge.submit(other, "script: pause 1 | words 20")
        receipt = await kedge.submit(mine, "script: pause 1 | words 20")
        await whole.until_complete(others["run_id"], receipt["run_id"])
        await filtered.until_complete(receipt["run_id"])
        await kedge.call("PUT", f"{kedge.at}/sessions/{mine}", {"title": "the end"})
        await filtered.until(lambda stream: stream.of("session")[-1].payload["title"] == "the end")
    messages = {message["id"] for message in await kedge.messages(mine)}
    for frame in filtered.frames:
        about = frame.payload.get("session_id") or frame.payload.get("message_id") or frame.payload["id"]
        assert about in {mine, *messages}
    of_mine = [frame for frame in whole.durable if mine in (frame.payload.get("session_id"), frame.payload.get("id"))]
    assert filtered.durable == of_mine
    await kedge.call("GET", f"{kedge.at}/events", expect=404, client_id=kedge.client_id, session_id="nobody")


async def test_d_is_busy_is_right_on_the_stream(kedge: Peer, endpoint: Endpoint) -> None:
    keys = [unique("key"), unique("key")]
    session = await kedge.session()
    async with kedge.stream() as stream:
        runs = [
            (await kedge.submit(session, f"script: hold {key} | say x", run_id=unique("run")))["run_id"] for key in keys
        ]
        for key in keys:
            endpoint.release(key)
        await stream.until_complete(*runs)
        await stream.until(lambda stream: not stream.of("session")[-1].payload["is_busy"])
    busy = [(frame.position, frame.payload["is_busy"]) for frame in stream.of("session")]
    ends = [frame.position for frame in stream.of("run_complete")]
    for position, is_busy in busy:
        assert position is not None
        # The session is busy between two queued Runs, and idle after the last end.
        assert is_busy == (position < (ends[-1] or 0)), (busy, ends)
    assert [is_busy for _, is_busy in busy][-2:] == [True, False]
    assert not (await kedge.call("GET", f"{kedge.at}/sessions/{session}"))["is_busy"]
