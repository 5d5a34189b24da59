from __future__ import annotations

import asyncio
import os
import tomllib
from pathlib import Path

import pytest

from kedge.llm.base import ModelEnd, ModelRequest, TextDelta
from kedge.llm.look import ENTRIES_MAX
from kedge.llm.offline import EXAMPLE_CONFIG, PIECES_MAX, OfflineModel, pieces
from tests.llm.support import end_of, message, parts_of, text_of

LAST_LINE = (
    "This is kedge's built-in offline model; to use a real one, add it to your config.toml "
    "(`kedge config path` says where)."
)


async def answer(workspace: Path, prompt: str, model: OfflineModel | None = None) -> str:
    request = ModelRequest("offline", (message("user", prompt),), workspace=str(workspace))
    return text_of(await parts_of(model or OfflineModel(piece_s=0), request))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A workspace beside a secret."""
    (tmp_path / "secret.txt").write_text("hunter2")
    root = tmp_path / "work"
    (root / "src").mkdir(parents=True)
    (root / "src" / "main.py").write_text("print('hi')\n")
    (root / "README.md").write_text("<p>logo</p>\n\n# Anchors & more\n\nText.\n")
    (root / "pyproject.toml").write_text('[project]\nname = "anchor"\n')
    (root / "Makefile").write_text("all:\n")
    (root / "with blank.txt").write_text("found it")
    (root / "data.bin").write_bytes(b"\x00\x01\x02" * 1000)
    (root / ".env").write_text("KEY=1")
    (root / ".git").mkdir()
    (root / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    return root


@pytest.mark.parametrize("prompt", ["What is in this directory?", "list files", "Describe the project."])
async def test_it_says_what_is_in_the_directory(project: Path, prompt: str) -> None:
    assert await answer(project, prompt) == (
        f"{project} holds 5 files and 1 folder, and 2 hidden entries.\n"
        "It looks like Python code (pyproject.toml, named anchor).\n"
        "README.md is headed: Anchors & more\n"
        "It is a git repository, on branch main.\n"
        "\n"
        "  Makefile  5 B\n"
        "  README.md  37 B\n"
        "  data.bin  3.0 kB\n"
        "  pyproject.toml  26 B\n"
        "  src/\n"
        "  with blank.txt  8 B\n"
        f"\n{LAST_LINE}"
    )


@pytest.mark.parametrize(
    ("prompt", "says"),
    [
        ("What does README.md say?", "README.md (37 B) says:\n\n<p>logo</p>\n\n# Anchors & more\n\nText.\n"),
        ("show me the readme", "README.md (37 B) says:"),
        ("Explain src/main.py, please.", "src/main.py (12 B) says:\n\nprint('hi')\n"),
        ("Makefile", "Makefile (5 B) says:"),
        ("what's in 'with blank.txt'", "with blank.txt (8 B) says:\n\nfound it"),
        ("What is in src?", "src/ holds 1 file and no folders.\n\n  main.py  12 B\n"),
        ("show data.bin", "data.bin is a binary file of 3.0 kB, so I do not print it."),
        ("show nothing.txt", "There is no file nothing.txt in this workspace."),
    ],
)
async def test_it_shows_what_the_prompt_names(project: Path, prompt: str, says: str) -> None:
    text = await answer(project, prompt)
    assert text.startswith(says)
    assert text.endswith(LAST_LINE)


async def test_it_is_honest_about_everything_else(project: Path) -> None:
    text = await answer(project, "Write a poem about anchors")
    assert text.startswith("I cannot answer that: no language model is configured")
    assert EXAMPLE_CONFIG in text
    assert "`kedge config path` says where" in text
    assert text.splitlines()[-1].startswith("This is kedge's built-in offline model")


async def test_it_names_the_configuration_file_when_it_knows_it(project: Path) -> None:
    model = OfflineModel("/home/me/.config/kedge/config.toml", piece_s=0)
    assert "add this to /home/me/.config/kedge/config.toml:" in await answer(project, "hello", model)
    assert "add it to /home/me/.config/kedge/config.toml." in await answer(project, "list files", model)


def test_the_example_is_valid_and_complete() -> None:
    config = tomllib.loads(EXAMPLE_CONFIG)
    provider, _, model = config["model"].partition("/")
    assert config["providers"][provider]["type"] == "openai"
    assert model in [entry["id"] for entry in config["providers"][provider]["models"]]


class TestStaysInside:
    @pytest.mark.parametrize(
        "name", ["../secret.txt", "src/../../secret.txt", "/etc/passwd", "link.txt", "out/secret.txt"]
    )
    async def test_nothing_outside_the_workspace_is_shown(self, project: Path, name: str) -> None:
        (project / "link.txt").symlink_to(project.parent / "secret.txt")
        (project / "out").symlink_to(project.parent)
        text = await answer(project, f"show {name}")
        assert text.startswith(f"{name} leads out of this workspace, so I do not look at it.")
        assert "hunter2" not in text

    async def test_a_folder_whose_name_only_begins_like_the_workspace_is_outside(self, project: Path) -> None:
        (project.parent / "work-evil").mkdir()
        (project.parent / "work-evil" / "a.txt").write_text("hunter2")
        assert "leads out" in await answer(project, "show ../work-evil/a.txt")

    async def test_links_are_listed_as_links_and_never_followed_for_their_heading(self, project: Path) -> None:
        (project / "README.md").unlink()
        (project / "README.md").symlink_to(project.parent / "secret.txt")
        text = await answer(project, "list files")
        assert "  README.md (a link)\n" in text
        assert "hunter2" not in text

    async def test_a_link_inside_the_workspace_is_followed(self, project: Path) -> None:
        (project / "alias.txt").symlink_to("README.md")
        assert (await answer(project, "show alias.txt")).startswith("README.md (37 B) says:")

    async def test_a_pipe_is_not_waited_for(self, project: Path) -> None:
        os.mkfifo(project / "pipe.txt")
        assert (await answer(project, "show pipe.txt")).startswith("pipe.txt is not a plain file")
        assert "  pipe.txt (not a plain file)\n" in await answer(project, "list files")


class TestBounds:
    async def test_a_long_file_is_cut(self, project: Path) -> None:
        (project / "long.txt").write_text("".join(f"line {count}\n" for count in range(10_000)))
        (project / "wide.txt").write_text("é" * 100_000)
        text = await answer(project, "show long.txt")
        assert text.startswith("long.txt (99 kB) begins like this:\n\nline 0\n")
        assert "line 59\n\n(There is more of it.)" in text
        assert "�" not in await answer(project, "show wide.txt")

    async def test_a_large_directory_is_counted_and_cut(self, project: Path) -> None:
        for count in range(100):
            (project / "src" / f"f{count:03}").touch()
        text = await answer(project, "what is in src/")
        assert text.startswith("src/ holds 101 files and no folders.")
        assert "  f039  0 B\n  ... and 61 others\n" in text

    async def test_a_huge_directory_is_looked_at_only_so_far(self, project: Path) -> None:
        for count in range(ENTRIES_MAX + 1):
            os.mknod(project / "src" / f"f{count}")
        text = await answer(project, "what is in src/")
        assert text.startswith(f"src/ holds more than {ENTRIES_MAX} entries.")
        assert f"  ... and {ENTRIES_MAX - 40} or more others\n" in text

    async def test_nothing_can_write_escape_codes_to_the_terminal(self, project: Path) -> None:
        (project / "a\x1b[31m\nb.txt").write_text("x")
        (project / "evil.md").write_text("red \x1b[31m text\r\nnext\x9b line")
        os.close(os.open(os.fsencode(project) + b"/bad\xff", os.O_CREAT | os.O_WRONLY))
        text = await answer(project, "list files") + await answer(project, "show evil.md")
        assert "a�[31m�b.txt" in text
        assert "red �[31m text\nnext� line" in text
        assert "bad?  0 B" in text
        text.encode()

    @pytest.mark.parametrize(
        "marker", ["pyproject.toml", "package.json", "Cargo.toml", "go.mod", "composer.json", "CMakeLists.txt"]
    )
    @pytest.mark.parametrize(
        "content", ["", "[", "[1]", '{"name": 5}', 'project = 5\npackage = "x"', "\x00", "[" * 60_000]
    )
    async def test_a_project_file_may_say_anything(self, tmp_path: Path, marker: str, content: str) -> None:
        (tmp_path / marker).write_text(content)
        assert f"code ({marker})." in await answer(tmp_path, "list files")

    @pytest.mark.parametrize(
        ("marker", "content"),
        [
            ("package.json", '{"name": "anchor"}'),
            ("Cargo.toml", '[package]\nname = "anchor"'),
            ("go.mod", "// x\nmodule anchor\n"),
        ],
    )
    async def test_projects_of_other_languages_are_named(self, tmp_path: Path, marker: str, content: str) -> None:
        (tmp_path / marker).write_text(content)
        assert f"({marker}, named anchor)" in await answer(tmp_path, "list files")

    async def test_a_detached_head_and_an_empty_folder(self, tmp_path: Path) -> None:
        assert (await answer(tmp_path, "list files")).startswith(f"{tmp_path} holds nothing: it is empty.")
        (tmp_path / ".git").mkdir()
        (tmp_path / ".git" / "HEAD").write_text("0123456789" * 4 + "\n")
        assert "It is a git repository, at commit 0123456789." in await answer(tmp_path, "list files")

    async def test_a_workspace_that_is_gone_is_told(self, tmp_path: Path) -> None:
        text = await answer(tmp_path / "gone", "what is in this directory?")
        assert text.startswith(f"{tmp_path / 'gone'} cannot be read: No such file or directory.")

    @pytest.mark.parametrize(
        "prompt", ["", "\0", "show \0", "show " + "x" * 100_000 + ".txt", "/", "..", "show ://x.y"]
    )
    async def test_any_prompt_gets_an_answer(self, project: Path, prompt: str) -> None:
        assert "offline model" in await answer(project, prompt)

    async def test_no_workspace_is_no_reason_to_fail(self) -> None:
        parts = await parts_of(OfflineModel(piece_s=0), ModelRequest("offline", (message("user", "list files"),)))
        assert text_of(parts).startswith("I cannot answer that")


async def test_the_answer_streams_in_small_pieces_and_ends(project: Path) -> None:
    request = ModelRequest("offline", (message("user", "list files"),), workspace=str(project))
    parts = await parts_of(OfflineModel(piece_s=0), request)
    assert len(parts) > 10
    assert all(isinstance(part, TextDelta) and len(part.text.split()) <= 3 for part in parts[:-1])
    assert end_of(parts) == ModelEnd("end_turn")


@pytest.mark.parametrize("text", ["", " ", "one", " one  two\n\n", "a b c d e f g\n", "word " * 5000])
def test_pieces_are_the_text_and_not_too_many(text: str) -> None:
    assert "".join(pieces(text)) == text
    assert len(pieces(text)) <= PIECES_MAX


async def test_a_cancel_stops_it(project: Path) -> None:
    first = asyncio.Event()

    async def read() -> None:
        request = ModelRequest("offline", (message("user", "list files"),), workspace=str(project))
        async with OfflineModel(piece_s=3600).stream(request) as parts:
            async for _ in parts:
                first.set()

    reading = asyncio.create_task(read())
    await first.wait()
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
