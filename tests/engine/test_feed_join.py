"""The step of a reader from the log into the ring, which moves on while the step is taken."""

from __future__ import annotations

from pathlib import Path

from kedge.testing.scripted import Hold, Say, ScriptedModel
from tests.engine.rig import rig, until
from tests.engine.test_feed import positions, read_all, reader


async def test_deltas_flushed_when_a_reader_joins_push_out_nothing_it_lacks(tmp_path: Path) -> None:
    """Found by conformance D4: a `run_complete` was lost to a reader that came back to the ring at this moment."""
    async with rig(tmp_path, ScriptedModel([Say("x"), Hold("k")])) as r:
        feed = r.workspace.feed
        follower, late = await reader(r), await reader(r)
        await r.submit(run_id="a")
        await r.model.wait_requests(1)
        await until(lambda: any(draft.chars for draft in feed._drafts.values()))
        expected = positions(await read_all(follower))
        # Text is waiting for its flush, and it is so much that the ring has no room for what the late one lacks.
        (draft,) = feed._drafts.values()
        draft.add("text", "y" * feed.ring_bytes_max)
        feed.grew(draft)
        assert positions(await read_all(late)) == expected
        r.model.release("k")
        await r.end("a")
