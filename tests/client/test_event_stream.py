from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from kedge import errors
from kedge.agent.model_call import REPLY_CHARS_MAX
from kedge.agent.tool_calls import PICTURES_CHARS_MAX, RESULT_CHARS_MAX
from kedge.client import event_stream, http_transport
from kedge.client.client import Client, new_run_id
from kedge.client.event_stream import StreamEvent
from kedge.llm import sse
from kedge.llm.streaming import TOOL_INPUTS_CHARS_MAX
from kedge.tools.diff import DIFF_BYTES_MAX
from kedge.wire.limits import PROMPT_BYTES_MAX
from kedge.wire.models import SubmitPrompt
from tests.client.process import Home, Server
from tests.client.standin import STREAM, Asked, StandIn, always, answer, frame, json


async def submit(client: Client, workspace_id: str, session_id: str, text: str) -> str:
    body = SubmitPrompt(session_id=session_id, prompt=text, run_id=new_run_id())
    return (await client.submit(workspace_id, body)).run_id


async def begin(client: Client, home: Home) -> tuple[str, str]:
    workspace = await client.create_workspace(str(home.workspace))
    return workspace.id, (await client.create_session(workspace.id)).id


def is_end(event: StreamEvent, run_id: str) -> bool:
    return event.type == "run_complete" and event.payload["run_id"] == run_id


class Script:
    """A stand-in whose nth stream sends the nth list of bytes and ends; the last one stays open."""

    def __init__(self, *streams: list[bytes], stay: bool = True) -> None:
        self.streams = list(streams)
        self.stay = stay
        self.workspace = {"id": "w", "path": "/w", "data_dir": "", "version": "", "config": {}}

    async def __call__(self, asked: Asked, writer: asyncio.StreamWriter) -> None:
        if asked.path == "/workspaces":
            writer.write(json(200, self.workspace))
        elif not self.streams:
            writer.write(json(503, {"message": "leaving", "code": "shutting_down"}))
        else:
            for data in self.streams.pop(0):
                writer.write(data)
            await writer.drain()
            if not self.streams and self.stay:
                await asyncio.Event().wait()
        await writer.drain()


def positions(asked: list[Asked]) -> list[str | None]:
    return [one.headers.get("last-event-id") for one in asked if one.path.endswith("/events")]


async def take(events: Any, count: int) -> list[StreamEvent]:
    return [await anext(events) for _ in range(count)]


async def test_events_are_typed_and_in_order(client: Client, home: Home) -> None:
    workspace_id, session_id = await begin(client, home)
    async with client.events(workspace_id, session_id=session_id, deltas=True) as events:
        run_id = await submit(client, workspace_id, session_id, "script: words 20")
        seen = []
        async for event in events:
            seen.append(event)
            if is_end(event, run_id):
                break
    durable = [event.position for event in seen if event.position is not None]
    assert durable == sorted(set(durable))
    assert all(event.position is None for event in seen if event.type == "delta")
    assert {"message", "run", "run_complete", "delta"} <= {event.type for event in seen}
    text = "".join(event.payload["text"] for event in seen if event.type == "delta")
    whole = seen[-1].payload["text"]
    assert whole.startswith(text)
    assert whole.split() == [f"w{number}" for number in range(1, 21)]


