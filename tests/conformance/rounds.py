"""For races: many small rounds on one server, side by side, and ways to see all of what came of them."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

from tests.conformance.harness import Json, Peer, Stream, finish_of, open_http

#: Tries of each race. What the brief of a race asks for at the least.
TRIES = 200
#: Sessions in which rounds are played at the same time: enough to fill the store's group commit.
WORKERS = 10

Play = Callable[[str, random.Random], Awaitable[None]]


async def play_rounds(peer: Peer, play: Play, tries: int = TRIES, workers: int = WORKERS) -> None:
    """`play(session_id, random)` so many times, a few at once, each worker with a session of its own."""

    async def worker(index: int) -> None:
        session = await peer.session()
        for number in range(index, tries, workers):
            await play(session, random.Random(number))

    async with asyncio.TaskGroup() as group:
        for index in range(workers):
            group.create_task(worker(index))


async def lag(chance: random.Random, passes_max: int = 40) -> None:
    """A random while, in passes of the event loop: where in the others' work what follows falls is anybody's guess."""
    for _ in range(chance.randrange(passes_max)):
        await asyncio.sleep(0)


class Aim:
    """When one side of a race begins: a little later after each try in which it was first, a little earlier after each
    in which it was not. So it keeps falling close to the other side, on whatever machine, and both come up."""

    def __init__(self, passes: float = 10) -> None:
        self._passes = passes
        #: How often it was first, and how often not.
        self.was_first: Counter[bool] = Counter()

    async def lag(self, chance: random.Random) -> None:
        for _ in range(int(self._passes * (0.5 + chance.random()))):
            await asyncio.sleep(0)

    def saw(self, was_first: bool) -> None:
        self.was_first[was_first] += 1
        self._passes = self._passes * 1.5 + 1 if was_first else self._passes / 1.5

    def check(self, least: int = 3) -> None:
        """Both sides were met so often at the least: far less than half of the tries, which is what comes up."""
        assert min(self.was_first[True], self.was_first[False]) >= least, f"the race was not met: {self.was_first}"


class Ends:
    """The `run_complete`s of a stream by run id. Each frame is looked at once, since there are thousands."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._looked_at = 0
        self._found: dict[str, list[Json]] = {}

    def of(self, run_id: str) -> list[Json]:
        fresh = self._stream.frames[self._looked_at :]
        self._looked_at += len(fresh)
        for frame in fresh:
            if frame.type == "run_complete":
                self._found.setdefault(frame.payload["run_id"], []).append(frame.payload)
        return self._found.get(run_id, [])

    async def until(self, *run_ids: str) -> list[Json]:
        """Wait for the end of each of these Runs; in the order asked for."""
        await self._stream.until(lambda _: all(self.of(run_id) for run_id in run_ids))
        return [self.of(run_id)[0] for run_id in run_ids]

    def all(self) -> dict[str, list[Json]]:
        self.of("")
        return self._found


async def fence(peer: Peer, *streams: Stream) -> str:
    """Wait until these streams have everything that happened so far: a new session, seen on each. Its id."""
    marker = await peer.session("marker")
    for stream in streams:
        await stream.until(lambda seen: any(frame.payload.get("id") == marker for frame in reversed(seen.frames)))
    return marker


@asynccontextmanager
async def no_trace(peer: Peer, session: str) -> AsyncIterator[None]:
    """Whatever happens inside records nothing: no Run, no message, no event."""

    async def state() -> object:
        live = [run for run in await peer.call("GET", "/runs") if run["workspace_id"] == peer.workspace]
        # Of a message that streams meanwhile the text may grow: that is no trace of what happens inside.
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
    """So many further clients in the same workspace, with connections of their own."""
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(open_http(*shared)) for _ in range(count)]
        yield [await Peer(http, first.directory).open() for http in clients]
