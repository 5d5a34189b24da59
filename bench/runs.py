"""Runs and cancels: their latency, and the correctness of every outcome."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

from bench.load import Client, Connection, Frame, Stream
from bench.report import Line, median, p95
from bench.setting import Setting
from bench.streams import PACE_MS, ask_directly

SESSIONS = 50
#: 1.0 s of model time: 50 words with a pause of 20 ms before each.
ONE_SECOND = "script: pause 20 | words 50"
#: Time between disconnect and reconnect, and words in the answer. Seconds, items.
AWAY_S, DROP_WORDS = 0.075, 150


@contextlib.asynccontextmanager
async def connections(setting: Setting, count: int) -> AsyncIterator[list[Connection]]:
    async with contextlib.AsyncExitStack() as opened:
        address = setting.running.address
        yield [await opened.enter_async_context(Connection.open(address)) for _ in range(count)]


async def sessions_at_once(setting: Setting) -> list[Line]:
    walls: list[float] = []
    alone: list[float] = []
    cpu: list[float] = []
    async with setting.client() as client, connections(setting, SESSIONS) as opened, client.stream() as stream:
        for _ in range(setting.count(4, 2)):
            sessions = [await client.session() for _ in opened]
            start = time.perf_counter()
            await asyncio.gather(*(ask_directly(setting.model, ONE_SECOND) for _ in opened))
            alone.append(time.perf_counter() - start)
            start, used = time.perf_counter(), setting.running.cpu_s
            submits = [Client(one, client.workspace_id).submit for one in opened]
            run_ids = await asyncio.gather(*(one(s, ONE_SECOND) for one, s in zip(submits, sessions, strict=True)))
            ends = [await stream.until_complete(run_id) for run_id in run_ids]
            walls.append(max(end.at for end in ends) - start)
            cpu.append(setting.running.cpu_s - used)
            if any(end.payload["outcome"] != "completed" for end in ends):
                raise RuntimeError("a run did not complete")
    # Skip the first round, which fills the connection pools.
    wall, own = median(walls[1:]), median(alone[1:])
    note = f"model only: {own:.2f} s (x{wall / own:.2f}); {median(cpu[1:]):.2f} s of CPU"
    return [Line("50 concurrent sessions, 1.0 s of model time each", wall, "s", note)]


async def cancel_latency(setting: Setting) -> list[Line]:
    took_ms: list[float] = []
    count = setting.count(100, 30)
    async with setting.client() as client, client.stream() as stream:
        for _ in range(count):
            session = await client.session()
            start = len(stream.frames)
            run_id = await client.submit(session, "script: pause 1 | words 3 | hang")
            await stream.until_delta(start)
            sent = time.perf_counter()
            await client.cancel(session)
            took_ms.append(((await stream.until_complete(run_id, start)).at - sent) * 1000)
        async with Connection.open(setting.model) as model:
            left = (await model.call("GET", "/stats"))["open"]
    note = f"{count} samples; model connections left open: {left}"
    return [
        Line("cancel to run_complete at a client", median(took_ms), "ms", note),
        Line("cancel to run_complete, p95", p95(took_ms), "ms"),
    ]


async def cancel_after_accept(setting: Setting) -> list[Line]:
    """Cancel after the 202. The Run is accepted, so the cancel must cover it and it must end cancelled."""
    count = setting.count(50, 50)
    failures = 0
    async with setting.client() as client, client.stream() as stream:
        for _ in range(count):
            session = await client.session()
            run_id = await client.submit(session, "script: hang")
            reply = await client.cancel(session)
            end = await stream.until_complete(run_id)
            covered = [run["run_id"] for run in reply["covered"]] == [run_id]
            failures += not (
                covered and end.payload["outcome"] == "cancelled" and await _has_ended(client, session, run_id)
            )
        failures += _ended_twice(stream)
    return [Line("cancel right after the accept, failures", failures, "", f"of {count}")]


async def cancel_with_prompt(setting: Setting) -> list[Line]:
    """Send a prompt and a cancel at the same time. The Run ends cancelled if it was covered, otherwise completed."""
    count = setting.count(50, 50)
    failures = hit = 0
    async with (
        setting.client() as client,
        Connection.open(setting.running.address) as other,
        client.stream() as stream,
    ):
        for number in range(count):
            session = await client.session()
            body = {"session_id": session, "prompt": "script: pause 1 | say done", "when_busy": "queue"}
            prompt = (client.connection, f"{client.at}/agent", body)
            cancel = (other, f"{client.at}/agent/sessions/{session}/cancel", None)
            for connection, path, content in (prompt, cancel) if number % 2 else (cancel, prompt):
                connection.send("POST", path, content)
            (_, receipt), (_, reply) = await asyncio.gather(client.connection.receive(), other.receive())
            run_id = receipt["run_id"]
            covered = run_id in [run["run_id"] for run in reply["covered"]]
            end = await stream.until_complete(run_id)
            correct = end.payload["outcome"] == ("cancelled" if covered else "completed")
            failures += not (correct and await _has_ended(client, session, run_id))
            hit += covered
        failures += _ended_twice(stream)
    return [
        Line(
            "concurrent prompt and cancel, failures",
            failures,
            "",
            f"of {count}; the cancel covered the prompt {hit} times",
        )
    ]


async def cancel_between(setting: Setting) -> list[Line]:
    """Cancel with A active and B queued, then submit C: A and B must end cancelled, C must complete."""
    count = setting.count(30, 10)
    failures = 0
    async with setting.client() as client, client.stream() as stream:
        for _ in range(count):
            session = await client.session()
            covered = [await client.submit(session, "script: hang"), await client.submit(session, "script: say b")]
            await client.cancel(session)
            spared = await client.submit(session, "script: say c")
            ends = [(await stream.until_complete(run_id)).payload["outcome"] for run_id in (*covered, spared)]
            correct = ends == ["cancelled", "cancelled", "completed"]
            failures += not (correct and await _has_ended(client, session, spared))
        failures += _ended_twice(stream)
    return [Line("A active, B queued, cancel, then C, failures", failures, "", f"of {count}")]


async def dropped_stream(setting: Setting) -> list[Line]:
    """Drop a stream in the middle of an answer, resume it, and assemble the text."""
    count = setting.count(3, 1)
    lost = 0
    async with setting.client() as client:
        for _ in range(count):
            session = await client.session()
            async with client.stream() as stream:
                run_id = await client.submit(session, f"script: pause {PACE_MS} | words {DROP_WORDS}")
                await stream.until(lambda stream=stream: len(stream.find("delta")) >= 20)  # type: ignore[misc]
                before = stream.frames
            await asyncio.sleep(AWAY_S)
            last = max(frame.position or 0 for frame in before)
            async with client.stream(f"after={last}") as stream:
                await stream.until_complete(run_id)
            message_id = next(frame for frame in before if frame.type == "delta").payload["message_id"]
            # Count only streamed text: the durable message at the end would hide a loss.
            lost += DROP_WORDS - len(_shown(before + stream.frames, message_id).split())
    note = f"of {count * DROP_WORDS}; disconnected for {AWAY_S * 1000:.0f} ms"
    return [Line("stream dropped mid-run and resumed, words lost", lost, "words", note)]


def _shown(frames: list[Frame], message_id: str) -> str:
    """Return the text of a message as a client assembles it: `message` replaces the text, `delta` appends to it."""
    text = ""
    for frame in frames:
        if frame.type == "message" and frame.payload["id"] == message_id:
            text = "".join(part["data"]["text"] for part in frame.payload["parts"] if part["type"] == "text")
        elif frame.type == "delta" and frame.payload["message_id"] == message_id:
            text += frame.payload["text"]
    return text


async def _has_ended(client: Client, session: str, run_id: str) -> bool:
    """Return whether the record of the Run is ended and the session is idle."""
    run = await client.run(run_id)
    record = await client.connection.call("GET", f"{client.at}/sessions/{session}")
    return run["state"] == "ended" and not record["is_busy"]


def _ended_twice(stream: Stream) -> int:
    ended = [frame.payload["run_id"] for frame in stream.find("run_complete")]
    return len(ended) - len(set(ended))
