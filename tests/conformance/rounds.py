"""Helpers of race tests: many concurrent rounds on one server, and checks of their results."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

from tests.conformance.harness import Json, Peer, Stream, finish_of, open_http

#: Attempts at each race. Items.
TRIES = 200
#: Concurrent sessions: enough to fill the group commit of the store. Items.
WORKERS = 10

Play = Callable[[str, random.Random], Awaitable[None]]


async def play_rounds(peer: Peer, play: Play, tries: int = TRIES, workers: int = WORKERS) -> None:
    """Call `play(session_id, random)` `tries` times, concurrently. Each worker has its own session."""

    async def worker(index: int) -> None:
        session = await peer.session()
        for number in range(index, tries, workers):
            await play(session, random.Random(number))

    async with asyncio.TaskGroup() as group:
        for index in range(workers):
            group.create_task(worker(index))


async def lag(chance: random.Random, passes_max: int = 40) -> None:
    """Wait for a random number of event loop passes, so that the next action meets the others at a random moment."""
    for _ in range(chance.randrange(passes_max)):
        await asyncio.sleep(0)


class Aim:
    """The start of one side of a race: later after each attempt that it won, earlier after each that it lost. So both
    outcomes occur, on any machine."""

    def __init__(self, passes: float = 10) -> None:
        self._passes = passes
        #: The number of attempts that it won, and that it lost.
        self.was_first: Counter[bool] = Counter()

    async def lag(self, chance: random.Random) -> None:
        for _ in range(int(self._passes * (0.5 + chance.random()))):
            await asyncio.sleep(0)

    def saw(self, was_first: bool) -> None:
        self.was_first[was_first] += 1
        self._passes = self._passes * 1.5 + 1 if was_first else self._passes / 1.5

    def check(self, least: int = 3) -> None:
        """Check that each side won at least `least` attempts; about half is usual."""
        assert min(self.was_first[True], self.was_first[False]) >= least, f"the race did not occur: {self.was_first}"


class Ends:
    """The `run_complete` frames of a stream by run id. Each of the thousands of frames is read once."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._read = 0
        self._by_run: dict[str, list[Json]] = {}

    def of(self, run_id: str) -> list[Json]:
        fresh = self._stream.frames[self._read :]
        self._read += len(fresh)
        for frame in fresh:
            if frame.type == "run_complete":
                self._by_run.setdefault(frame.payload["run_id"], []).append(frame.payload)
        return self._by_run.get(run_id, [])

    async def until(self, *run_ids: str) -> list[Json]:
        """Wait for the end of each Run, and return the ends in the order of the arguments."""
        await self._stream.until(lambda _: all(self.of(run_id) for run_id in run_ids))
        return [self.of(run_id)[0] for run_id in run_ids]

    def all(self) -> dict[str, list[Json]]:
        self.of("")
        return self._by_run


async def fence(peer: Peer, *streams: Stream) -> str:
    """Wait until the streams have all events until now: create a session, wait for its event, and return its id."""
    marker = await peer.session("marker")
    for stream in streams:
        await stream.until(lambda seen: any(frame.payload.get("id") == marker for frame in reversed(seen.frames)))
    return marker


@asynccontextmanager
async def no_trace(peer: Peer, session: str) -> AsyncIterator[None]:
    """Check that the body of the `with` statement records no Run, no message and no event."""

    async def state() -> object:
        live = [run for run in await peer.call("GET", "/runs") if run["workspace_id"] == peer.workspace]
        # Without the text: that of a streaming message may grow meanwhile.
        messages = [(message["id"], finish_of(message)) for message in await peer.messages(session)]
        return await peer.runs(session), messages, live

    async with peer.stream() as stream:
        before = await state()
        yield
        marker = await fence(peer, stream)
        assert await state() == before
        assert [(frame.type, frame.payload.get("id")) for frame in stream.durable] == [("session", marker)]


@asynccontextmanager
async def more_peers(first: Peer, shared: tuple[str, str], count: int) -> AsyncIterator[list[Peer]]:
    """Further clients in the same workspace, each with its own connections."""
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(open_http(*shared)) for _ in range(count)]
        yield [await Peer(http, first.directory).open() for http in clients]
