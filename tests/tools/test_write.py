"""write: a whole file. An existing one must have been read."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from kedge.core.approvals import Rules, parse_rules, permit
from kedge.tools.base import ToolFailed
from kedge.tools.diff import DIFF_BYTES_MAX
from kedge.tools.edit import EditTool
from kedge.tools.known_files import digest
from kedge.tools.ls import LsTool
from kedge.tools.shell import BashTool
from kedge.tools.view import ViewTool
from kedge.tools.write import WriteTool
from tests.tools.contexts import RecordingHost, call, make_context, prepare


async def test_new_file_is_created_with_its_directories(tmp_path: Path) -> None:
    host = RecordingHost()
    context = make_context(tmp_path, host=host)
    prepared = await prepare(WriteTool(), context, path="a/b/new.py", content="one\ntwo")
    assert not (tmp_path / "a").exists()
    intent = prepared.intent
    assert (intent.names, intent.action, intent.subject) == (("write", "edit"), "write", "a/b/new.py")
    assert (intent.description, intent.grant) == ("Create a/b/new.py (+2 -0)", "edit(**)")
    shown = json.loads(intent.params)
    assert shown == {
        "path": "a/b/new.py",
        "is_new": True,
        "diff": "--- /dev/null\n+++ b/a/b/new.py\n@@ -0,0 +1,2 @@\n+one\n+two\n\\ No newline at end of file\n",
    }
    output = await prepared.run()
    assert output.content == "Created a/b/new.py (7 bytes)."
    assert output.metadata == {"diff": shown["diff"], "additions": 2, "deletions": 0, "path": "a/b/new.py"}
    assert (tmp_path / "a/b/new.py").read_text() == "one\ntwo"
    assert host.versions == [(context.root / "a/b/new.py", None, digest(b"one\ntwo"))]
    assert os.listdir(tmp_path / "a/b") == ["new.py"]


async def test_new_file_follows_the_umask(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        await call(WriteTool(), make_context(tmp_path), path="new", content="x")
    finally:
        os.umask(old)
    assert (tmp_path / "new").stat().st_mode & 0o7777 == 0o640


async def test_existing_file_must_be_read_and_unchanged(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("old\n")
    context = make_context(tmp_path)
    with pytest.raises(ToolFailed, match="was not read yet"):
        await prepare(WriteTool(), context, path="a.txt", content="new\n")
    await call(ViewTool(), context, path="a.txt")
    (tmp_path / "a.txt").write_text("other\n")
    with pytest.raises(ToolFailed, match="changed since you read it"):
        await prepare(WriteTool(), context, path="a.txt", content="new\n")
    await call(ViewTool(), context, path="a.txt")
    prepared = await prepare(WriteTool(), context, path="a.txt", content="new\n")
    assert prepared.intent.description == "Write a.txt (+1 -1)"
    output = await prepared.run()
    assert output.content == "Wrote a.txt (4 bytes).\n     1\tnew"
    with pytest.raises(ToolFailed, match="already has that content; nothing to change"):
        await call(WriteTool(), context, path="a.txt", content="new\n")


@pytest.mark.parametrize(
    ("before", "content", "after"),
    [
        (b"a\r\nb\r\n", "x\ny\n", b"x\r\ny\r\n"),
        (b"a\r\nb\r\n", "x\r\ny\n", b"x\r\ny\n"),
        (b"a\nb\r\n", "x\ny\n", b"x\ny\n"),
        (b"\xef\xbb\xbfa", "b", b"\xef\xbb\xbfb"),
        (b"\xef\xbb\xbfa", "\ufeffb", b"\xef\xbb\xbfb"),
        (b"a\0b", "text", b"text"),
        (b"x", "", b""),
    ],
)
async def test_encoding_and_line_endings_are_kept(tmp_path: Path, before: bytes, content: str, after: bytes) -> None:
    (tmp_path / "a.txt").write_bytes(before)
    (tmp_path / "a.txt").chmod(0o755)
    context = make_context(tmp_path)
    await call(ViewTool(), context, path="a.txt")
    await call(WriteTool(), context, path="a.txt", content=content)
    assert (tmp_path / "a.txt").read_bytes() == after
    assert (tmp_path / "a.txt").stat().st_mode & 0o777 == 0o755


async def test_a_change_of_line_endings_alone_is_shown(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"a\r\nb\r\n")
    context = make_context(tmp_path)
    await call(ViewTool(), context, path="a.txt")
    prepared = await prepare(WriteTool(), context, path="a.txt", content="a\r\nb\n")
    assert prepared.intent.description == "Write a.txt (+1 -1), line endings: CRLF -> mixed"


async def test_too_large_diff_cannot_be_approved(tmp_path: Path) -> None:
    """A rule may still allow it. (Before, the diff was cut, and users approved text that they had not seen.)"""
    lines = "some line\n" * (DIFF_BYTES_MAX // 10)
    large = (await prepare(WriteTool(), make_context(tmp_path), path="a", content=lines + "the last line\n")).intent
    assert "the last line" not in json.loads(large.params)["diff"]
    assert permit(large, Rules(), ()).decision == "refuse"
    assert "larger than 100 kB, the limit of an approval" in permit(large, Rules(), ()).reason
    assert permit(large, Rules(), (), skip=True).decision == "allow"
    assert permit(large, parse_rules(["edit"], []), ()).decision == "allow"
    small = (await prepare(WriteTool(), make_context(tmp_path), path="a", content="some line\n" * 5_000)).intent
    assert permit(small, Rules(), ()).decision == "ask"


@pytest.mark.found(
    "attack: bytes that look like another encoding",
    "a text for a file in latin-1 that begins like UTF-16 was shown decoded as UTF-16, "
    "and written as the command it was; the approval now shows the text itself",
)
async def test_approval_shows_the_text_not_guessed_bytes(tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_bytes("# grüße\n".encode("latin-1"))
    context = make_context(tmp_path)
    await call(ViewTool(), context, path="a.sh")
    prepared = await prepare(WriteTool(), context, path="a.sh", content="ÿþ\nrm -rf everything\n#")
    assert "+rm -rf everything\n" in json.loads(prepared.intent.params)["diff"]
    await prepared.run()
    assert b"rm -rf everything" in (tmp_path / "a.sh").read_bytes()


async def test_invisible_characters_in_a_diff_are_escaped(tmp_path: Path) -> None:
    intent = (await prepare(WriteTool(), make_context(tmp_path), path="a\u202eb", content="x\u202ey\x1b[2K\n")).intent
    params = json.loads(intent.params)
    assert "+x\\u{202e}y\\u{1b}[2K\n" in params["shown"]
    assert params["path"] == "a\\u202eb"


async def test_diff_of_an_approval_is_bounded(tmp_path: Path) -> None:
    prepared = await prepare(WriteTool(), make_context(tmp_path), path="a", content="some line\n" * 100_000)
    assert len(prepared.intent.params) < DIFF_BYTES_MAX * 1.3
    assert "(cut here: the diff is larger than 100 kB)" in json.loads(prepared.intent.params)["diff"]
    assert prepared.intent.description == "Create a (+100000 -0)"
    with pytest.raises(ToolFailed, match="larger than 5000 kB"):
        await prepare(WriteTool(), make_context(tmp_path), path="a", content="x" * 5_000_001)


async def test_write_outside_needs_an_exact_approval(tmp_path: Path) -> None:
    (tmp_path / "ws").mkdir()
    intent = (await prepare(WriteTool(), make_context(tmp_path / "ws"), path="../out.txt", content="x")).intent
    assert (intent.subject, intent.exact_only, intent.grant) == (str(tmp_path.resolve() / "out.txt"), True, "")


@pytest.mark.found(
    "fault 15",
    "after the directory of a workspace was moved away, write created a new one with one file, and bash reported a "
    "directory without a name; all tools report that the directory of the workspace is gone, and none creates it",
)
async def test_a_moved_workspace_is_not_created_again(tmp_path: Path) -> None:
    root = tmp_path.resolve() / "work"
    (root / "sub").mkdir(parents=True)
    (root / "a.txt").write_text("one\n")
    context = make_context(root)
    await call(ViewTool(), context, path="a.txt")
    edit = {"path": "a.txt", "old_string": "one", "new_string": "two"}
    prepared = [
        await prepare(WriteTool(), context, path="z.txt", content="z"),
        await prepare(WriteTool(), context, path="sub/deep/z.txt", content="z"),
        await prepare(EditTool(), context, **edit),
    ]
    root.rename(tmp_path / "moved")
    gone = f"the directory of the workspace, {root}, does not exist any more"
    for change in prepared[:2]:  # approved before the directory was moved
        with pytest.raises(ToolFailed, match=gone):
            await change.run()
    with pytest.raises(ToolFailed, match="changed"):
        await prepared[2].run()
    for tool, arguments in (
        (WriteTool(), {"path": "z.txt", "content": "z"}),
        (EditTool(), edit),
        (ViewTool(), {"path": "a.txt"}),
        (LsTool(), {}),
        (BashTool(), {"command": "pwd"}),
        (BashTool(), {"command": "pwd", "cwd": "sub"}),
    ):
        with pytest.raises(ToolFailed, match=gone):
            await call(tool, context, **arguments)
    assert not root.exists()
    # A file elsewhere still gets its directories.
    await call(WriteTool(), context, path=str(tmp_path / "other" / "x.txt"), content="x")
    assert (tmp_path / "other" / "x.txt").read_text() == "x"
