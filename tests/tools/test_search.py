"""glob and grep, with a real rg."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import BinaryIO

import pytest

from kedge.core.approvals import Confinement
from kedge.tools import ripgrep
from kedge.tools.base import OUTPUT_CHARS_MAX, ToolFailed
from kedge.tools.path_patterns import path_filter
from kedge.tools.process_port import Process
from kedge.tools.search import GLOB_FILES_MAX, GREP_LINE_CHARS_MAX, GREP_MATCHES_MAX, GlobTool, GrepTool
from tests.tools.contexts import PlainProcesses, call, make_context, prepare


@pytest.fixture
def root(tmp_path: Path) -> Path:
    lay = {
        "src/app.py": "import os\n\ndef main():\n    return os.getcwd()\n",
        "src/deep/util.py": "def helper():\n    return 1\n",
        "src/deep/style.css": "a { color: red }\n",
        "src/build/made.py": "def made(): pass\n",
        "README.md": "Call main() to begin.\n",
        ".settings": "KEY=main\n",
        ".git/main": "def main in git\n",
        ".gitignore": "build/\n",
    }
    for number, (name, text) in enumerate(lay.items()):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
        os.utime(tmp_path / name, (1000 + number, 1000 + number))
    return tmp_path.resolve()


async def glob(root: Path, **given: object) -> list[str]:
    return (await call(GlobTool(), make_context(root), **given)).content.split("\n")


async def grep(root: Path, **given: object) -> str:
    return (await call(GrepTool(), make_context(root), **given)).content


async def test_glob_finds_names_at_any_depth_newest_first(root: Path) -> None:
    assert await glob(root, pattern="*.py") == ["src/deep/util.py", "src/app.py"]
    os.utime(root / "src/app.py", (9000, 9000))
    assert await glob(root, pattern="*.py") == ["src/app.py", "src/deep/util.py"]
    assert await glob(root, pattern=".settings") == [".settings"]
    assert await glob(root, pattern="*.rs") == ["No files."]


@pytest.mark.found("audit of issue 20", "grep printed the lines of `.env` unasked; it now skips credentials")
async def test_grep_skips_credentials_unless_they_are_named(root: Path) -> None:
    for name in (".env", "src/server.PEM", ".env.example"):
        (root / name).write_text("SECRET=main\n" if name != ".env.example" else "main\n")
    output = await grep(root, pattern="main")
    assert "SECRET" not in output
    assert output.endswith("\n(Skipped 2 files that may hold credentials: .env, src/server.PEM.)")
    assert ".env.example\n" in output
    # The line does not tell whether they match.
    assert (await grep(root, pattern="absent")).startswith("No matches.\n(Skipped 2 files")
    assert "Skipped" not in await grep(root, pattern="main", include="*.py")
    assert "Skipped" not in await grep(root, pattern="made", path="src/deep")

    assert "SECRET=main" in await grep(root, pattern="main", path=".env")
    for path, asks in ((".env", True), ("src/server.PEM", True), (".env.example", False), (".", False)):
        intent = (await prepare(GrepTool(), make_context(root), pattern="main", path=path)).intent
        assert (intent.needs_approval, intent.exact_only) == (asks, asks), path


async def test_glob_returns_paths_that_other_tools_accept(root: Path) -> None:
    assert await glob(root, pattern="*", path="src/deep") == ["src/deep/style.css", "src/deep/util.py"]
    assert await glob(root, pattern="deep/*.py", path=str(root / "src")) == ["src/deep/util.py"]


@pytest.mark.parametrize("pattern", ["**", "src/**", "src/**/*", "**/*"])
async def test_wide_pattern_respects_gitignore(root: Path, pattern: str) -> None:
    found = await glob(root, pattern=pattern)
    assert "src/app.py" in found
    assert not [name for name in found if "build" in name or ".git/" in name]


@pytest.mark.parametrize(
    ("pattern", "path", "is_match"),
    [
        ("*.py", "a/b.py", True),
        ("/*.py", "a/b.py", False),
        ("./a/*.py", "a/b.py", True),
        ("a/**/b.py", "a/b.py", True),
        ("a/**/b.py", "a/x/y/b.py", True),
        ("a/*/b.py", "a/x/y/b.py", False),
        ("**/x/**", "a/x/b", True),
        ("*.{ts,tsx}", "a.tsx", True),
        ("{a,b/{c,d}}/e", "b/d/e", True),
        ("[ab]?.txt", "b1.txt", True),
        ("[!a]?.txt", "a1.txt", False),
        ("src", "src/app.py", False),
        ("a}{b", "a}{b", True),
    ],
)
def test_patterns_match_as_expected(pattern: str, path: str, is_match: bool) -> None:
    assert path_filter(pattern)(path) is is_match


def test_patterns_take_bounded_time() -> None:
    assert not path_filter("*a" * 200 + "b")("a" * 250)
    assert not path_filter("**/" * 200 + "b")("/".join(["a"] * 500))
    with pytest.raises(ToolFailed, match="expand to more than"):
        path_filter("{a,b}" * 50)


async def test_glob_is_bounded_and_counts_the_rest(root: Path) -> None:
    for number in range(GLOB_FILES_MAX + 5):
        (root / f"{number}.txt").touch()
    output = await call(GlobTool(), make_context(root), pattern="*.txt")
    assert output.content.endswith("\n(5 more are not shown; give a narrower pattern or a path.)")
    assert output.metadata["count"] == GLOB_FILES_MAX + 5


async def test_invalid_names_are_escaped(root: Path) -> None:
    os.close(os.open(os.fsencode(root) + b"/bad\xff\n.txt", os.O_CREAT, 0o600))
    assert await glob(root, pattern="*.txt") == [r"bad\udcff\n.txt"]


async def test_grep_groups_by_file_with_line_numbers(root: Path) -> None:
    output = await call(GrepTool(), make_context(root), pattern=r"main\(")
    assert output.content == "README.md\n     1: Call main() to begin.\n\nsrc/app.py\n     3: def main():"
    assert output.metadata == {"path": ".", "matches": 2, "files": 2}


async def test_grep_searches_hidden_but_not_ignored_files(root: Path) -> None:
    found = await grep(root, pattern="main|made")
    assert ".settings" in found
    assert "in git" not in found
    assert "made.py" not in found


async def test_grep_shows_context(root: Path) -> None:
    found = await grep(root, pattern="def main", context=1)
    assert found == "src/app.py\n     2- \n     3: def main():\n     4-     return os.getcwd()"


@pytest.mark.parametrize("include", ["*.py", "src/**/*.py", "**/*.py", "src/*.py"])
async def test_grep_include_filters_files(root: Path, include: str) -> None:
    (root / "main.css").write_text("main()\n")
    assert await grep(root, pattern=r"main\(", include=include) == "src/app.py\n     3: def main():"


async def test_grep_include_respects_gitignore(root: Path) -> None:
    assert await grep(root, pattern="made", include="*") == "No matches."
    assert await grep(root, pattern="made", include="src/**") == "No matches."


async def test_grep_in_one_file_and_in_a_directory(root: Path) -> None:
    assert await grep(root, pattern="def", path="src/app.py") == "src/app.py\n     3: def main():"
    assert await grep(root, pattern="def", path="src/deep") == "src/deep/util.py\n     1: def helper():"


async def test_literal_and_case(root: Path) -> None:
    (root / "x").write_text("a.b(\nA.B(\naxb(\n")
    assert await grep(root, pattern="a.b(", literal=True, path="x") == "x\n     1: a.b("
    found = await grep(root, pattern="a.b(", literal=True, ignore_case=True, path="x")
    assert found == "x\n     1: a.b(\n     2: A.B("


async def test_no_match_is_a_result_and_bad_regex_an_error(root: Path) -> None:
    assert await grep(root, pattern="nowhere to be found") == "No matches."
    with pytest.raises(ToolFailed, match="the search failed: .*regex parse error.*unclosed group"):
        await grep(root, pattern="(")
    with pytest.raises(ToolFailed, match="NUL"):
        await grep(root, pattern="a\0b")
    with pytest.raises(ToolFailed, match="app.pi does not exist; similar names there: app.py"):
        await grep(root, pattern="x", path="src/app.pi")


@pytest.mark.parametrize("pattern", ["--pre=touch pwned", "-e", "--files", "-", "--", "--help"])
async def test_a_pattern_is_never_an_option(root: Path, pattern: str) -> None:
    (root / "-x").write_text(f"here: {pattern}\n")
    assert f"here: {pattern}" in await grep(root, pattern=pattern, literal=True)
    assert f"here: {pattern}" in await grep(root, pattern=pattern, literal=True, path="-x")
    assert await grep(root, pattern=pattern, literal=True, include=pattern) == "No matches."
    assert await glob(root, pattern=pattern) == ["No files."]
    assert not (root / "pwned").exists()


async def test_grep_is_bounded_in_matches_and_line_lengths(root: Path) -> None:
    (root / "many").write_text("needle\n" * (GREP_MATCHES_MAX + 1))
    found = await grep(root, pattern="needle", path="many")
    assert found.count("needle") == GREP_MATCHES_MAX
    assert found.endswith(f"(Cut after {GREP_MATCHES_MAX} matches; give a narrower pattern, path or include.)")
    (root / "many").write_text("needle\n" * GREP_MATCHES_MAX)
    assert "Cut after" not in await grep(root, pattern="needle", path="many")
    (root / "wide").write_text("x" * 500_000 + "needle" + "y" * 500_000)
    found = await grep(root, pattern="needle", path="wide")
    assert "xneedley" in found
    assert len(found) < GREP_LINE_CHARS_MAX + 50
    (root / "wide").write_text(("needle" + "y" * 290 + "\n") * 150)
    assert len(await grep(root, pattern="needle", path="wide", context=5)) <= OUTPUT_CHARS_MAX


async def test_pipe_does_not_block_a_search(root: Path) -> None:
    os.mkfifo(root / "pipe")
    assert await grep(root, pattern="nowhere") == "No matches."
    with pytest.raises(ToolFailed, match="neither a file nor a directory"):
        await grep(root, pattern="x", path="pipe")


async def test_search_follows_no_symlinks(root: Path) -> None:
    inside = root / "inside"
    inside.mkdir()
    (inside / "link").symlink_to(root / "README.md")
    (inside / "tree").symlink_to(root / "src")
    assert await grep(inside, pattern="main") == "No matches."
    assert await glob(inside, pattern="**") == ["No files."]


async def test_replaced_directory_is_not_searched(root: Path) -> None:
    inside = root / "inside"
    (inside / "sub").mkdir(parents=True)
    prepared = await prepare(GrepTool(), make_context(inside), pattern="main", path="sub")
    (inside / "sub").rmdir()
    (inside / "sub").symlink_to(root / "src")
    with pytest.raises(ToolFailed, match="neither a file nor a directory"):
        await prepared.run()


async def test_results_of_a_replaced_directory_are_dropped(root: Path) -> None:
    inside = root / "inside"
    (inside / "sub").mkdir(parents=True)

    class SwappingProcesses(PlainProcesses):
        async def start(
            self,
            argv: tuple[str, ...],
            cwd: Path,
            *,
            stdin: BinaryIO | None = None,
            confinement: Confinement = "configured",
        ) -> Process:
            (inside / "sub").rmdir()
            (inside / "sub").symlink_to(root / "src")
            return await super().start(argv, cwd, stdin=stdin)

    with pytest.raises(ToolFailed):
        await call(GrepTool(), make_context(inside, processes=SwappingProcesses()), pattern="main", path="sub")


async def test_temporary_symlink_is_not_searched(root: Path) -> None:
    inside = root / "inside"
    inside.mkdir()
    (inside / "a.txt").write_text("a harmless main\n")

    class SwappingProcesses(PlainProcesses):
        async def start(
            self,
            argv: tuple[str, ...],
            cwd: Path,
            *,
            stdin: BinaryIO | None = None,
            confinement: Confinement = "configured",
        ) -> Process:
            (inside / "a.txt").rename(inside / "aside")
            (inside / "a.txt").symlink_to(root / "src" / "app.py")
            process = await super().start(argv, cwd, stdin=stdin)
            await process.wait()
            (inside / "aside").rename(inside / "a.txt")
            return process

    found = await call(GrepTool(), make_context(inside, processes=SwappingProcesses()), pattern="main", path="a.txt")
    assert found.content == "a.txt\n     1: a harmless main"


async def test_file_with_any_name_can_be_searched(tmp_path: Path) -> None:
    for name in ("-", "--files", "<stdin>", "*", "a\nb", os.fsdecode(b"\xff")):
        (tmp_path / name).write_text("needle\n")
        assert (await grep(tmp_path, pattern="needle", path=name)).splitlines()[-1] == "     1: needle"
    found = await grep(tmp_path, pattern="needle")
    assert found.count("needle") == 6
    assert "\n<stdin>\n" in found


async def test_gitignore_applies_without_a_repository(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("*.log\n")
    (tmp_path / "a.log").write_text("needle")
    assert await glob(tmp_path, pattern="*.log") == ["No files."]
    assert await grep(tmp_path, pattern="needle") == "No matches."


async def test_searching_outside_needs_approval(root: Path) -> None:
    context = make_context(root / "src")
    intent = (await prepare(GrepTool(), context, pattern="x", path="..")).intent
    assert (intent.needs_approval, intent.names, intent.subject) == (True, ("grep", "view"), str(root))
    assert intent.grant == f"grep({root}/**)"
    assert not (await prepare(GlobTool(), context, pattern="x")).intent.needs_approval


async def test_slow_search_is_ended(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ripgrep, "SEARCH_S", 0.0)
    processes = PlainProcesses()
    with pytest.raises(ToolFailed, match="took longer than"):
        await call(GrepTool(), make_context(root, processes=processes), pattern="x")
    assert len(processes.started) == 1


async def test_too_much_output_is_cut(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ripgrep, "SEARCH_BYTES_MAX", 10)
    output = await call(GlobTool(), make_context(root), pattern="*.py")
    assert "too many files to scan them all" in output.content


class Lingering(PlainProcesses):
    """Its processes end when the test allows it, and report a survivor."""

    def __init__(self) -> None:
        super().__init__()
        self.ending, self.go = asyncio.Event(), asyncio.Event()

    async def start(
        self,
        argv: tuple[str, ...],
        cwd: Path,
        *,
        stdin: BinaryIO | None = None,
        confinement: Confinement = "configured",
    ) -> Process:
        process = await super().start(argv, cwd, stdin=stdin)
        end = process.end

        async def slowly(grace_s: float) -> tuple[int, ...]:
            self.ending.set()
            await self.go.wait()
            return (*(await end(grace_s)), 123)

        process.end = slowly  # type: ignore[method-assign]
        return process


async def test_cancel_waits_for_a_search_and_reports_survivors(root: Path) -> None:
    processes = Lingering()
    context = make_context(root, processes=processes)
    searching = asyncio.create_task(call(GrepTool(), context, pattern="main"))
    await processes.ending.wait()
    for _ in range(3):
        searching.cancel()
        await asyncio.sleep(0)
    assert not searching.done()
    processes.go.set()
    with pytest.raises(asyncio.CancelledError):
        await searching
    assert context.background.survivors == {123}
