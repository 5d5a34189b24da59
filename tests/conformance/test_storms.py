"""G4 with real sockets: readers that disconnect at any moment, in every way, and resume, while Runs stream."""

from __future__ import annotations

import asyncio
import random
from itertools import count
from pathlib import Path

import pytest

from proof.figures import IS_LONG, proof
from tests.conformance.harness import WAIT_S, unique
from tests.conformance.loops import (
    Address,
    Envelope,
    Follower,
    Wire,
    address_of,
    open_workspace,
    replay,
    seeds,
    whole_log,
)

#: Attempts of one part, each with a seed; that of the first one is the seed of the part. Items.
EACH = 2_500 if IS_LONG else 500
READERS = 20
#: Concurrent Runs, each in its own session, repeated while readers connect and disconnect. Items.
TALKERS = 4
#: The way in which a reader disconnects, and its share of ten.
MANNERS = ("abort", "abort", "abort", "abort", "close", "close", "close", "half-close", "half-close", "at once")
#: Bytes read by one connection; the head of a reply alone has 160.
READ_BYTES_MAX = 6_000
#: Share of attempts that get a reply: one in ten disconnects at once, a few read only a part of the head.
ANSWERED_MIN = 0.8


class Text:
    """The message texts of one reader: they only grow, over all connections."""

    def __init__(self) -> None:
        self.shown: dict[str, str] = {}

    def look(self, position: int | None, envelope: Envelope) -> None:
        body = envelope.payload.payload
        if envelope.type == "message" and body.role == "assistant":
            whole = "".join(part["data"]["text"] for part in body.parts if part["type"] == "text")
            before = self.shown.get(body.id, "")
            assert whole.startswith(before), f"{before[-40:]!r} became {whole[-40:]!r}"
            self.shown[body.id] = whole
        elif envelope.type == "delta":
            self.shown[body.message_id] = self.shown.get(body.message_id, "") + body.text


async def talk(
    address: Address, workspace: str, chance: random.Random, is_over: asyncio.Event, runs: list[str]
) -> None:
    wire = Wire(address)
    try:
        while not is_over.is_set():
            session = (await wire.expect(200, "POST", f"/workspaces/{workspace}/sessions", {"title": ""}))["id"]
            look = "tool nothing {} | " * chance.randrange(3)
            script = f"script: pause {chance.randint(1, 4)} | say a b c | {look}words {chance.randint(10, 80)}"
            body = {"session_id": session, "prompt": script, "run_id": unique("run")}
            runs.append((await wire.expect(202, "POST", f"/workspaces/{workspace}/agent", body))["run_id"])
            if chance.randrange(5) == 0:
                await wire.expect(200, "POST", f"/workspaces/{workspace}/agent/sessions/{session}/cancel")
            await wire.expect(200, "GET", f"/workspaces/{workspace}/agent/runs/{runs[-1]}/wait?timeout_s={WAIT_S}")
    finally:
        wire.close()


async def come_and_go(follower: Follower, address: Address, chance: random.Random, left: count[int], most: int) -> None:
    while next(left) < most:
        manner = chance.choice(MANNERS)
        enough = 0 if manner == "at once" else chance.randint(1, READ_BYTES_MAX)
        await follower.follow(address, bytes_max=enough, how=manner)


@pytest.mark.proof
@pytest.mark.timeout(1800 if IS_LONG else 120)
# More than are counted, since some disconnect before the reply.
@pytest.mark.parametrize("seeds_", seeds(1_000, 60_000, each=EACH), ids=str)
async def test_readers_that_drop_at_any_moment_get_each_event_once(
    shared: tuple[str, str], tmp_path: Path, seeds_: range
) -> None:
    address, chance = address_of(*shared), random.Random(seeds_[0])
    attempts = len(seeds_) if len(seeds_) > 1 else EACH  # one seed: replay its part
    with proof("G4", "real reconnects", "gaps or doubles") as figure:
        wire = Wire(address)
        workspace = await open_workspace(wire, tmp_path)
        is_over, runs, left = asyncio.Event(), list[str](), count()
        followers = [Follower(workspace, deltas=number % 4 > 0, position=0) for number in range(READERS)]
        screens = [Text() for _ in followers]
        for follower, screen in zip(followers, screens, strict=True):
            follower.hook = screen.look
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(TALKERS):
                    group.create_task(talk(address, workspace, random.Random(chance.random()), is_over, runs))
                async with asyncio.TaskGroup() as readers:
                    for follower in followers:
                        own = random.Random(chance.random())
                        readers.create_task(come_and_go(follower, address, own, left, attempts))
                is_over.set()
            answered = sum(follower.connects for follower in followers)
            assert ANSWERED_MIN * attempts <= answered <= attempts
            wire.close()  # the server may have closed the idle connection
            marker = (await wire.expect(200, "POST", f"/workspaces/{workspace}/sessions", {"title": ""}))["id"]
            for follower in followers:
                await follower.follow(address, lambda follower: bool(follower.seen) and follower.seen[-1][2] == marker)
            log = await whole_log(address, workspace, followers[0].position or 0)
            for follower in followers:
                assert follower.gaps == 0
                assert follower.seen == log
            assert {kind[2] for kind in log if kind[1] == "run_complete"} == set(runs)
            await check_texts(wire, workspace, log, screens)
        except BaseException:
            print(replay("tests/conformance/test_storms.py", seeds_[0]))
            raise
        finally:
            wire.close()
        figure.count = answered
        figure.notes |= {"left before they were answered": attempts - answered, "runs": len(runs)}
        figure.notes["events compared"] = sum(len(follower.seen) for follower in followers)


async def check_texts(wire: Wire, workspace: str, log: list[tuple[int, str, str, str]], screens: list[Text]) -> None:
    """Check that every reader has the complete stored text."""
    sessions = {kind[2] for kind in log if kind[1] == "session"}
    for session in sessions:
        for message in await wire.expect(200, "GET", f"/workspaces/{workspace}/sessions/{session}/messages"):
            if message["role"] == "assistant":
                text = "".join(part["data"]["text"] for part in message["parts"] if part["type"] == "text")
                assert {screen.shown[message["id"]] for screen in screens} == {text}