async def test_after_zero_replays_and_after_a_position_continues(client: Client, home: Home) -> None:
    workspace_id, session_id = await begin(client, home)
    run_id = await submit(client, workspace_id, session_id, "hello")
    await client.wait_run(workspace_id, run_id)

    async def read(after: int) -> list[StreamEvent]:
        found = []
        async with client.events(workspace_id, after=after) as events:
            async for event in events:
                found.append(event)
                if is_end(event, run_id):
                    break
        return found

    everything = await read(0)
    middle = everything[len(everything) // 2].position
    assert middle is not None
    assert await read(middle) == [event for event in everything if (event.position or 0) > middle]


async def test_stream_resumes_after_a_server_restart(own_client: Client, own_server: Server, home: Home) -> None:
    workspace_id, session_id = await begin(own_client, home)
    runs: list[str] = []
    seen: list[StreamEvent] = []
    async with own_client.events(workspace_id, session_id=session_id, deltas=True) as events:
        for restart in (own_server.stop, own_server.kill, own_server.stop, own_server.kill):
            runs.append(await submit(own_client, workspace_id, session_id, f"script: words 30 | say {len(runs)}"))
            # In the middle of a Run, at its first event.
            async for event in events:
                seen.append(event)
                if event.payload.get("run_id") == runs[-1]:
                    break
            restart()
            own_server.start()
        while not any(is_end(event, runs[-1]) for event in seen):
            seen.append(await anext(events))
        assert events.connects >= 4, "the last restart may come when everything has been read"
    log = []
    async with own_client.events(workspace_id, session_id=session_id, after=0) as replay:
        async for event in replay:
            log.append(event)
            if is_end(event, runs[-1]):
                break
    first = next(event.position for event in seen if event.position is not None)
    assert first is not None
    told = [event.position for event in seen if event.position is not None]
    assert told == [event.position for event in log if (event.position or 0) >= first]
    ends = [event.payload["run_id"] for event in seen if event.type == "run_complete"]
    assert sorted(ends) == sorted(runs)


async def test_position_of_another_log_causes_a_gap(client: Client, home: Home) -> None:
    workspace_id, session_id = await begin(client, home)
    async with client.events(workspace_id, after=12345) as events:
        gap = await anext(events)
        assert (gap.type, gap.payload["reason"]) == ("gap", "epoch")
        assert events.position == gap.payload["position"]
        await client.rename_session(workspace_id, session_id, "later")
        event = await anext(events)
        assert (event.type, event.payload["title"]) == ("session", "later")


async def test_lost_connections_resume_without_duplicates() -> None:
    script = Script(
        [STREAM, frame("run", {"n": 1}, 11), frame("delta", {"message_id": "m", "part": 0, "text": "x"})],
        [STREAM, frame("run", {"n": 1}, 11), frame("run", {"n": 2}, 12), b"id: 13\ndata: {half a fra"],
        [STREAM, frame("message", {"id": "m"}), frame("run", {"n": 3}, 13)],
    )
    async with StandIn(script) as standin, Client(standin.host) as client:
        async with client.events("w", give_up_s=5) as events:
            seen = await take(events, 5)
        assert [(event.type, event.position) for event in seen] == [
            ("run", 11),
            ("delta", None),
            ("run", 12),
            ("message", None),
            ("run", 13),
        ]
        assert positions(standin.asked) == [None, "11", "12"]


async def test_stream_without_a_position_reports_a_gap() -> None:
    script = Script([STREAM], [STREAM, frame("run", {"n": 1}, 11)])
    async with StandIn(script) as standin, Client(standin.host) as client:
        async with client.events("w", give_up_s=5) as events:
            assert [event.type for event in await take(events, 2)] == ["gap", "run"]


async def test_id_alone_sets_the_position() -> None:
    script = Script([STREAM, b"id: 40\n\n"], [STREAM, frame("run", {"n": 1}, 41)])
    async with StandIn(script) as standin, Client(standin.host) as client:
        async with client.events("w", give_up_s=5) as events:
            assert (await anext(events)).position == 41
        assert positions(standin.asked) == [None, "40"]


async def test_lower_positions_after_a_gap_are_new() -> None:
    gap = frame("gap", {"reason": "epoch", "position": 5})
    script = Script([STREAM, frame("run", {}, 900), gap, frame("run", {}, 6)], [STREAM, frame("run", {}, 7)])
    async with StandIn(script) as standin, Client(standin.host) as client:
        async with client.events("w", give_up_s=5) as events:
            assert [event.position for event in await take(events, 4)] == [900, None, 6, 7]
        assert positions(standin.asked) == [None, "6"]


async def test_silent_connection_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_transport, "SILENCE_S_MAX", 0.05)
    connections = 0

    async def silent_once(asked: Asked, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        writer.write(STREAM + frame("run", {"n": connections}, connections))
        await writer.drain()
        await asyncio.Event().wait()

    async with StandIn(silent_once) as standin, Client(standin.host) as client:
        async with client.events("w", give_up_s=5) as events:
            assert [event.position for event in await take(events, 2)] == [1, 2]
        assert positions(standin.asked)[:2] == [None, "1"]


async def test_lost_server_is_reported_unreachable_in_the_end(
    own_client: Client, own_server: Server, home: Home
) -> None:
    workspace_id, _ = await begin(own_client, home)
    async with own_client.events(workspace_id, give_up_s=0.3) as events:
        own_server.kill()
        with pytest.raises(errors.Unreachable, match="kedge serve"):
            await anext(events)


@pytest.mark.parametrize("first", [b"", b"id: 1\n\n", frame("permission_request", {"id": "a"})])
async def test_server_that_only_closes_is_reported_unreachable(first: bytes) -> None:
    """Also if it closes after the initial events of each connection: its Position and the pending approvals."""
    async with StandIn(always(STREAM + first)) as standin, Client(standin.host) as client:
        async with client.events("w", after=1, give_up_s=0.3) as events:
            with pytest.raises(errors.Unreachable, match="ended the stream"):
                [event async for event in events]
        assert len(standin.asked) < 20, "it must not hammer"


async def test_shutting_down_server_is_retried_then_reported() -> None:
    async with StandIn(Script([STREAM, frame("run", {}, 1)], stay=False)) as standin, Client(standin.host) as client:
        async with client.events("w", give_up_s=0.3) as events:
            await anext(events)
            with pytest.raises(errors.ShuttingDown):
                await anext(events)


@pytest.mark.parametrize("code", ["unauthorized", "session_not_found", "bad_position", "client_retired"])
async def test_refused_stream_is_not_retried(code: str) -> None:
    status = errors.BY_CODE[code].status
    async with StandIn(always(json(status, {"message": "no", "code": code}))) as standin:
        async with Client(standin.host, token="t") as client:
            with pytest.raises(errors.BY_CODE[code]):
                await anext(client.events("w"))
        assert len(standin.asked) == 1


async def test_first_connection_fails_at_once() -> None:
    async with Client("unix:///nowhere.sock") as client:
        with pytest.raises(errors.Unreachable):
            await client.events("w", give_up_s=60).connect()


async def test_released_workspace_is_reopened_with_its_path() -> None:
    script = Script([STREAM, frame("run", {}, 1)], [STREAM, frame("run", {}, 2)])
    forgotten = iter([False, True, False])

    async def handler(asked: Asked, writer: asyncio.StreamWriter) -> None:
        if asked.path.endswith("/events") and next(forgotten):
            writer.write(json(404, {"message": "?", "code": "workspace_not_found"}))
            await writer.drain()
        else:
            await script(asked, writer)

    async with StandIn(handler) as standin, Client(standin.host) as client:
        await client.create_workspace("/the/path")
        async with client.events("w", give_up_s=5) as events:
            assert [event.position for event in await take(events, 2)] == [1, 2]
        asked = [one for one in standin.asked if one.path == "/workspaces"]
        assert len(asked) == 2
        assert b"/the/path" in asked[1].body


async def test_oversized_or_invalid_event_ends_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "EVENT_BYTES_MAX", 500)
    async with StandIn(always(STREAM + b"data: " + b"x" * 5000)) as standin, Client(standin.host) as client:
        with pytest.raises(errors.TooLarge, match="500 byte"):
            await anext(client.events("w"))
    async with StandIn(always(STREAM + b"data: {}\n\n")) as standin, Client(standin.host) as client:
        with pytest.raises(errors.KedgeError, match="Cannot decode"):
            await anext(client.events("w"))
    async with StandIn(always(answer(200, b"<html>", "text/html"))) as standin, Client(standin.host) as client:
        with pytest.raises(errors.KedgeError, match="text/event-stream"):
            await anext(client.events("w"))


async def test_envelope_round_trips() -> None:
    event = StreamEvent("run", "updated", {"a": [1, None, "\n"]}, 5)
    assert event.envelope() == b'{"type":"run","payload":{"type":"updated","payload":{"a":[1,null,"\\n"]}}}'


@pytest.mark.found(
    "fault 22",
    "an event above 64 MB stopped kedge's own client at every resume; every part of an event has a limit, and the "
    "largest event fits",
)
def test_largest_event_fits_into_the_limit_of_the_client() -> None:
    escaped = len(msgspec.json.encode("\1")) - 2  # bytes of a character, at worst
    # The reply is counted after each event of the provider. A reply that is too long makes no calls.
    step = REPLY_CHARS_MAX + max(TOOL_INPUTS_CHARS_MAX, sse.EVENT_BYTES_MAX)
    run = PROMPT_BYTES_MAX + REPLY_CHARS_MAX + sse.EVENT_BYTES_MAX
    result = (RESULT_CHARS_MAX + 2 * DIFF_BYTES_MAX) * escaped + PICTURES_CHARS_MAX
    assert max(step * escaped, run * escaped, result) < event_stream.EVENT_BYTES_MAX
