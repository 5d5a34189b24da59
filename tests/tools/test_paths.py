"""Attacks on the path rules of the workspace: the real path is checked, and the checked file is opened."""

from __future__ import annotations

import os
import socket
import threading
import unicodedata
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from kedge.core.approvals import is_hidden, parse_rules, permit
from kedge.tools import disk
from kedge.tools.base import ToolFailed
from kedge.tools.search import GrepTool
from kedge.tools.view import ViewTool
from kedge.tools.workspace_paths import resolve
from kedge.tools.write import WriteTool
from tests.tools.contexts import call, make_context, prepare

SECRET = "the secret outside\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A workspace with a neighbour whose name begins the same, and a secret beside both."""
    root = tmp_path.resolve() / "ws"
    (root / "src").mkdir(parents=True)
    (root / "src" / "app.py").write_text("print()\n")
    (root.parent / "ws-evil").mkdir()
    (root.parent / "ws-evil" / "secret").write_text(SECRET)
    (root.parent / "secret").write_text(SECRET)
    return root


@pytest.mark.parametrize("given", ["src/app.py", "./src/../src/app.py", "src//app.py", "/{root}/src/app.py"])
def test_paths_inside_are_relative_to_the_workspace(root: Path, given: str) -> None:
    target = resolve(given.replace("/{root}", str(root)), root)
    assert (target.subject, target.is_inside, target.is_guarded) == ("src/app.py", True, False)


OUTSIDE = ["../secret", "src/../../secret", "/{root}/../secret", "../ws-evil/secret", "/{root}-evil/secret"]
OUTSIDE += ["/proc/self/root/{root}/../secret", "link", "up/secret", "evil/secret", "chain"]


@pytest.mark.parametrize("given", OUTSIDE)
async def test_paths_outside_need_approval(root: Path, given: str) -> None:
    (root / "link").symlink_to(root.parent / "secret")
    (root / "up").symlink_to("..")
    (root / "evil").symlink_to(root.parent / "ws-evil", target_is_directory=True)
    (root / "chain").symlink_to("link")
    prepared = await prepare(ViewTool(), make_context(root), path=given.replace("/{root}", str(root)))
    assert prepared.intent.needs_approval
    assert prepared.intent.subject.startswith(str(root.parent))
    assert prepared.intent.subject.endswith("/secret")
    assert permit(prepared.intent, parse_rules(["view(src/**)"], []), ()).decision == "ask"


async def test_only_writing_inside_needs_approval(root: Path) -> None:
    context = make_context(root)
    assert not (await prepare(ViewTool(), context, path="src/app.py")).intent.needs_approval
    assert (await prepare(WriteTool(), context, path="new.py", content="x")).intent.needs_approval


async def test_proc_is_refused(root: Path) -> None:
    with (root.parent / "secret").open("rb") as held:
        for given in ["/proc/self/environ", "/proc/self/status", "/proc/self/root/proc/self/maps", "/proc"]:
            with pytest.raises(ToolFailed, match="use bash"):
                await call(ViewTool(), make_context(root), path=given)
        # An open descriptor resolves to its file.
        assert resolve(f"/proc/self/fd/{held.fileno()}", root).subject == str(root.parent / "secret")
        with pytest.raises(ToolFailed, match="use bash"):
            resolve("/proc/self/fd/999999", root)


async def test_special_files_are_refused_without_blocking(root: Path) -> None:
    os.mkfifo(root / "pipe")
    listening = socket.socket(socket.AF_UNIX)
    here = os.open(root, os.O_RDONLY)
    listening.bind(f"/proc/self/fd/{here}/socket")  # the path itself may be too long for a socket
    for given, said in [
        ("/dev/zero", "a device"),
        ("/dev/tty", "a device"),
        ("pipe", "a pipe"),
        ("socket", "a socket"),
        ("src", "a directory; use ls"),
        (".", "a directory; use ls"),
        ("/", "a directory; use ls"),
    ]:
        with pytest.raises(ToolFailed, match=said):
            await call(ViewTool(), make_context(root), path=given)
        with pytest.raises(ToolFailed, match=said):
            await call(WriteTool(), make_context(root), path=given, content="x")
    listening.close()
    os.close(here)


@pytest.mark.parametrize(
    ("given", "said"),
    [("a\0b", "NUL"), ("x" * 300, "too long"), ("d/" * 3000, "too long"), ("src/app.py/x", "not a directory")],
)
async def test_invalid_path_is_refused_in_one_line(root: Path, given: str, said: str) -> None:
    with pytest.raises(ToolFailed, match=said) as viewed:
        await call(ViewTool(), make_context(root), path=given)
    with pytest.raises(ToolFailed, match=said) as written:
        await call(WriteTool(), make_context(root), path=given, content="x")
    assert "\n" not in f"{viewed.value}{written.value}"


async def test_symlink_loop_is_refused(root: Path) -> None:
    (root / "a").symlink_to("b")
    (root / "b").symlink_to("a")
    with pytest.raises(ToolFailed):
        await call(ViewTool(), make_context(root), path="a")


