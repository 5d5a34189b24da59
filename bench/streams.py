"""The way of a word from the model to the readers: how long it takes, what it costs, how many bytes it is."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from bench.load import WAIT_S, Body, Connection, request
from bench.readers import Got, Readers
from bench.relay import Relay
from bench.report import Line, median, p95, shown
from bench.server import Address
from bench.setting import Setting

#: A quick model: 200 words a second. Milliseconds.
PACE_MS = 5
#: A model at which nothing can be run together: each word comes alone. Milliseconds.
SLOW_MS = 30
#: The model's own time to its first word, in the measure of what the server adds. Milliseconds.
FIRST_WORD_MS = 20


async def first_delta(setting: Setting) -> list[Line]:
    """From the POST to the first delta at a client; less the same with the model asked directly, in turns."""
    script = f"script: pause {FIRST_WORD_MS} | words 3"
    count = setting.count(100, 25)
    direct_ms: list[float] = []
    through_ms: list[float] = []
    async with setting.client() as client, client.stream() as stream:
        sessions = [await client.session() for _ in range(count + 3)]
        for number, session in enumerate(sessions):
            direct = await ask_directly(setting.model, script)
            start = len(stream.frames)
            sent = time.perf_counter()
            run_id = await client.submit(session, script)
            seen = (await stream.until_delta(start)).at
            await stream.until_complete(run_id, start)
            if number >= 3:  # the first ones warm both sides
                direct_ms.append(direct * 1000)
                through_ms.append((seen - sent) * 1000)
    own_ms = median(direct_ms)
    note = f"{median(through_ms):.1f} ms through the server, {own_ms:.1f} ms directly; {count} times"
    return [
        Line("POST to first delta, over the model's time", median(through_ms) - own_ms, "ms", note),
        Line("the same, 95 % stay below", p95(through_ms) - own_ms, "ms"),
    ]


async def ask_directly(model: Address, script: str) -> float:
    """Seconds from the request to the model's first word; waits for the end of the answer."""
    loop = asyncio.get_running_loop()
    first: list[float] = []
    ended = asyncio.Event()

    def took(data: bytes) -> None:
        first.append(time.perf_counter())
        if b"[DONE]" in data:
            ended.set()

    transport, _ = await loop.create_connection(lambda: Body(took, ended.set), model.host, model.port)
    body = {"model": "fake-large", "stream": True, "messages": [{"role": "user", "content": script}]}
    sent = time.perf_counter()
    transport.write(request(model, "POST", "/v1/chat/completions", body))
    await asyncio.wait_for(ended.wait(), WAIT_S)
    transport.abort()
    return first[0] - sent


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one Run, seen by so many readers."""

    words: int
    readers: int
    cpu_s: float
    wall_s: float
    got: Got

    @property
    def per_1000_words(self) -> float:
        return self.cpu_s / self.words * 1000

    @property
    def per_1000_delivered(self) -> float:
        return self.per_1000_words / self.readers

    @property
    def rate(self) -> float:
        """Words a second."""
        return self.words / self.wall_s

    @property
    def words_per_frame(self) -> float:
        return self.words * self.readers / max(self.got.delta_frames, 1)


@dataclass(frozen=True, slots=True)
class Subject:
    """What is measured: the server, or the bare relay beside it."""

    address: Address
    #: Of its event stream.
    path: str
    cpu_s: Callable[[], float]
    submit: Callable[[str], Awaitable[object]]


@contextlib.asynccontextmanager
async def subjects(setting: Setting) -> AsyncIterator[list[Subject]]:
    """The server and the relay."""
    running = setting.running
    with Relay.open(setting.model) as relay:
        async with setting.client() as client, Connection.open(relay.address) as connection:

            async def submit(script: str) -> None:
                await client.submit(await client.session(), script)

            async def ask(script: str) -> None:
                await connection.call("POST", "/", {"prompt": script})

            yield [
                Subject(running.address, client.events(), lambda: running.cpu_s, submit),
                Subject(relay.address, "/", lambda: relay.cpu_s, ask),
            ]


async def stream_costs(of: list[Subject], readers: int, words: int, pause_ms: int, count: int) -> list[Cost]:
    """For each subject the median of so many Runs by CPU, in turns, after a short one that warms up."""
    costs: list[list[Cost]] = [[] for _ in of]
    with contextlib.ExitStack() as opened:
        crowds = [opened.enter_context(Readers.open(subject.address, subject.path, readers)) for subject in of]
        for subject, crowd in zip(of, crowds, strict=True):
            await subject.submit("script: pause 2 | words 20")
            await crowd.until_complete()
        for _ in range(count):
            for subject, crowd, found in zip(of, crowds, costs, strict=True):
                cpu, wall = subject.cpu_s(), time.perf_counter()
                await subject.submit(f"script: pause {pause_ms} | words {words}")
                got = await crowd.until_complete()
                found.append(Cost(words, readers, subject.cpu_s() - cpu, time.perf_counter() - wall, got))
    return [sorted(found, key=lambda cost: cost.cpu_s)[len(found) // 2] for found in costs]


async def one_reader(setting: Setting) -> list[Line]:
    count = setting.count(3, 1)
    async with subjects(setting) as both:
        server = both[:1]
        paced, bare = await stream_costs(both, 1, setting.count(600, 300), PACE_MS, count)
        (slow,) = await stream_costs(server, 1, setting.count(100, 50), SLOW_MS, 1)
        (fast,) = await stream_costs(server, 1, 10_000, 0, setting.count(5, 3))
    alone = f"{slow.rate:.0f} words/s, {slow.words_per_frame:.1f} in a frame"
    return [
        Line(
            "CPU per 1,000 deltas, 1 reader",
            paced.per_1000_words,
            "s",
            f"{paced.rate:.0f} words/s; {_beside(paced, bare)}",
        ),
        Line("CPU per 1,000 deltas, 1 reader, slow model", slow.per_1000_words, "s", alone),
        Line(
            "CPU per 1,000 deltas, 1 reader, model at full speed", fast.per_1000_words, "s", f"{fast.rate:,.0f} words/s"
        ),
        Line(
            "bytes per model delta",
            paced.got.delta_bytes / paced.words,
            "B",
            f"{paced.rate:.0f} words/s, {paced.words_per_frame:.1f} in a frame",
        ),
        Line("bytes per delta frame", paced.got.delta_bytes / max(paced.got.delta_frames, 1), "B"),
        Line("bytes per model delta, slow model", slow.got.delta_bytes / slow.words, "B", alone),
        Line("bytes per model delta, durable frames too", paced.got.all_bytes / paced.words, "B"),
    ]


async def many_readers(setting: Setting) -> list[Line]:
    lines: list[Line] = []
    async with subjects(setting) as both:
        for readers in (50,) if setting.quick else (10, 50, 200):
            server, bare = await stream_costs(both, readers, setting.count(300, 200), PACE_MS, setting.count(3, 1))
            note = f"{server.rate:.0f} words/s, {server.words_per_frame:.1f} in a frame; {_beside(server, bare)}"
            lines.append(Line(f"CPU per 1,000 delivered, {readers} readers", server.per_1000_delivered, "s", note))
    return lines


def _beside(server: Cost, bare: Cost) -> str:
    return f"a bare relay: {shown(bare.per_1000_delivered)} s (x{server.cpu_s / bare.cpu_s:.1f})"
