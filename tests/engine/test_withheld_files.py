"""New guarded files of a confined command are moved away when it has ended, and nothing else is."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kedge.core.approvals import Confinement
from kedge.engine import guarded_paths, withheld_files
from kedge.engine.git_defaults import is_default_config
from kedge.engine.guarded_paths import scan
from kedge.engine.withheld_files import Withheld, withhold
from kedge.tools import disk
from kedge.tools.tool_failed import ToolFailed
from tests.engine.test_confinement import Confined, confined, git

__all__ = ["confined"]

WORKSPACE: Confinement = "workspace"


def files(root: Path) -> set[str]:
    """Return the files and links of a workspace, without the contents of git directories."""
    paths = (path for path in root.rglob("*") if path.is_symlink() or not path.is_dir())
    names = {str(path.relative_to(root)) for path in paths}
    return {name for name in names if "/.git/" not in f"/{name}"}


def withheld_in(directory: Path) -> set[str]:
    """Return the names of withheld files, without the part of their path that is random."""
    return {name.partition("/")[2] for name in files(directory)}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "withheld"


def write(path: Path, text: str = "x") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


#: What a command may not leave, each in a place of its own.
EVIL = {
    "CLAUDE.md": "echo evil > CLAUDE.md",
    ".vscode/tasks.json": "mkdir .vscode; echo evil > .vscode/tasks.json",
    "pkg/.github/workflows/x.yml": "mkdir -p pkg/.github/workflows; echo evil > pkg/.github/workflows/x.yml",
    ".github/copilot-instructions.md": "mkdir .github; echo evil > .github/copilot-instructions.md",
    ".venv/bin/activate": "mkdir -p .venv/bin; echo evil > .venv/bin/activate",
    "renamed/.envrc": "mkdir plain; echo evil > plain/env; mv plain/env plain/.envrc; mv plain renamed",
    "cargo/config.toml -> .cargo": "mkdir cargo; echo evil > cargo/config.toml; ln -s cargo .cargo",
    "a/.git/hooks/pre-commit": "git init -q a; echo evil > a/.git/hooks/pre-commit",
    "b/.git/config": "git init -q b; git -C b config core.fsmonitor ./evil",
    "c/.git/config": "mkdir -p c/.git; printf '[alias]\\n\\tx = !evil\\n' > c/.git/config",
    "d/.git": "git init -q --bare bare; mkdir d; echo 'gitdir: ../bare' > d/.git",
    "bare2/hooks/update": "git init -q --bare bare2; echo evil > bare2/hooks/update",
    "e/.git/commondir": "git init -q e; echo ../../bare > e/.git/commondir",
    "g/.git/commondir": "git init -q g; echo ../.. > g/.git/commondir",
    "h/.git/hooks": "git init -q h; rm -r h/.git/hooks; ln -s ../../plain2 h/.git/hooks",
    "i/.git/config": "git init -q i; mv i/.git/config i/plain; ln -s ../plain i/.git/config",
    "f/.git -> a/.git": "mkdir f; ln -s ../a/.git f/.git",
}


async def test_confined_command_leaves_no_new_guarded_files(confined: Confined) -> None:
    if not await confined.can_confine():
        pytest.skip("this machine cannot confine commands")
    root, data = confined.root, confined.root.parent / "own/data"
    git("init", "-q", cwd=root)
    write(root / "target.md", "mine")
    write(root / "AGENTS.md", "mine")
    (root / "GEMINI.md").symlink_to("target.md")
    script = "\n".join([*EVIL.values(), "rm GEMINI.md; echo evil > GEMINI.md", "echo fine > README.md"])
    output = await confined.run(script, WORKSPACE)
    left = files(root)
    assert left >= {"README.md", "AGENTS.md", "target.md", "GEMINI.md", "cargo/config.toml"}
    assert os.readlink(root / "GEMINI.md") == "target.md"
    for name in EVIL:
        path, _, link = name.partition(" -> ")
        assert not os.path.lexists(root / (link if link.startswith(".") else path)), name
    assert "Withheld: " in output
    assert f" and {len(EVIL) + 1 - withheld_files.NAMED_MAX} more." in output
    moved = withheld_in(data / "withheld")
    assert moved >= {"CLAUDE.md", ".vscode/tasks.json", "GEMINI.md", ".cargo", "renamed/.envrc"}
    assert "\n" not in output[output.index("Withheld: ") :]
    # A command afterwards finds nothing to withhold.
    assert await confined.run("git status --short > $TMPDIR/x", WORKSPACE) == ""


async def test_new_repositories_stay_if_they_are_as_git_creates_them(confined: Confined) -> None:
    if not await confined.can_confine():
        pytest.skip("this machine cannot confine commands")
    root = confined.root
    script = """
        exec 2>/dev/null
        git init -q . && git config --list --local >/dev/null && echo one > one && git add one
        git -c user.name=a -c user.email=a@b commit -qm one
        git init -q sub && git clone -q . copy && git worktree add -q tree && git init -q --bare store
        git -C copy config user.name a && git -C copy remote add other ../store
    """
    assert await confined.run(script, WORKSPACE) == ""
    for command in ("git log --oneline", "git -C copy log --oneline", "git -C tree log --oneline"):
        assert "one" in await confined.run(command, WORKSPACE)
    assert (root / "sub/.git/config").exists()
    # What exists is read-only for the next command.
    await confined.run("git -C sub config core.fsmonitor ./evil; touch sub/.git/hooks/pre-commit", WORKSPACE)
    assert "evil" not in (root / "sub/.git/config").read_text()
    assert not (root / "sub/.git/hooks/pre-commit").exists()


def test_files_that_kedge_wrote_meanwhile_stay(root: Path, place: Path) -> None:
    """Of a directory with such a file, the rest is withheld."""
    before = scan(str(root))
    for name in ("AGENTS.md", ".vscode/settings.json"):
        disk.replace(root / name, b"approved", None, root)
    for name in ("CLAUDE.md", ".vscode/tasks.json", ".vscode/more/x"):
        write(root / name)
    assert withhold(before, str(place)).count == 3
    assert files(root) == {"AGENTS.md", ".vscode/settings.json"}
    assert withheld_in(place) == {"CLAUDE.md", ".vscode/tasks.json", ".vscode/more/x"}


def test_files_beyond_the_scan_are_left_alone(root: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory that was not reached before may have its guarded files for long; a new one cannot."""
    monkeypatch.setattr(guarded_paths, "SCANNED_MAX", 3)
    write(root / "a/b/c/AGENTS.md")
    before = scan(str(root))
    monkeypatch.setattr(guarded_paths, "SCANNED_MAX", 20_000)
    write(root / "a/b/c/CLAUDE.md")
    write(root / "a/new/deep/CLAUDE.md")
    withheld = withhold(before, str(place))
    assert withheld.names == ("a/new/deep/CLAUDE.md",)
    assert files(root) == {"a/b/c/AGENTS.md", "a/b/c/CLAUDE.md"}


