"""ls: a bounded tree without ignored files."""

from __future__ import annotations

from pathlib import Path

import pytest

from kedge.tools.base import OUTPUT_CHARS_MAX, ToolFailed
from kedge.tools.ls import ENTRIES_MAX, LsTool
from tests.tools.contexts import call, make_context, prepare


def lay(root: Path, *files: str) -> None:
    for file in files:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_text("x")


async def test_tree_has_hidden_but_not_ignored_files(tmp_path: Path) -> None:
    lay(tmp_path, "src/app.py", "src/build/out.js", "src/a/b.py", "README.md", ".hidden", ".git/config", "node/x.js")
    (tmp_path / ".gitignore").write_text("build/\nnode/\n*.log\n")
    lay(tmp_path, "debug.log")
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to("../elsewhere")
    output = await call(LsTool(), make_context(tmp_path))
    assert output.content.split("\n") == [
        "./",
        "  empty/ (ignored or empty)",
        "  node/ (ignored or empty)",
        "  src/",
        "    a/",
        "      b.py",
        "    app.py",
        "  .gitignore",
        "  .hidden",
        "  README.md",
        "  debug.log (ignored, or not a file)",
        "  link -> ../elsewhere",
    ]
    assert output.metadata == {"path": ".", "shown": 11, "entries": 11}


async def test_ignored_directory_can_be_listed_by_name(tmp_path: Path) -> None:
    lay(tmp_path, "node/a/x.js")
    (tmp_path / ".gitignore").write_text("node/\n")
    assert "x.js" in (await call(LsTool(), make_context(tmp_path), path="node")).content


async def test_depth_collapses_directories_with_counts(tmp_path: Path) -> None:
    lay(tmp_path, "a/b/c/d.txt", "a/b/e.txt", "a/f.txt")
    output = await call(LsTool(), make_context(tmp_path), depth=2)
    assert output.content.split("\n") == [
        "./",
        "  a/",
        "    b/ (2 files)",
        "    f.txt",
        "(3 more entries are not shown; give a path or another depth.)",
    ]


async def test_large_directory_does_not_hide_others(tmp_path: Path) -> None:
    lay(tmp_path, *(f"aaa/{number}.txt" for number in range(ENTRIES_MAX + 100)), "zzz/last.txt")
    output = await call(LsTool(), make_context(tmp_path))
    assert "  zzz/" in output.content
    # Two directories and 601 files are there.
    assert output.content.endswith("(103 more entries are not shown; give a path or another depth.)")
    assert output.metadata["shown"] == ENTRIES_MAX


async def test_long_names_are_bounded(tmp_path: Path) -> None:
    lay(tmp_path, *(f"{number:03}{'x' * 200}" for number in range(300)))
    output = await call(LsTool(), make_context(tmp_path))
    assert len(output.content) <= OUTPUT_CHARS_MAX
    assert "more entries are not shown" in output.content


async def test_ls_of_empty_directory_file_and_missing_path(tmp_path: Path) -> None:
    lay(tmp_path, "file")
    (tmp_path / "sub").mkdir()
    context = make_context(tmp_path)
    assert (await call(LsTool(), context, path="sub")).content == "sub is empty."
    with pytest.raises(ToolFailed, match="file is a file, not a directory; use view"):
        await call(LsTool(), context, path="file")
    with pytest.raises(ToolFailed, match="fil does not exist; similar names there: file"):
        await call(LsTool(), context, path="fil")


async def test_listing_outside_needs_approval(tmp_path: Path) -> None:
    (tmp_path / "ws").mkdir()
    intent = (await prepare(LsTool(), make_context(tmp_path / "ws"), path="..")).intent
    assert (intent.needs_approval, intent.subject) == (True, str(tmp_path.resolve()))
    assert not (await prepare(LsTool(), make_context(tmp_path / "ws"))).intent.needs_approval
