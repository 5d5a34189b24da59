"""Limits of one call, one Step, and one Run with its child agents."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from kedge.tools.base import ToolContext, ToolFailed
from kedge.tools.file_threads import FileThreads
from kedge.tools.ls import LsTool, _choose, _Node
from kedge.tools.path_patterns import path_filter
from kedge.tools.process_port import Process
from kedge.tools.ripgrep import LIMITED
from kedge.tools.search import GlobInput, GlobTool, GrepTool
from kedge.tools.shell import BashTool
from kedge.tools.tool_threads import RUN_FETCHES_MAX, RUN_SEARCHES_MAX, RUN_THREADS_MAX, ToolThreads
from kedge.tools.workspace_paths import LINKS_MAX, real_path
from tests.tools.contexts import PlainProcesses, call, make_context, prepare

pytestmark = pytest.mark.timeout(20)


async def turns() -> None:
    """Long enough for every task to come as far as it can without a thread or a process."""
    for _ in range(100):
        await asyncio.sleep(0)


@pytest.mark.found(
    "attack round 2: tools",
    "a glob of 800 characters took 17 s for one path of 2000 parts, without a checkpoint, and its Run's clean-up "
    "failed; all places of a path are matched at once now",
)
def test_glob_matches_deep_paths_quickly() -> None:
    matches = path_filter("**/a/" * 140 + "{" + ",".join(f"{n:02}" for n in range(90)) + "}")
    deep = "a/" * 2000
    assert not any(matches(f"{deep}x{number}") for number in range(20))
    assert matches(f"{deep}07")


@pytest.mark.parametrize(
    ("pattern", "path", "fits"),
    [
        ("**", "a/b", True),
        ("a/**", "a", True),
        ("a/**/b", "a/b", True),
        ("a/**/b", "a/x/y/b", True),
        ("a/**/b", "a/x/y/c", False),
        ("**/*.{py,pyi}", "x/y.pyi", True),
        ("a/*", "a/b/c", False),
        ("[ab]?.txt", "x/b1.txt", True),
        ("a/**/b/**/c", "a/c/b/c/b", False),
    ],
)
def test_glob_matches_usual_patterns(pattern: str, path: str, fits: bool) -> None:
    assert path_filter(pattern)(path) is fits


class Watched(str):
    """Knows in which threads it was searched."""

    threads: set[int]

    def find(self, *given: Any) -> int:
        self.threads.add(threading.get_ident())
        return super().find(*given)


@pytest.mark.found(
    "attack round 2: tools",
    "128 globs with hundreds of braces stopped the event loop for 155 ms, since patterns were read there; they are "
    "read in threads now",
)
async def test_glob_pattern_is_read_in_a_thread(tmp_path: Path) -> None:
    pattern = Watched("{a,b}")
    pattern.threads = set()
    await GlobTool().prepare(GlobInput(pattern), make_context(tmp_path))
    assert pattern.threads
    assert threading.get_ident() not in pattern.threads


class Counted(str):
    compared = 0

    def __lt__(self, other: str) -> bool:
        Counted.compared += 1
        return super().__lt__(other)


@pytest.mark.found(
    "attack round 2: tools",
    "ls sorted 190,000 names of a directory in one step of the interpreter, which stopped the event loop for 580 ms; "
    "it looks only for the few that are shown",
)
def test_ls_does_not_sort_hidden_entries() -> None:
    count = 20_000
    names = [Counted(f"{number * 7919 % count:05}") for number in range(count)]
    top = _Node({name: _Node() for name in names}, is_directory=True)
    Counted.compared = 0
    assert _choose(top, 4) == (500, count)
    assert Counted.compared < 5 * count
    assert {name for name in names if top.children[name].is_shown} == {f"{number:05}" for number in range(500)}


@pytest.mark.found(
    "attack round 2: tools",
    "grep made an object of each of 300,000 matches in one line, and held the interpreter meanwhile; only the first is "
    "looked at",
)
async def test_grep_reads_only_the_first_match_of_a_line(tmp_path: Path) -> None:
    count = 200_000
    (tmp_path / "a").write_text("b" * 500 + "a" * count)
    tracemalloc.start()
    try:
        output = await call(GrepTool(), make_context(tmp_path), pattern="a")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert "bbbaaa" in output.content
    assert (
        peak < 118 * count
    )  # rg prints 45 bytes for each, held twice for a moment; with an object for each it was 130


def links(root: Path) -> None:
    """`top` leads through 300 links, each with 1400 parts."""
    (root / "a").mkdir()
    for number in range(300):
        (root / f"l{number}").symlink_to("a/../" * 700 + "a")
    (root / "top").symlink_to("/".join(f"l{number}/.." for number in range(300)))


@pytest.mark.found(
    "attack round 2: tools",
    "`ls top top top`, where top leads through 300 links, stopped the event loop for minutes; a path goes through at "
    "most 40 links, as for the kernel, and bash looks at files in a thread",
)
async def test_bash_follows_few_links(tmp_path: Path) -> None:
    links(tmp_path)
    command = "ls " + " ".join(f"top/{number}" for number in range(90))
    prepared = await prepare(BashTool(), make_context(tmp_path), command=command)
    assert prepared.intent.needs_approval
    assert [part.exact_only for part in prepared.intent.parts or ()] == [True]
    with pytest.raises(ToolFailed, match="too many"):
        real_path(tmp_path / "top")
    with pytest.raises(ToolFailed, match="too many symlinks"):
        await prepare(BashTool(), make_context(tmp_path), command="ls", cwd="top")


def test_symlinks_up_to_the_kernel_limit_are_followed(tmp_path: Path) -> None:
    (tmp_path / "l0").mkdir()
    for number in range(1, LINKS_MAX + 1):
        (tmp_path / f"l{number}").symlink_to(f"./l{number - 1}")
    last = tmp_path / f"l{LINKS_MAX}"
    assert real_path(last / "x" / ".." / "y") == Path(os.path.realpath(last)) / "y"
    assert real_path(Path("//")) == Path("/")


@pytest.mark.found(
    "attack round 2: tools", "bash looked at the files that its words name on the event loop; it does so in a thread"
)
async def test_bash_checks_files_in_a_thread(tmp_path: Path) -> None:
    context, opened = make_context(tmp_path), threading.Event()
    held = [asyncio.ensure_future(context.threads.run(opened.wait)) for _ in range(RUN_THREADS_MAX)]
    try:
        await turns()
        preparing = asyncio.ensure_future(prepare(BashTool(), context, command="ls a"))
        await turns()
        assert not preparing.done()
    finally:
        opened.set()
    assert not (await preparing).intent.needs_approval
    await asyncio.gather(*held)


@pytest.mark.found(
    "attack round 2: tools",
    "100 globs of one Step held 1.6 GB of paths; at most 4 searches of a Run and its child agents are made at a time",
)
@pytest.mark.parametrize(
    ("tool", "given", "processes"),
    [(LsTool(), {}, 1), (GlobTool(), {"pattern": "*"}, 1), (GrepTool(), {"pattern": "x"}, 2)],
)
async def test_concurrent_searches_are_limited(
    tmp_path: Path, tool: Any, given: dict[str, str], processes: int
) -> None:
    started: list[int] = []

    class Busy(PlainProcesses):
        async def start(self, *given: Any, **more: Any) -> Process:
            started.append(RUN_SEARCHES_MAX - context.threads.searches._value)
            return await super().start(*given, **more)

    context: ToolContext = make_context(tmp_path, processes=Busy())
    await asyncio.gather(*(call(tool, context, **given) for _ in range(3 * RUN_SEARCHES_MAX)))
    assert len(started) == 3 * RUN_SEARCHES_MAX * processes
    assert set(started) <= set(range(1, RUN_SEARCHES_MAX + 1))


@pytest.mark.found(
    "attack round 2: tools",
    "a Run with child agents had four threads and fetches for each of them; they share those of their parent",
)
async def test_child_agents_share_the_limits_of_their_parent() -> None:
    files, opened = FileThreads("The directory"), threading.Event()
    parent = ToolThreads(files)
    children = [ToolThreads(files, parent) for _ in range(3)]
    pieces = [asyncio.ensure_future(one.run(opened.wait)) for one in (*children, parent) for _ in range(2)]
    try:
        await turns()
        assert sum(len(one._calls) for one in (*children, parent)) == RUN_THREADS_MAX
        assert await ToolThreads(files).run(lambda: "of another run") == "of another run"
        assert all(one.fetches is parent.fetches and one.searches is parent.searches for one in children)
        assert RUN_FETCHES_MAX > 0
    finally:
        opened.set()
    await asyncio.gather(*pieces)
    assert [one.busy for one in (*children, parent)] == [0, 0, 0, 0]


@pytest.mark.found(
    "attack round 2: tools",
    "rg took twice the size of the longest line, without a limit; its address space is limited to 1 GB",
)
async def test_searches_have_a_memory_limit(tmp_path: Path) -> None:
    async def code_of(size: int) -> int:
        program = f"import mmap; mmap.mmap(-1, {size})"
        process = await PlainProcesses().start((*LIMITED, sys.executable, "-c", program), tmp_path)
        while await process.read():
            pass
        return await process.wait()

    assert await code_of(100_000_000) == 0
    assert await code_of(1_100_000_000) == 1