async def test_deep_directories_work(root: Path) -> None:
    deep = "/".join(["deep"] * 200) + "/file"
    await call(WriteTool(), make_context(root), path=deep, content="down here")
    assert "down here" in (await call(ViewTool(), make_context(root), path=deep)).content


async def test_file_replaced_by_a_symlink_is_not_opened(root: Path) -> None:
    prepared = await prepare(ViewTool(), make_context(root), path="src/app.py")
    (root / "src" / "app.py").unlink()
    (root / "src" / "app.py").symlink_to(root.parent / "secret")
    with pytest.raises(ToolFailed, match="now a symlink"):
        await prepared.run()


async def test_directory_replaced_by_a_symlink_is_not_entered(root: Path) -> None:
    (root.parent / "ws-evil" / "app.py").write_text(SECRET)
    context = make_context(root)
    viewed = await prepare(ViewTool(), context, path="src/app.py")
    written = await prepare(WriteTool(), context, path="src/new.py", content="x")
    (root / "src").rename(root / "moved")
    (root / "src").symlink_to(root.parent / "ws-evil")
    with pytest.raises(ToolFailed, match="replaced by a symlink"):
        await viewed.run()
    with pytest.raises(ToolFailed, match="replaced by a symlink"):
        await written.run()
    assert not (root.parent / "ws-evil" / "new.py").exists()


async def test_workspace_replaced_by_a_symlink_is_not_entered(root: Path) -> None:
    written = await prepare(WriteTool(), make_context(root), path="new.py", content="x")
    root.rename(root.parent / "moved")
    root.symlink_to(root.parent / "ws-evil")
    with pytest.raises(ToolFailed, match="replaced by a symlink"):
        await written.run()
    assert not (root.parent / "ws-evil" / "new.py").exists()


def test_race_between_check_and_open_stays_inside(root: Path) -> None:
    """A directory that is a link and a directory by turns, as fast as the machine can; then the same with a file."""
    (root.parent / "ws-evil" / "app.py").write_text(SECRET)
    path = resolve("src/app.py", root).path

    def swap_directory() -> None:
        for first, second in [("src", "real"), ("other", "src"), ("src", "other"), ("real", "src")]:
            os.rename(root / first, root / second)

    def swap_file() -> None:
        os.symlink(root.parent / "secret", root / "next")
        os.replace(root / "next", path)
        (root / "next").write_text("print()\n")
        os.replace(root / "next", path)

    (root / "other").symlink_to(root.parent / "ws-evil")
    for swap in (swap_directory, swap_file):
        seen = _read_while(swap, path)
        assert b"refused" in seen
        assert SECRET.encode() not in seen


def _read_while(swap: Callable[[], None], path: Path) -> set[bytes | None]:
    is_over = threading.Event()

    def keep_swapping() -> None:
        while not is_over.is_set():
            swap()

    swapping = threading.Thread(target=keep_swapping)
    swapping.start()
    seen: set[bytes | None] = set()
    try:
        for _ in range(2000):
            try:
                found = disk.read(path)
                seen.add(None if found is None else found.data)
            except ToolFailed:
                seen.add(b"refused")
    finally:
        is_over.set()
        swapping.join()
    return seen


async def test_write_keeps_other_hard_links(root: Path) -> None:
    os.link(root.parent / "secret", root / "twin")
    context = make_context(root)
    await call(ViewTool(), context, path="twin")
    await call(WriteTool(), context, path="twin", content="mine\n")
    assert (root / "twin").read_text() == "mine\n"
    assert (root.parent / "secret").read_text() == SECRET


async def test_write_through_a_symlink_keeps_it(root: Path) -> None:
    (root / "link").symlink_to("src/app.py")
    context = make_context(root)
    await call(ViewTool(), context, path="link")
    prepared = await prepare(WriteTool(), context, path="link", content="new\n")
    assert prepared.intent.subject == "src/app.py"
    await prepared.run()
    assert (root / "link").is_symlink()
    assert (root / "src" / "app.py").read_text() == "new\n"


async def test_dangling_symlink_to_the_outside_is_outside(root: Path) -> None:
    (root / "link").symlink_to(root.parent / "not-there")
    intent = (await prepare(WriteTool(), make_context(root), path="link", content="x")).intent
    assert (intent.subject, intent.exact_only, intent.grant) == (str(root.parent / "not-there"), True, "")


async def test_names_are_compared_by_bytes(root: Path) -> None:
    composed, apart = unicodedata.normalize("NFC", "é.txt"), unicodedata.normalize("NFD", "é.txt")
    (root / composed).write_text("one")
    (root / "Readme.md").write_text("x")
    with pytest.raises(ToolFailed, match="does not exist; similar names there: é.txt"):
        await call(ViewTool(), make_context(root), path=apart)
    with pytest.raises(ToolFailed, match="similar names there: Readme.md"):
        await call(ViewTool(), make_context(root), path="README.md")
    await call(WriteTool(), make_context(root), path=apart, content="two")
    assert (root / composed).read_text() == "one"


