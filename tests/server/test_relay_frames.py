"""Readers of a mirror: fed by the frames of the serving node or from the store, they end with the same messages."""

from __future__ import annotations

import asyncio
import random
import secrets
from pathlib import Path
from uuid import uuid4

import msgspec
import pytest

from kedge.core.transcript import Message, Reasoning, Text
from kedge.engine.feed import Reader
from kedge.engine.mirror import Mirror, growth_of
from kedge.engine.readers import read_mirror
from kedge.errors import ModelFailed
from kedge.server.relay import NAMED_MAX
from kedge.server.relay_frames import FrameBuffer, take_frame
from kedge.testing.scripted import Hold, Say
from kedge.wire.limits import SMALL_BODY_BYTES_MAX
from kedge.wire.relay_models import RelayReader, RelayReaders
from tests.engine.rig import Fault, FaultyModel, Rig, rig, spin
from tests.engine.test_feed import Frames, parsed, positions

PIECES = 8
#: The text of an attempt that fails: the next one begins again.
LOST = "lost text "


class Screen:
    """A client of a mirror: its events, and the texts of messages as it builds them."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.frames: Frames = []
        self.texts: dict[str, list[str]] = {}
        #: All texts that a message has had here.
        self.states: dict[str, set[str]] = {}

    async def read(self) -> None:
        data = b""
        while part := await self.reader.read(0):
            data += part
        for kind, payload, position in parsed(self.reader.take_gap() + data):
            self.frames.append((kind, payload, position))
            if kind == "message":
                self.texts[payload["id"]] = [part["data"].get("text", "") for part in payload["parts"]]
            elif kind == "delta":
                texts = self.texts[payload["message_id"]]
                texts += [""] * (payload["part"] + 1 - len(texts))
                texts[payload["part"]] += payload["text"]
            for id_, texts in self.texts.items():
                self.states.setdefault(id_, set()).add("".join(texts))


class Link:
    """The connection of a mirror to the feed of the serving node, which can be cut."""

    def __init__(self, r: Rig, mirror: Mirror) -> None:
        self._r, self.mirror = r, mirror
        self._upstream: Reader | None = None

    async def use(self) -> None:
        if self._upstream is None:
            self._upstream = await self._r.workspace.feed.reader(self.mirror.head, None, deltas=True)
            self._buffer = FrameBuffer()
        while data := await self._upstream.read(0):
            for start in range(0, len(data), 1000):
                for frame in self._buffer.add(data[start : start + 1000]):
                    take_frame(self.mirror, frame)
        self.mirror.flush_due()

    async def use_store(self) -> None:
        """Cut the link, let the Run save its text, and read the store."""
        if self._upstream is not None:
            self._upstream.close()
            self._upstream = None
        for state in self._r.workspace.lanes.values():
            for draft in list(self._r.workspace.feed._drafts.values()):
                await self._r.engine._door.save_tails(state, draft)
        await self.mirror.refresh()


@pytest.mark.parametrize("seed", range(40))
async def test_mirrored_readers_end_with_the_same_messages(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    pieces = [piece for number in range(PIECES) for piece in (Say(f"w{number} "), Hold(f"k{number}"))]
    faults = [Fault(ModelFailed("away", retryable=True), LOST)] if chance.randrange(2) else []
    model = FaultyModel(pieces, "second", faults=[*faults])
    async with rig(tmp_path, model) as r:
        r.workspace.feed.ring_bytes_max = chance.choice((3_000, 1_000_000))
        _, start = await r.store.bounds(r.workspace.id)
        screens: list[Screen] = []
        await r.submit(run_id="a")
        await r.submit(run_id="b")
        before = chance.randrange(PIECES)
        for number in range(before):
            await spin(20)
            model.release(f"k{number}")
        mirror = await r.engine.workspaces.mirror(r.workspace.id)
        mirror.ring_bytes_max = chance.choice((3_000, 1_000_000))
        link = Link(r, mirror)
        if chance.randrange(2):
            screens.append(Screen(await read_mirror(mirror, start, None, deltas=True)))
            await screens[0].read()
        for number in range(before, PIECES):
            await spin(chance.randrange(30))
            for _ in range(chance.randrange(4)):
                feed = chance.choice((link.use, link.use, link.use_store))
                await feed()
                if chance.randrange(2):
                    deltas = chance.randrange(3) > 0
                    opening = asyncio.create_task(read_mirror(mirror, start, None, deltas=deltas))
                    while not opening.done():
                        await feed()
                        await spin(1)
                    screens.append(Screen(opening.result()))
                for screen in screens:
                    if chance.randrange(3):
                        await screen.read()
            model.release(f"k{number}")
        await r.end("b")
        await chance.choice((link.use, link.use_store))()
        screens.append(Screen(await read_mirror(mirror, start, None, deltas=True)))
        _, head = await r.store.bounds(r.workspace.id)
        stored = await r.store.messages(r.session, None, 100)
        for screen in screens:
            await screen.read()
            assert positions(screen.frames) == list(range(start + 1, head + 1))
            for message in stored:
                assert "".join(screen.texts[message.id]) == message.text
                wrong = [one for one in screen.states[message.id] if not message.text.startswith(one)]
                assert not [one for one in wrong if not LOST.startswith(one)]


async def test_reader_receives_no_end_before_the_mirror(tmp_path: Path) -> None:
    """The log may be ahead of the frames: the end of a message would be replaced by its streaming version."""
    async with rig(tmp_path, FaultyModel([Say("one"), Hold("k"), Say(" two")], faults=[])) as r:
        mirror = await r.engine.workspaces.mirror(r.workspace.id)
        link, start = Link(r, mirror), mirror.head
        await r.submit(run_id="a")
        await r.model.wait_requests(1)
        await spin(20)
        await link.use()
        screen = Screen(await read_mirror(mirror, start, None, deltas=True))
        mirror.rejoin()  # readers that lag read the log
        r.model.release("k")
        await r.end("a")
        await screen.read()
        late = asyncio.create_task(read_mirror(mirror, None, None, deltas=True))
        await spin(20)
        assert positions(screen.frames)[-1] == mirror.head
        assert "one" in {"".join(texts) for texts in screen.texts.values()}
        assert not late.done()  # its client may have seen the end at the serving node
        await link.use()
        await screen.read()
        assert "one two" in {"".join(texts) for texts in screen.texts.values()}
        assert (await late).position == mirror.head


def test_growth_is_what_was_added_at_the_end() -> None:
    one, two, thought = Text("one"), Text("one two"), Reasoning("hm")
    assert growth_of((), (thought, one)) == [(0, "reasoning", "hm"), (1, "text", "one")]
    assert growth_of((thought, one), (thought, two)) == [(1, "text", " two")]
    assert growth_of((one,), (one, thought)) == [(1, "reasoning", "hm")]
    assert growth_of((one,), (one,)) == []
    for before, after in (
        ((two,), (one,)),
        ((one, thought), (two, thought)),
        ((thought,), (Text("hm"),)),
        ((one,), ()),
    ):
        assert growth_of(before, after) is None


async def test_deltas_follow_the_parts_of_the_serving_node(tmp_path: Path) -> None:
    async with rig(tmp_path, FaultyModel(faults=[])) as r:
        mirror = await r.engine.workspaces.mirror(r.workspace.id)
        mirror.begin_message(Message("m", r.session, "assistant", (Reasoning("a", "signed"),), 1, 1, "r"))
        mirror.add("m", (0, "reasoning", "b"))
        mirror.add("m", (1, "reasoning", "c"))
        draft = mirror.streaming("m")
        assert draft is not None
        texts = [part.thinking for part in draft.message(1).parts if isinstance(part, Reasoning)]
        assert texts == ["ab", "c"]


def test_request_that_names_most_readers_fits_into_a_body() -> None:
    """With ids as `postgres_fence.py` and clients make them."""
    stream_ids = [f"{secrets.token_hex(16)}-{10**7 + number}" for number in range(2 * NAMED_MAX)]
    opened = [RelayReader(stream_id, str(uuid4())) for stream_id in stream_ids[:NAMED_MAX]]
    body = msgspec.json.encode(RelayReaders(10**7, opened, stream_ids[NAMED_MAX:]))
    assert len(body) <= SMALL_BODY_BYTES_MAX
