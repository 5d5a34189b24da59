"""Time and memory of file tools are linear in the size of the file, for any content and any call."""

from __future__ import annotations

import asyncio
import json
import os
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kedge.tools.base import ToolContext, ToolFailed
from kedge.tools.diff import SPLIT_LINES_MAX, compare, is_the_same
from kedge.tools.disk import READ_FILE_BYTES_MAX
from kedge.tools.edit import EDITS_MAX, EditTool, MultiEditTool
from kedge.tools.ls import NODES_MAX, LsTool
from kedge.tools.matching import TOLERANT_CHARS_MAX, replace
from kedge.tools.search import GrepTool
from kedge.tools.view import ViewTool
from kedge.tools.workspace_paths import resolve
from kedge.tools.write import WriteTool
from tests.tools.contexts import call, make_context, prepare

pytestmark = pytest.mark.timeout(20)


@contextmanager
def memory_below(bytes_max: int) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < bytes_max
    finally:
        tracemalloc.stop()


async def known(root: Path, data: bytes) -> ToolContext:
    (root / "a").write_bytes(data)
    context = make_context(root)
    await call(ViewTool(), context, path="a")
    return context


@pytest.mark.found(
    "attack 3",
    "searching with tolerance compared all lines of the wanted text at every line of the file, for minutes; it takes "
    "linear time now",
)
@pytest.mark.parametrize(
    ("line", "wanted", "said"),
    [
        ("a \n", "a\n" * 2000, "2 matches with other whitespace"),
        ("a \n", "a\n" * 2000 + "b\n", "not in x"),
        # Every place is the same without indentation, and none without the common one.
        ("  a\n a\n", "a\n  a\n" * 500, "many with other whitespace"),
        (" " * 5000 + "a\n" + "a\n", "a\n a\n" * 50, "many with other"),
        ("a" * 5000 + " \n", ("a" * 5000 + "\n") * 50 + "b", "not in x"),
    ],
)
def test_tolerant_search_takes_linear_time(line: str, wanted: str, said: str) -> None:
    text = line * (TOLERANT_CHARS_MAX // len(line))
    with pytest.raises(ToolFailed, match=said):
        replace(text, wanted, "x", False, "x")


def test_large_files_have_no_tolerant_search() -> None:
    with pytest.raises(ToolFailed, match="too large to search with other whitespace"):
        replace("a \n" * TOLERANT_CHARS_MAX, "a\na\n", "x", False, "x")


@pytest.mark.parametrize("everywhere", [False, True])
def test_too_many_replacements_are_refused(everywhere: bool) -> None:
    with (
        memory_below(3 * READ_FILE_BYTES_MAX),
        pytest.raises(ToolFailed, match=r"more than 5 times|5000000 times, more than"),
    ):
        replace("a" * READ_FILE_BYTES_MAX, "a", "b", everywhere, "x")
    with pytest.raises(ToolFailed, match="more than 5 times"):
        replace("a" * READ_FILE_BYTES_MAX, "a" * 1000, "b", False, "x")


def test_replacements_in_mixed_line_endings_take_linear_time() -> None:
    text = "\n" + "a\r\n" * 90_000 + "a" * 10_000 + "b" * (READ_FILE_BYTES_MAX // 2)
    done = replace(text, "a", "c\nd", True, "x")
    assert done.text == "\n" + "c\r\nd\r\n" * 90_000 + "c\nd" * 10_000 + "b" * (READ_FILE_BYTES_MAX // 2)


def test_indentation_growth_is_bounded() -> None:
    text = " " * 400_000 + "a\n" + " " * 400_000 + "b\n"
    with memory_below(10 * READ_FILE_BYTES_MAX), pytest.raises(ToolFailed, match="larger than 5000 kB"):
        replace(text, "a\nb\n", "b\n" * 1000, False, "x")


@pytest.mark.found(
    "attack 4",
    "nothing bounded the text between the edits of a call, so one of 0.9 kB took gigabytes; what an edit would make is "
    "measured before it is made",
)
@pytest.mark.parametrize("first", ["a" * 8, "a\r\n" * 8])
async def test_text_growing_with_each_edit_is_refused(tmp_path: Path, first: str) -> None:
    grow = {"old_string": "a", "new_string": first, "replace_all": True}
    context = make_context(tmp_path)
    with (
        memory_below(10 * READ_FILE_BYTES_MAX),
        pytest.raises(ToolFailed, match=r"edit \d of 13: .*(larger than 5000 kB|more than 100000)"),
    ):
        await prepare(
            MultiEditTool(), context, path="new", edits=[{"old_string": "", "new_string": first}] + 12 * [grow]
        )


async def test_results_are_measured_in_bytes(tmp_path: Path) -> None:
    context = make_context(tmp_path)
    await call(WriteTool(), context, path="b", content="é" * (READ_FILE_BYTES_MAX // 2))
    with pytest.raises(ToolFailed, match="larger than 5000 kB"):
        await call(WriteTool(), context, path="c", content="é" * (READ_FILE_BYTES_MAX // 2 + 1))
    context = await known(tmp_path, "a".encode("utf-16") + b"a\0" * (READ_FILE_BYTES_MAX // 2 - 10) + b"b\0")
    with pytest.raises(ToolFailed, match="larger than 5000 kB"):
        await call(EditTool(), context, path="a", old_string="b", new_string="a" * 20)


async def test_many_edits_of_a_large_file_are_refused(tmp_path: Path) -> None:
    context = await known(tmp_path, b"a" * (READ_FILE_BYTES_MAX - 10) + b"b")
    edits = [{"old_string": "ab"[n % 2], "new_string": "ba"[n % 2]} for n in range(EDITS_MAX)]
    there = [{"old_string": "b", "new_string": "c"}, {"old_string": "c", "new_string": "b"}] * (EDITS_MAX // 2)
    with pytest.raises(ToolFailed, match="more than 5 times"):
        await prepare(MultiEditTool(), context, path="a", edits=edits)
    with pytest.raises(ToolFailed, match="take too long; use several calls"):
        await prepare(MultiEditTool(), context, path="a", edits=there)
    with pytest.raises(ToolFailed, match="strings of the edits are larger than 1000 kB"):
        await prepare(EditTool(), context, path="a", old_string="b", new_string="c" * 1_000_000)


@pytest.mark.parametrize("kinds", [2, 20, 100, 500])
def test_comparison_of_repeated_lines_is_bounded(kinds: int) -> None:
    old = "".join(f"{n * n % kinds}\n" for n in range(2000))
    new = "".join(f"{n * n * n % kinds}\n" for n in range(2000))
    assert compare(old, new, "x").is_whole


def test_diff_of_many_lines_is_cut() -> None:
    with memory_below(12 * READ_FILE_BYTES_MAX):
        diff = compare("\n" * READ_FILE_BYTES_MAX, "a" + "\n" * READ_FILE_BYTES_MAX + "a", "x")
    assert (diff.additions, diff.deletions, diff.is_whole) == (READ_FILE_BYTES_MAX + 1, READ_FILE_BYTES_MAX, False)
    assert diff.text.endswith("(cut here: the diff is larger than 100 kB)\n")
    long = compare("a" * READ_FILE_BYTES_MAX, "b" * READ_FILE_BYTES_MAX, "x")
    assert (long.is_whole, len(long.text) < 200) == (False, True)


def test_moved_changes_are_matched_in_linear_time() -> None:
    lines = [f"{n}\n" for n in range(SPLIT_LINES_MAX // 2)]
    diff = compare("".join(lines), "".join("x\n" if n % 2 else line for n, line in enumerate(lines)), "x")
    assert len(diff.positions) == SPLIT_LINES_MAX // 4
    assert is_the_same(diff, diff, diff)


async def test_distant_line_is_reached_in_blocks(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"\n" * 12_000_000 + b"here\r\nlast")
    context = make_context(tmp_path)
    output = await call(ViewTool(), context, path="a", offset=12_000_001)
    assert "12000001\there\n12000002\tlast" in output.content
    with pytest.raises(ToolFailed, match="has 12000002 lines; line 12000003 is beyond its end"):
        await call(ViewTool(), context, path="a", offset=12_000_003)


async def test_view_builds_no_list_of_all_lines(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"ab\n" * (READ_FILE_BYTES_MAX // 3))
    with memory_below(4 * READ_FILE_BYTES_MAX):
        output = await call(ViewTool(), make_context(tmp_path), path="a", offset=1_600_000, limit=1)
    assert output.content.startswith("1600000\tab")


async def test_event_loop_is_free_while_matches_are_read(tmp_path: Path) -> None:
    """The matches include many hidden files. The check runs in a thread, once for each file."""
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(b"x\n" * 20_000)
    loop_thread, asked = asyncio.get_running_loop(), list[str]()

    def is_hidden(subject: str) -> bool:
        with pytest.raises(RuntimeError):
            asyncio.get_running_loop()  # this thread has no loop
        asked.append(subject)
        return True

    context = make_context(tmp_path, is_hidden=is_hidden)
    assert (await call(GrepTool(), context, pattern="x")).content.startswith("No matches")
    assert loop_thread.is_running()
    assert 2 <= len(asked) <= 4


def test_search_for_similar_names_is_bounded(tmp_path: Path) -> None:
    for number in range(300):
        (tmp_path / ("a" * 100 + format(number, "b").replace("1", "b").rjust(99, "a"))).touch()
        (tmp_path / ("a" * 32 + format(number, "b").replace("1", "b").rjust(31, "a"))).touch()
    for name in ("a" * 199, "a" * 62 + "c"):
        with pytest.raises(ToolFailed, match="does not exist"):
            asyncio.run(call(ViewTool(), make_context(tmp_path), path=name))
    assert resolve("a", tmp_path).path == tmp_path / "a"


async def test_huge_tree_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert NODES_MAX > 1000
    monkeypatch.setattr("kedge.tools.ls.NODES_MAX", 100)
    deep = tmp_path / "top" / os.sep.join("d" * 150)
    deep.mkdir(parents=True)
    (deep / "file").touch()
    assert "some were not scanned" in (await call(LsTool(), make_context(tmp_path))).content


async def test_approval_text_is_bounded(tmp_path: Path) -> None:
    intent = (await prepare(WriteTool(), make_context(tmp_path), path="a", content="\u200b \n" * 25_000)).intent
    assert len(json.loads(intent.params)["shown"]) < 1_000_000
