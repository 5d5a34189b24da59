"""Files attached to prompts."""

from __future__ import annotations

from pathlib import Path

import pytest

from kedge.core.records import Attachment, Prompt, RunOptions
from kedge.errors import Invalid, TooLarge
from kedge.testing.scripted import Hold, Say, ScriptedModel
from tests.engine.rig import rig


async def test_edit_reads_files_attached_by_path(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("hello")
    attachments = (Attachment("a.txt", "a.txt", "text/plain"),)
    async with rig(tmp_path, ScriptedModel([Hold("k"), Say("one")], "two")) as r:
        await r.submit(run_id="first")
        prompt = Prompt("b", attachments)
        submitted = await r.engine.submit(r.workspace, r.session, prompt, RunOptions(), "second", "queue")
        edited = await r.engine.edit_run(r.workspace, "second", Prompt("b, edited", attachments))
        assert edited.prompt.attachments == submitted.prompt.attachments
        assert edited.prompt.attachments[0].digest
        r.model.release("k")
        await r.end("second")


async def test_retried_submit_needs_no_attached_files(tmp_path: Path) -> None:
    """A4: the reply was lost, and the Run has moved the attached file."""
    (tmp_path / "a.txt").write_text("hello")
    prompt = Prompt("b", (Attachment("a.txt", "a.txt", "text/plain"),))
    async with rig(tmp_path, ScriptedModel("done")) as r:
        first = await r.engine.submit(r.workspace, r.session, prompt, RunOptions(), "x")
        (tmp_path / "a.txt").unlink()
        again = await r.engine.submit(r.workspace, r.session, prompt, RunOptions(), "x")
        assert (again.seq, again.position, again.accepted_at) == (first.seq, first.position, first.accepted_at)
        for run_id, other in (("y", prompt), ("x", Prompt("c", prompt.attachments))):
            with pytest.raises(Invalid, match="file not found"):
                await r.engine.submit(r.workspace, r.session, other, RunOptions(), run_id)
        await r.end("x")


async def test_attached_files_have_a_total_limit(tmp_path: Path) -> None:
    """An accepted prompt must fit into one frame of the stream."""
    (tmp_path / "a.bin").write_bytes(bytes(5_000_000))
    attachments = tuple(Attachment("a.bin", "a.bin", "application/octet-stream") for _ in range(3))
    async with rig(tmp_path, ScriptedModel()) as r:
        with pytest.raises(TooLarge, match="in total"):
            await r.engine.submit(r.workspace, r.session, Prompt("b", attachments), RunOptions(), "x")
