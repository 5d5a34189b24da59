"""Files that change between diff and write, concurrent calls, and cancelled calls."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from kedge.tools import disk
from kedge.tools.base import ToolFailed
from kedge.tools.edit import EditTool, MultiEditTool
from kedge.tools.known_files import digest
from kedge.tools.view import ViewTool
from kedge.tools.write import WriteTool
from tests.tools.contexts import RecordingHost, call, make_context, prepare

STALE = "app.py changed while the approval was pending; view it again"


async def test_file_changed_during_approval_is_not_written(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("a\nb\n")
    context = make_context(tmp_path)
    await call(ViewTool(), context, path="app.py")
    prepared = await prepare(EditTool(), context, path="app.py", old_string="a", new_string="x")
    (tmp_path / "app.py").write_text("a\nb\nc\n")
    with pytest.raises(ToolFailed, match=STALE):
        await prepared.run()
    await call(ViewTool(), context, path="app.py")  # viewing the file again does not change what the user saw
    with pytest.raises(ToolFailed, match=STALE):
        await prepared.run()
    assert (tmp_path / "app.py").read_text() == "a\nb\nc\n"


async def test_deleted_or_created_file_is_not_written(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("a\n")
    context = make_context(tmp_path)
    await call(ViewTool(), context, path="app.py")
    edited = await prepare(EditTool(), context, path="app.py", old_string="a", new_string="x")
    (tmp_path / "app.py").unlink()
    with pytest.raises(ToolFailed, match=STALE):
        await edited.run()
    created = await prepare(WriteTool(), context, path="app.py", content="mine")
    (tmp_path / "app.py").write_text("theirs")
    with pytest.raises(ToolFailed, match=STALE):
        await created.run()
    assert (tmp_path / "app.py").read_text() == "theirs"


async def test_two_edits_of_one_step_both_apply(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("".join(f"line {n}\n" for n in range(50)))
    host = RecordingHost()
    context = make_context(tmp_path, host=host)
    await call(ViewTool(), context, path="app.py")
    several = [
        await prepare(EditTool(), context, path="app.py", old_string=f"line {n}\n", new_string=f"LINE {n}\nmore\n")
        for n in (40, 3, 20, 21)
    ]
    await asyncio.gather(*(prepared.run() for prepared in several))
    wanted = [f"LINE {n}\nmore\n" if n in (3, 20, 21, 40) else f"line {n}\n" for n in range(50)]
    assert (tmp_path / "app.py").read_text() == "".join(wanted)
    # Each version is what the one before it left.
    assert [after for _, _, after in host.versions[:-1]] == [
        digest(before or b"") for _, before, _ in host.versions[1:]
    ]


async def test_edit_with_another_meaning_is_refused(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("a\nb\n")
    context = make_context(tmp_path)
    await call(ViewTool(), context, path="app.py")
    first = await prepare(EditTool(), context, path="app.py", old_string="a\n", new_string="b\nb\n")
    twice = await prepare(EditTool(), context, path="app.py", old_string="b\n", new_string="c\n")
    everywhere = await prepare(EditTool(), context, path="app.py", old_string="b", new_string="c", replace_all=True)
    whole = await prepare(WriteTool(), context, path="app.py", content="mine\n")
    await first.run()
    with pytest.raises(ToolFailed, match="app.py was changed by an earlier call: old_string occurs 3 times in app.py"):
        await twice.run()
    with pytest.raises(ToolFailed, match=STALE):  # the user saw one changed line, now there would be three
        await everywhere.run()
    with pytest.raises(ToolFailed, match=STALE):  # a whole file would take the first edit back
        await whole.run()
    assert (tmp_path / "app.py").read_text() == "b\nb\nb\n"


async def test_write_never_reverts_an_earlier_edit(tmp_path: Path) -> None:
    """Even if the same lines change: the write would revert what the first call changed."""
    (tmp_path / "app.py").write_text("x\ny\n")
    context = make_context(tmp_path)
    await call(ViewTool(), context, path="app.py")
    moved = await prepare(EditTool(), context, path="app.py", old_string="x\ny\n", new_string="y\nx\n")
    whole = await prepare(WriteTool(), context, path="app.py", content="y\n")
    await moved.run()
    with pytest.raises(ToolFailed, match=STALE):
        await whole.run()


async def test_foreign_edit_after_our_own_is_foreign(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("a\nb\n")
    context = make_context(tmp_path)
    await call(ViewTool(), context, path="app.py")
    first = await prepare(EditTool(), context, path="app.py", old_string="a", new_string="x")
    second = await prepare(EditTool(), context, path="app.py", old_string="b", new_string="y")
    await first.run()
    (tmp_path / "app.py").write_text("x\nb\nforeign\n")
    with pytest.raises(ToolFailed, match=STALE):
        await second.run()


async def test_write_of_another_session_is_foreign(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("a\nb\n")
    mine, theirs = make_context(tmp_path), make_context(tmp_path)
    for context in (mine, theirs):
        await call(ViewTool(), context, path="app.py")
    prepared = await prepare(EditTool(), mine, path="app.py", old_string="b", new_string="y")
    await call(EditTool(), theirs, path="app.py", old_string="a", new_string="x")
    with pytest.raises(ToolFailed, match=STALE):
        await prepared.run()


async def test_file_changed_at_the_last_moment_is_kept(tmp_path: Path) -> None:
    """Between the last read and the rename; the host delays the rename here."""

    class SlowHost(RecordingHost):
        async def keep_version(self, path: Path, before: bytes | None, after: str) -> None:
            path.write_text("theirs, in the last moment\n")

    (tmp_path / "app.py").write_text("a\n")
    context = make_context(tmp_path, host=SlowHost())
    await call(ViewTool(), context, path="app.py")
    with pytest.raises(ToolFailed, match="changed at this moment; nothing was written"):
        await call(EditTool(), context, path="app.py", old_string="a", new_string="b")
    with pytest.raises(ToolFailed, match="changed at this moment; nothing was written"):
        await call(WriteTool(), context, path="new.py", content="b")
    assert (tmp_path / "app.py").read_text() == (tmp_path / "new.py").read_text() == "theirs, in the last moment\n"
    assert sorted(os.listdir(tmp_path)) == ["app.py", "new.py"]


async def test_cancelled_call_leaves_an_old_or_new_file(tmp_path: Path) -> None:
    """Cancelled at every point on its way, one after the other."""
    outcomes = set()
    for steps in range(30):
        (tmp_path / "app.py").write_text("old\n")
        context = make_context(tmp_path)
        await call(ViewTool(), context, path="app.py")
        prepared = await prepare(EditTool(), context, path="app.py", old_string="old", new_string="new")
        task = asyncio.ensure_future(prepared.run())
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        task.cancel()
        await asyncio.wait([task])
        content = (tmp_path / "app.py").read_text()
        outcomes.add(content)
        assert os.listdir(tmp_path) == ["app.py"]
        # Nothing continues in the background, and the agent knows the content.
        word = content.strip()
        await call(EditTool(), context, path="app.py", old_string=word, new_string=word + " and more")
        assert (tmp_path / "app.py").read_text() == f"{word} and more\n"
    assert "old\n" in outcomes


async def test_call_cancelled_during_a_write_finishes_it(tmp_path: Path) -> None:
    class CancellingHost(RecordingHost):
        async def keep_version(self, path: Path, before: bytes | None, after: str) -> None:
            # Lands at the next point the call waits at: the writing.
            asyncio.get_running_loop().call_soon(task.cancel)

    (tmp_path / "app.py").write_text("old\n")
    context = make_context(tmp_path, host=CancellingHost())
    await call(ViewTool(), context, path="app.py")
    prepared = await prepare(EditTool(), context, path="app.py", old_string="old", new_string="new")
    task = asyncio.ensure_future(prepared.run())
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (tmp_path / "app.py").read_text() == "new\n"
    assert context.known_files.wrote(context.root / "app.py", digest(b"new\n"))


def test_failed_write_leaves_no_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    found = disk.read(tmp_path.resolve() / "file")
    assert found is not None
    (tmp_path / "file").unlink()
    (tmp_path / "file").mkdir()
    with pytest.raises(ToolFailed, match="changed at this moment"):
        disk.replace(tmp_path.resolve() / "file", b"y", found.stat)
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.found(
    "attack: the same lines at another place",
    "of two approved edits of one file in one Step, the second was made where the first had just put the same lines, "
    "although the approval showed another position; the position is now part of the check",
)
async def test_edit_is_not_applied_at_another_position(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("[dev]\nauth = on\n\n\n\n\n\n\n\n\n[prod]\nx = 1\n")
    context = make_context(tmp_path)
    await call(ViewTool(), context, path="app.py")
    shown = await prepare(EditTool(), context, path="app.py", old_string="auth = on\n", new_string="auth = off\n")
    edits = [
        {"old_string": "auth = on\n", "new_string": "auth = yes\n"},
        {"old_string": "x = 1\n", "new_string": "auth = on\n"},
    ]
    await call(MultiEditTool(), context, path="app.py", edits=edits)
    with pytest.raises(ToolFailed, match=STALE):
        await shown.run()
    assert "[prod]\nauth = on\n" in (tmp_path / "app.py").read_text()
