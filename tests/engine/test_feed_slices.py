"""Readers that take a frame in slices while the feed moves on."""

from __future__ import annotations

from pathlib import Path

import pytest

from kedge.core.transcript import Message
from kedge.engine.draft import BLOCK_CHARS, Draft, DraftKind
from kedge.engine.feed import Feed, Reader
from kedge.testing.scripted import Hold, Say, ScriptedModel
from kedge.wire import frames
from kedge.wire.codec import message_body
from tests.engine.rig import Rig, rig, until
from tests.engine.test_feed import Frames, parsed, positions, read_all, reader

#: One line with characters that JSON escapes, and some of two to four bytes.
LINE = 'a "quoted" \\ line with \x01, \u00e4, \u20ac and \U0001f600\n'


async def streaming_draft(r: Rig) -> Draft:
    """Start a Run that streams until the key is released, and return its draft."""
    await r.submit(run_id="a")
    feed = r.workspace.feed
    await until(lambda: any(draft.chars for draft in feed._drafts.values()))
    (draft,) = feed._drafts.values()
    return draft


def add(feed: Feed, draft: Draft, text: str, kind: DraftKind = "text") -> None:
    draft.add(kind, text)
    feed.text_added(draft)
    feed._flush()


def test_snapshot_is_the_frame_of_the_complete_message() -> None:
    draft = Draft(Message("m", "s", "assistant", (), 1, 1))
    for number in range(60):
        now = 100 + number
        expected = frames.frame("message", "updated", message_body(draft.message(now)))
        assert b"".join(draft.snapshot(frames, now)) == expected
        kind: DraftKind = "reasoning" if number % 20 == 7 else "text"
        draft.add(kind, LINE * (number * 20), "signed" if kind == "reasoning" else "")
    assert draft.chars > 10 * BLOCK_CHARS


@pytest.mark.found(
    "fault 4",
    "a reader received a streaming message in one piece; with slices, it must still get the Deltas of exactly the "
    "version that it has",
)
async def test_slow_reader_of_a_growing_message_gets_its_exact_text(tmp_path: Path) -> None:
    async with rig(tmp_path, ScriptedModel([Say("begin "), Hold("k")])) as r:
        feed = r.workspace.feed
        feed.read_bytes_max, feed.ring_bytes_max = 3_000, 20_000
        slow, live = await reader(r), await reader(r)
        draft = await streaming_draft(r)
        add(feed, draft, LINE * 1_000)
        received: list[bytes] = []
        for number in range(200):
            # More than the ring holds is added while the reader takes a snapshot.
            add(feed, draft, LINE * 5, "reasoning" if number % 50 == 7 else "text")
            received.append(await slow.read(0.0) or b"")
            if number == 120:
                await r.engine.create_session(r.workspace, "meanwhile")
        rest = await _rest(slow)
        shown = parsed(b"".join(received) + rest)
        snapshots = [number for number, (kind, _, _) in enumerate(shown) if kind == "message"]
        assert len(snapshots) > 2, "it fell out of the ring"
        for number in snapshots:
            assert draft.text.startswith(_text(shown[: number + 1], draft.id))
        assert any(kind == "delta" for kind, _, _ in shown)
        assert _text(shown, draft.id) == draft.text
        assert positions(shown) == positions(await read_all(live))
        r.model.release("k")
        await r.end("a")


async def _rest(slow: Reader) -> bytes:
    slices: list[bytes] = []
    while data := await slow.read(0.0):
        slices.append(data)
    return b"".join(slices)


def _text(shown: Frames, message_id: str) -> str:
    """Return the text of a message as a client builds it, without reasoning."""
    parts: dict[int, str] = {}
    for kind, body, _ in shown:
        if kind == "message" and body["id"] == message_id:
            numbered = enumerate(body["parts"])
            parts = {number: part["data"]["text"] for number, part in numbered if part["type"] == "text"}
        elif kind == "delta" and body["message_id"] == message_id and body.get("kind") != "reasoning":
            parts[body["part"]] = parts.get(body["part"], "") + body["text"]
    return "".join(parts[number] for number in sorted(parts))


@pytest.mark.parametrize("deltas", [True, False])
@pytest.mark.found(
    "fault 4", "each reader that joined held the streaming messages twice; all readers now hold one encoded copy"
)
async def test_readers_that_join_at_different_times_share_the_text(tmp_path: Path, deltas: bool) -> None:
    async with rig(tmp_path, ScriptedModel([Say("begin "), Hold("k")])) as r:
        feed, readers = r.workspace.feed, []
        draft = await streaming_draft(r)
        for _ in range(40):
            add(feed, draft, LINE * 500)
            readers.append(await reader(r, deltas=deltas))
            await readers[-1].read(0.0)
        copies = {id(piece): len(piece) for one in readers for piece in one._pieces}
        complete = sum(map(len, draft.snapshot(frames, 0)))
        assert complete > 5 * BLOCK_CHARS
        assert sum(copies.values()) < complete + len(readers) * 2 * BLOCK_CHARS
        r.model.release("k")
        await r.end("a")


async def test_readers_of_the_log_share_a_large_entry(tmp_path: Path) -> None:
    async with rig(tmp_path, ScriptedModel("long " * 50_000)) as r:
        await r.end(await r.submit())
        r.workspace.feed._empty_ring(r.workspace.feed._head)
        readers = [await reader(r, after=0) for _ in range(5)]
        for one in readers:
            while not any(len(piece) > 200_000 for piece in one._pieces):
                assert await one.read(0.0)
        assert len({id(piece) for one in readers for piece in one._pieces if len(piece) > 200_000}) == 1
        expected = await read_all(await reader(r, after=0))
        assert positions(expected)
        for one in readers:
            one.close()
        del one, readers
        assert not r.workspace.feed._shared