def test_another_file_system_keeps_the_file_under_another_name(root: Path) -> None:
    if os.stat("/dev/shm").st_dev == os.stat(root).st_dev:
        pytest.skip("there is one file system")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as place:
        before = scan(str(root))
        write(root / ".venv/bin/activate", "evil")
        note = withhold(before, place).note()
    (left,) = root.iterdir()
    assert left.name.startswith(".venv.withheld-")
    assert "renamed, with the suffix .withheld-" in note
    assert (left / "bin/activate").read_text() == "evil"


@pytest.fixture
def unprivileged() -> Iterator[Path]:
    """A directory, and a user without the rights of root."""
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o777)
        if is_root := os.geteuid() == 0:
            os.seteuid(65534)
        try:
            yield Path(directory)
        finally:
            if is_root:
                os.seteuid(0)


def test_a_directory_without_access_hides_nothing(unprivileged: Path) -> None:
    root, place = unprivileged / "work", unprivileged / "withheld"
    root.mkdir()
    before = scan(str(root))
    for name in ("none/CLAUDE.md", "read/CLAUDE.md", "read/.vscode/tasks.json"):
        write(root / name)
    (root / "read/.vscode").chmod(0o500)
    (root / "read").chmod(0o500)
    (root / "none").chmod(0)
    assert withhold(before, str(place)).left == 0
    (root / "none").chmod(0o700)
    assert files(root) == set()


def test_a_swapped_directory_moves_nothing_outside(root: Path) -> None:
    """Another confined command replaces the directory by a link between the scan and the move."""
    outside = root.parent / "outside"
    write(outside / "CLAUDE.md", "mine")
    os.symlink(outside, root / "sub")
    with pytest.raises(ToolFailed):
        disk.move_away(root / "sub/CLAUDE.md", root.parent / "moved", "aside")
    assert files(outside) == {"CLAUDE.md"}


def test_old_withheld_files_are_deleted(root: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(withheld_files, "KEPT_MAX", 2)
    places: list[str] = []
    for number in range(4):
        before = scan(str(root))
        write(root / "CLAUDE.md", str(number))
        withheld = withhold(before, str(place))
        os.utime(withheld.moved_to, (number, number))
        places.append(withheld.moved_to)
        withheld_files.remove_oldest(str(place))
    assert sorted(map(str, place.iterdir())) == sorted(places[2:])


def test_note_is_one_short_line() -> None:
    assert Withheld().note() == ""
    note = Withheld(moved_to="/d/withheld-1", has_moved=True, names=("a\\u200b", "b"), count=900, left=2).note()
    assert "a\\u200b, b and 898 more" in note
    assert "\n" not in note


CONFIG = """[core]
\trepositoryformatversion = 0
\tbare = false
[remote "origin"]
\turl = https://example.org/a.git
\tfetch = +refs/heads/*:refs/remotes/origin/*
[branch "main"]
\tremote = origin
\tmerge = refs/heads/main
"""


@pytest.mark.parametrize(
    ("addition", "is_default"),
    [
        ("", True),
        ("[user]\n\tname = A B\n", True),
        ("[core]\n\tworktree = ../sub\n", True),
        ("[core]\n\tworktree = /etc\n", False),
        ("[core]\n\tfsmonitor = ./evil\n", False),
        ("[core]\n\thookspath = evil\n", False),
        ("[core] fsmonitor = ./evil\n", False),
        ("[CORE]\n\tfsmonitor = ./evil\n", False),
        ("[core]\n\tbare = false \\\n fsmonitor = x\n", False),
        ('[filter "x"]\n\tclean = evil\n', False),
        ('[diff "x"]\n\ttextconv = evil\n', False),
        ("[include]\n\tpath = ../evil\n", False),
        ("[alias]\n\tx = !evil\n", False),
        ('[remote "evil"]\n\turl = ext::sh -c evil\n', False),
        ('[remote "evil"]\n\tuploadpack = evil\n', False),
        ('[url "evil"]\n\tinsteadOf = https://example.org\n', False),
        ('[submodule "x"]\n\tupdate = !evil\n', False),
        ("[remote.evil]\n\tproxy = x\n", False),
        ("\x0b[core]\n", False),
        ("fsmonitor = x\n", False),
        ("# a comment\n", False),
    ],
)
def test_default_configuration_names_no_program(addition: str, is_default: bool, root: Path) -> None:
    assert is_default_config(CONFIG + addition, root / ".git", str(root)) is is_default
