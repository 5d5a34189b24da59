"""Streaming from the model to the readers: latency, CPU time and bytes per word."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from bench.load import WAIT_S, Body, Connection, request
from bench.readers import Readers, Received
from bench.relay import Relay
from bench.report import Line, median, p95, shown
from bench.server import Address
from bench.setting import Setting

#: Pause of a fast model: 200 words a second. Milliseconds.
PACE_MS = 5
#: Pause of a slow model: too long for two words to be merged. Milliseconds.
SLOW_MS = 30
#: The model's time to its first word, in `first_delta`. Milliseconds.
FIRST_WORD_MS = 20


async def first_delta(setting: Setting) -> list[Line]:
    """Time from the POST to the first delta at a client, less that of direct model calls, alternating."""
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
            if number >= 3:  # the first three warm up both sides
                direct_ms.append(direct * 1000)
                through_ms.append((seen - sent) * 1000)
    own_ms = median(direct_ms)
    note = f"{median(through_ms):.1f} ms through the server, {own_ms:.1f} ms directly; {count} samples"
    return [
        Line("POST to first delta, excluding model time", median(through_ms) - own_ms, "ms", note),
        Line("POST to first delta, excluding model time, p95", p95(through_ms) - own_ms, "ms"),
    ]


async def ask_directly(model: Address, script: str) -> float:
    """Return the seconds from the request to the model's first word. Waits for the end of the answer."""
    loop = asyncio.get_running_loop()
    first: list[float] = []
    ended = asyncio.Event()

    def receive(data: bytes) -> None:
        first.append(time.perf_counter())
        if b"[DONE]" in data:
            ended.set()

    transport, _ = await loop.create_connection(lambda: Body(receive, ended.set), model.host, model.port)
    body = {"model": "fake-large", "stream": True, "messages": [{"role": "user", "content": script}]}
    sent = time.perf_counter()
    transport.write(request(model, "POST", "/v1/chat/completions", body))
    await asyncio.wait_for(ended.wait(), WAIT_S)
    transport.abort()
    return first[0] - sent


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one Run with this number of readers."""

    words: int
    readers: int
    cpu_s: float
    wall_s: float
    received: Received

    @property
    def per_1000_words(self) -> float:
        return self.cpu_s / self.words * 1000

    @property
    def per_1000_delivered(self) -> float:
        return self.per_1000_words / self.readers

    @property
    def rate(self) -> float:
        """Words per second."""
        return self.words / self.wall_s

    @property
    def words_per_frame(self) -> float:
        return self.words * self.readers / max(self.received.delta_frames, 1)


@dataclass(frozen=True, slots=True)
class Subject:
    """The measured process: the server, or the bare relay for comparison."""

    address: Address
    #: The path of its event stream.
    path: str
    cpu_s: Callable[[], float]
    submit: Callable[[str], Awaitable[object]]


@contextlib.asynccontextmanager
async def subjects(setting: Setting) -> AsyncIterator[list[Subject]]:
    """Open the server and the relay as subjects."""
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


async def stream_costs(tested: list[Subject], readers: int, words: int, pause_ms: int, count: int) -> list[Cost]:
    """Return for each subject the Run with the median CPU time of `count` alternating Runs, after a warm-up."""
    costs: list[list[Cost]] = [[] for _ in tested]
    with contextlib.ExitStack() as opened:
        crowds = [opened.enter_context(Readers.open(subject.address, subject.path, readers)) for subject in tested]
        for subject, crowd in zip(tested, crowds, strict=True):
            await subject.submit("script: pause 2 | words 20")
            await crowd.until_complete()
        for _ in range(count):
            for subject, crowd, runs in zip(tested, crowds, costs, strict=True):
                cpu, wall = subject.cpu_s(), time.perf_counter()
                await subject.submit(f"script: pause {pause_ms} | words {words}")
                received = await crowd.until_complete()
                runs.append(Cost(words, readers, subject.cpu_s() - cpu, time.perf_counter() - wall, received))
    return [sorted(runs, key=lambda cost: cost.cpu_s)[len(runs) // 2] for runs in costs]


async def one_reader(setting: Setting) -> list[Line]:
    count = setting.count(3, 1)
    async with subjects(setting) as both:
        server = both[:1]
        paced, bare = await stream_costs(both, 1, setting.count(600, 300), PACE_MS, count)
        (slow,) = await stream_costs(server, 1, setting.count(100, 50), SLOW_MS, 1)
        (fast,) = await stream_costs(server, 1, 10_000, 0, setting.count(5, 3))
    alone = f"{slow.rate:.0f} words/s, {slow.words_per_frame:.1f} per frame"
    return [
        Line(
            "CPU per 1,000 deltas, 1 reader",
            paced.per_1000_words,
            "s",
            f"{paced.rate:.0f} words/s; {_baseline(paced, bare)}",
        ),
        Line("CPU per 1,000 deltas, 1 reader, slow model", slow.per_1000_words, "s", alone),
        Line("CPU per 1,000 deltas, 1 reader, unpaced model", fast.per_1000_words, "s", f"{fast.rate:,.0f} words/s"),
        Line(
            "bytes per model delta",
            paced.received.delta_bytes / paced.words,
            "B",
            f"{paced.rate:.0f} words/s, {paced.words_per_frame:.1f} per frame",
        ),
        Line("bytes per delta frame", paced.received.delta_bytes / max(paced.received.delta_frames, 1), "B"),
        Line("bytes per model delta, slow model", slow.received.delta_bytes / slow.words, "B", alone),
        Line("bytes per model delta, all frames", paced.received.all_bytes / paced.words, "B"),
    ]


async def many_readers(setting: Setting) -> list[Line]:
    lines: list[Line] = []
    async with subjects(setting) as both:
        for readers in (50,) if setting.quick else (10, 50, 200):
            server, bare = await stream_costs(both, readers, setting.count(300, 200), PACE_MS, setting.count(3, 1))
            note = f"{server.rate:.0f} words/s, {server.words_per_frame:.1f} per frame; {_baseline(server, bare)}"
            lines.append(Line(f"CPU per 1,000 delivered, {readers} readers", server.per_1000_delivered, "s", note))
    return lines


def _baseline(server: Cost, bare: Cost) -> str:
    return f"bare relay: {shown(bare.per_1000_delivered)} s (x{server.cpu_s / bare.cpu_s:.1f})"