async def test_similar_names_outside_need_approval(root: Path) -> None:
    prepared = await prepare(ViewTool(), make_context(root), path="../secre")
    assert "similar names" not in prepared.intent.params + prepared.intent.description
    with pytest.raises(ToolFailed, match="similar names there: secret"):
        await prepared.run()


GUARDED = [".git/hooks/pre-commit", ".git/config", ".GIT/config", "sub/.git/modules/a/config", ".git", ".kedge/x"]
GUARDED += ["kedge.toml", "sub/kedge.toml", ".envrc", ".vscode/tasks.json", ".bashrc", "home/.ssh/authorized_keys"]
GUARDED += [".gitconfig", "x/.config/kedge/config.toml", "etc/kedge/config.toml", ".zshenv", ".husky/pre-commit"]
STEERING = [
    "AGENTS.md",
    "sub/CLAUDE.md",
    ".github/workflows/ci.yml",
    ".venv/bin/activate",
    "crush.json",
    ".zed/tasks.json",
]


@pytest.mark.found(
    "attack 24",
    "`edit(**)` covered the agent's own instructions, CI files, settings of other agents and virtual environments; an "
    "edit of those needs a rule that names the file",
)
@pytest.mark.parametrize("given", [*GUARDED, *STEERING])
async def test_guarded_files_need_an_exact_approval(root: Path, given: str) -> None:
    intent = (await prepare(WriteTool(), make_context(root), path=given, content="x")).intent
    assert (intent.exact_only, intent.grant) == (True, "")
    assert permit(intent, parse_rules(["edit", "write(**)", "edit(**/*)"], []), ()).decision == "ask"
    assert permit(intent, parse_rules([f"write({given})"], []), ()).decision == "allow"


async def test_hooks_are_guarded_through_symlinks_and_other_names(root: Path) -> None:
    context = make_context(root)
    (root / ".git").mkdir()
    (root / "hooks").mkdir()
    (root / ".git" / "hooks").symlink_to("../hooks")
    assert (await prepare(WriteTool(), context, path=".git/hooks/pre-commit", content="x")).intent.exact_only
    (root / "harmless").symlink_to(".git")
    assert (await prepare(WriteTool(), context, path="harmless/config", content="x")).intent.exact_only
    # A repository's directory that a `.git` file of a worktree points to.
    for name in ["objects", "refs"]:
        (root / "store" / name).mkdir(parents=True)
    (root / "store" / "HEAD").write_text("ref: refs/heads/main\n")
    (root / "store" / "worktrees" / "w").mkdir(parents=True)
    for given in ["store/hooks/post-checkout", "store/config", "store/worktrees/w/config.worktree"]:
        assert (await prepare(WriteTool(), context, path=given, content="x")).intent.exact_only
    assert not (await prepare(WriteTool(), context, path="src/config", content="x")).intent.exact_only


async def test_registry_adds_guarded_paths(root: Path) -> None:
    tool = WriteTool(guarded=(root / "data",))
    assert (await prepare(tool, make_context(root), path="data/token", content="x")).intent.exact_only
    assert not (await prepare(tool, make_context(root), path="data2/token", content="x")).intent.exact_only


async def test_read_grant_outside_covers_one_directory(root: Path) -> None:
    context = make_context(root)
    grants = {(await prepare(ViewTool(), context, path=f"../ws-evil/{name}")).intent.grant for name in "ab"}
    assert grants == {f"view({root.parent}/ws-evil/*)"}
    (root.parent / ".ssh").mkdir()
    assert (await prepare(ViewTool(), context, path="../.ssh/id")).intent.grant == ""
    assert (await prepare(ViewTool(), context, path="../a*/b")).intent.grant == ""


@pytest.mark.found(
    "attack: a denied name that is a link",
    "a deny rule for a path that is a link did not hold, since rules were given only what it leads to; a deny rule "
    "holds for either name now, in searches, too",
)
async def test_deny_rule_covers_symlink_and_target(root: Path) -> None:
    (root / "env.local").write_text("KEY=canary\n")
    (root / ".env").symlink_to("env.local")
    (root / "shared").mkdir()
    (root / "shared" / "key").write_text("canary\n")
    (root / "secrets").symlink_to("shared")
    rules = parse_rules(["edit", "view"], ["view(.env)", "view(secrets/**)", "edit(secrets/**)", "view(shared/other)"])
    context = make_context(root)
    for path in (".env", "src/../.env", "secrets/key", str(root / "secrets" / "key"), "secrets/other"):
        (root / "shared" / "other").write_text("")
        assert (
            permit((await prepare(ViewTool(), context, path=path)).intent, rules, (), skip=True).decision == "deny"
        ), path
    writes = (await prepare(WriteTool(), context, path="secrets/new", content="x")).intent
    assert permit(writes, rules, (), skip=True).decision == "deny"
    context = make_context(root, is_hidden=partial(is_hidden, rules))
    assert "canary" not in (await call(GrepTool(), context, pattern="canary", path="secrets")).content
