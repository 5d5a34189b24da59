"""edit and multiedit make exactly the change that was shown."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from kedge.core.approvals import parse_rules, permit
from kedge.tools.base import ToolContext, ToolFailed, ToolOutput
from kedge.tools.edit import EditTool, MultiEditTool
from kedge.tools.known_files import digest
from kedge.tools.view import ViewTool
from tests.tools.contexts import RecordingHost, call, make_context, prepare

APP = "import os\n\n\ndef main():\n    x = 1\n    return x\n\n\ndef other():\n    x = 1\n"


async def known(root: Path, data: bytes | str, name: str = "app.py") -> ToolContext:
    """A place whose agent has viewed this file."""
    (root / name).write_bytes(data if isinstance(data, bytes) else data.encode())
    context = make_context(root)
    await call(ViewTool(), context, path=name)
    return context


async def edit(context: ToolContext, old: str, new: str, **more: Any) -> ToolOutput:
    return await call(EditTool(), context, path="app.py", old_string=old, new_string=new, **more)


async def refused(context: ToolContext, old: str, new: str, said: str, **more: Any) -> None:
    """Refused with these words, and the file is as it was."""
    before = (context.root / "app.py").read_bytes()
    with pytest.raises(ToolFailed, match=said):
        await edit(context, old, new, **more)
    assert (context.root / "app.py").read_bytes() == before


async def test_single_match_is_replaced_and_shown(tmp_path: Path) -> None:
    context = await known(tmp_path, APP)
    output = await edit(context, "    return x\n", "    y = 2\n    return x + y\n")
    assert (tmp_path / "app.py").read_text() == APP.replace("    return x\n", "    y = 2\n    return x + y\n")
    assert output.content.split("\n") == [
        "Edited app.py: 1 replacement.",
        "     3\t",
        "     4\tdef main():",
        "     5\t    x = 1",
        "     6\t    y = 2",
        "     7\t    return x + y",
        "     8\t",
        "     9\t",
        "    10\tdef other():",
    ]
    assert output.metadata == {
        "path": "app.py",
        "additions": 2,
        "deletions": 1,
        "diff": "--- a/app.py\n+++ b/app.py\n@@ -3,7 +3,8 @@\n \n def main():\n     x = 1\n"
        "-    return x\n+    y = 2\n+    return x + y\n \n \n def other():\n",
    }


async def test_intent_has_the_diff_and_binds_both_contents(tmp_path: Path) -> None:
    context = await known(tmp_path, APP)
    prepared = await prepare(EditTool(), context, path="./app.py", old_string="import os", new_string="import sys")
    intent = prepared.intent
    assert (intent.names, intent.action, intent.subject) == (("edit",), "write", "app.py")
    assert intent.description == "Edit app.py (+1 -1)"
    assert (intent.grant, intent.exact_only, intent.needs_approval) == ("edit(**)", False, True)
    shown = json.loads(intent.params)
    assert (shown["path"], shown["is_new"]) == ("app.py", False)
    assert "-import os\n+import sys\n" in shown["diff"]
    other = await prepare(EditTool(), context, path="app.py", old_string="import os", new_string="import re")
    assert other.intent.binding != intent.binding
    assert (
        await prepare(EditTool(), context, path="app.py", old_string="import os", new_string="import sys")
    ).intent == intent
    assert permit(intent, parse_rules(["edit(*.py)"], []), ()).decision == "allow"
    assert (tmp_path / "app.py").read_text() == APP


async def test_several_matches_need_replace_all(tmp_path: Path) -> None:
    context = await known(tmp_path, APP)
    await refused(
        context, "x = 1", "x = 2", r"old_string occurs 2 times in app.py \(lines 5, 10\); add surrounding lines"
    )
    output = await edit(context, "x = 1", "x = 2", replace_all=True)
    assert output.content.startswith("Edited app.py: 2 replacements.")
    assert (tmp_path / "app.py").read_text() == APP.replace("x = 1", "x = 2")


async def test_overlapping_matches_count_each(tmp_path: Path) -> None:
    context = await known(tmp_path, "aaa\n")
    await refused(context, "aa", "b", "2 times")


async def test_missing_text_is_refused_with_a_hint(tmp_path: Path) -> None:
    context = await known(tmp_path, APP)
    await refused(context, "nothing like it", "x", r"^old_string is not in app.py; view the file and copy")
    await refused(context, "def main():\n    x = 9\n", "x", r"\(its first line is, at line 4\)")
    await refused(context, "x = 1", "x = 1", "nothing to change")
    await refused(context, "", "x", "old_string is empty but app.py exists")
    await refused(context, "\t\t", "x", "not whitespace alone")


async def test_file_must_be_read_again_after_a_change(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    context = make_context(tmp_path)
    await refused(context, "import os", "x", "app.py exists and was not read yet; view it first")
    await call(ViewTool(), context, path="app.py", offset=2, limit=1)  # a part counts
    (tmp_path / "app.py").write_text(APP + "# more\n")
    await refused(context, "import os", "x", "changed since you read it; view it again")
    await call(ViewTool(), context, path="app.py")
    await edit(context, "import os", "import sys")
    await edit(context, "import sys", "import re")  # what the agent wrote it knows


async def test_empty_old_string_creates_a_file(tmp_path: Path) -> None:
    context = make_context(tmp_path)
    prepared = await prepare(EditTool(), context, path="new/file.py", old_string="", new_string="a\nb\n")
    assert prepared.intent.description == "Create new/file.py (+2 -0)"
    assert json.loads(prepared.intent.params)["is_new"] is True
    output = await prepared.run()
    assert (tmp_path / "new/file.py").read_text() == "a\nb\n"
    assert output.content == "Created new/file.py."
    with pytest.raises(ToolFailed, match="exists"):
        await prepared.run()
    with pytest.raises(ToolFailed, match="gone.py does not exist; to create it, leave old_string empty"):
        await call(EditTool(), context, path="gone.py", old_string="x", new_string="y")


@pytest.mark.parametrize(
    ("before", "old", "new", "after"),
    [
        (b"a\r\nb\r\nc\r\n", "a\nb\n", "x\ny\nz\n", b"x\r\ny\r\nz\r\nc\r\n"),
        (b"a\r\nb\r\nc", "c", "x\ny", b"a\r\nb\r\nx\r\ny"),
        (b"a\r\nb\r\n", "a\r\n", "x\r\n", b"x\r\nb\r\n"),
        (b"a\nb\r\nc\nd\r\n", "b\nc", "x\ny", b"a\nx\r\ny\nd\r\n"),
        (b"a\nb\r\nc\nd\r\n", "c", "x\ny", b"a\nb\r\nx\ny\nd\r\n"),
        (b"a\nb", "b", "c\n", b"a\nc\n"),
        (b"a\nb", "b\n", "c\n", b"a\nc"),
        (b"\xef\xbb\xbfa\r\n", "a", "\u00e9", b"\xef\xbb\xbf\xc3\xa9\r\n"),
        ("\ufeffa\r\nb".encode("utf-16-le"), "b", "é\n", "\ufeffa\r\né\r\n".encode("utf-16-le")),
        (b"caf\xe9 \x85 x\n", "x", "\u00fc", b"caf\xe9 \x85 \xfc\n"),
        (b"a\x0cb\x1c\xe2\x80\xa8c\n", "c", "d", b"a\x0cb\x1c\xe2\x80\xa8d\n"),
        (b"a\rb\rc", "b", "x", b"a\rx\rc"),
    ],
)
async def test_line_endings_marks_and_encodings_are_kept(
    tmp_path: Path, before: bytes, old: str, new: str, after: bytes
) -> None:
    context = await known(tmp_path, before)
    await edit(context, old, new)
    assert (tmp_path / "app.py").read_bytes() == after


async def test_unencodable_character_is_refused(tmp_path: Path) -> None:
    context = await known(tmp_path, b"caf\xe9\n")
    await refused(context, "caf", "日", "the file is latin-1, which cannot encode '\\\\u65e5'")


async def test_a_binary_file_is_refused(tmp_path: Path) -> None:
    context = await known(tmp_path, b"a\0b")
    await refused(context, "a", "b", "app.py is not a text file")


async def test_mode_bits_are_kept(tmp_path: Path) -> None:
    context = await known(tmp_path, APP)
    (tmp_path / "app.py").chmod(0o4751)
    await edit(context, "import os", "import sys")
    assert (tmp_path / "app.py").stat().st_mode & 0o7777 == 0o4751


@pytest.mark.skipif(os.getuid() != 0, reason="only root may give files away")
async def test_owner_is_kept_when_root_edits(tmp_path: Path) -> None:
    context = await known(tmp_path, APP)
    os.chown(tmp_path / "app.py", 12345, 54321)
    await edit(context, "import os", "import sys")
    found = (tmp_path / "app.py").stat()
    assert (found.st_uid, found.st_gid) == (12345, 54321)


async def test_trailing_whitespace_is_ignored(tmp_path: Path) -> None:
    context = await known(tmp_path, "one  \ntwo\t\nthree\n")
    output = await edit(context, "one\ntwo\n", "1\n2\n")
    assert (tmp_path / "app.py").read_text() == "1\n2\nthree\n"
    assert "(matched ignoring whitespace at line ends)" in output.content


@pytest.mark.parametrize(
    ("before", "old", "new", "after"),
    [
        ("class A:\n    def f(self):\n        return 1\n", "def f(self):\n    return 1", "def f(self):\n    return 2\n\nz", "class A:\n    def f(self):\n        return 2\n\n    z\n"),  # noqa: E501
        ("\tif a:\n\t\tb()\n", "if a:\n\tb()\n", "if c:\n\tb()\n", "\tif c:\n\t\tb()\n"),
        ("if a:\n    b()\n", "    if a:\n        b()\n", "    if a:\n        c()\n", "if a:\n    c()\n"),
        ("  a\n\n  b\n", "a\n   \nb", "a\n\nc", "  a\n\n  c\n"),
    ],
)  # fmt: skip
async def test_other_indentation_matches_and_is_kept(
    tmp_path: Path, before: str, old: str, new: str, after: str
) -> None:
    context = await known(tmp_path, before)
    output = await edit(context, old, new)
    assert (tmp_path / "app.py").read_text() == after
    assert "(matched with its own indentation)" in output.content


async def test_ambiguous_tolerant_match_is_refused(tmp_path: Path) -> None:
    context = await known(tmp_path, "  a\n  b\n    a\n    b\n")
    await refused(context, "a\nb", "c", "2 matches with other whitespace")
    context = await known(tmp_path, "if a:\n  b()\n")
    await refused(context, "if a:\n    b()", "c", "not in app.py")  # another structure
    context = await known(tmp_path, "a\n    b\n")
    await refused(context, "  a \n      b", "out", "not in app.py")  # further out than what it replaces


async def test_multiedit_applies_edits_in_order(tmp_path: Path) -> None:
    context = await known(tmp_path, APP)
    edits = [
        {"old_string": "import os", "new_string": "import sys"},
        {"old_string": "import sys\n", "new_string": "import re\n"},
        {"old_string": "x = 1", "new_string": "x = 2", "replace_all": True},
    ]
    prepared = await prepare(MultiEditTool(), context, path="app.py", edits=edits)
    assert prepared.intent.names == ("multiedit", "edit")
    assert prepared.intent.description == "Edit app.py (+3 -3)"
    output = await prepared.run()
    assert (tmp_path / "app.py").read_text() == APP.replace("import os", "import re").replace("x = 1", "x = 2")
    assert output.content.startswith("Edited app.py: 4 replacements.")


async def test_multiedit_is_all_or_nothing(tmp_path: Path) -> None:
    context = await known(tmp_path, APP)
    edits = [{"old_string": "import os", "new_string": "x"}, {"old_string": "nowhere", "new_string": "y"}]
    with pytest.raises(ToolFailed, match="edit 2 of 2: old_string is not in app.py.*no edit was applied"):
        await call(MultiEditTool(), context, path="app.py", edits=edits)
    back = [{"old_string": "import os", "new_string": "y"}, {"old_string": "y\n\n", "new_string": "import os\n\n"}]
    with pytest.raises(ToolFailed, match="already has that content"):
        await call(MultiEditTool(), context, path="app.py", edits=back)
    assert (tmp_path / "app.py").read_text() == APP


async def test_multiedit_can_create_a_file(tmp_path: Path) -> None:
    edits = [{"old_string": "", "new_string": "a b\n"}, {"old_string": "b", "new_string": "c"}]
    await call(MultiEditTool(), make_context(tmp_path), path="new", edits=edits)
    assert (tmp_path / "new").read_text() == "a c\n"


async def test_version_is_stored_before_the_write(tmp_path: Path) -> None:
    class LookingHost(RecordingHost):
        async def keep_version(self, path: Path, before: bytes | None, after: str) -> None:
            assert path.read_bytes() == before
            await super().keep_version(path, before, after)

    (tmp_path / "app.py").write_text(APP)
    host = LookingHost()
    context = make_context(tmp_path, host=host)
    await call(ViewTool(), context, path="app.py")
    await edit(context, "import os", "import sys")
    assert host.versions == [(context.root / "app.py", APP.encode(), digest((tmp_path / "app.py").read_bytes()))]


async def test_failed_version_prevents_the_write(tmp_path: Path) -> None:
    class FullHost(RecordingHost):
        async def keep_version(self, path: Path, before: bytes | None, after: str) -> None:
            raise ToolFailed("the store is full")

    (tmp_path / "app.py").write_text(APP)
    context = make_context(tmp_path, host=FullHost())
    await call(ViewTool(), context, path="app.py")
    await refused(context, "import os", "import sys", "the store is full")
    assert os.listdir(tmp_path) == ["app.py"]
