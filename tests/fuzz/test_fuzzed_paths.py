"""Fuzzed paths: a path that counts as inside the workspace is inside, as resolved by the kernel."""

from __future__ import annotations

import os
import random
import unicodedata
from dataclasses import dataclass
from pathlib import Path

import pytest

from kedge.tools import disk
from kedge.tools.tool_failed import ToolFailed
from kedge.tools.workspace_paths import GUARDED_DIRECTORIES, Target, resolve
from proof.figures import IS_LONG, proof
from tests.fuzz.seeds import IS_REPLAY, name_of, parts, replay

#: Paths per seed.
EACH = 100
SECRET = b"outside\n"
NAMES = (
    "src", "src", "src/app.py", "a", "b", "deep/er/est", "file", "new", "new/er", ".git", ".git/config", "ws",
    "ws-evil",
    "secret", "up", "out", "out-file", "chain", "loop", "here", "self", "abs", "proc", "dangling", "dangling-in",
    "é", "e\u0301",
    "SRC", "Src", "ſrc", "ﬁle", "fi\u200dle", "sr\u0441", ".GIT", ".ɢit", "hard", "pipe", "fd", "long" * 70,
    "twin.", "twin ",
)  # fmt: skip
GLUE = ("/", "/", "/", "/", "//", "/./", "/../", "/../../", "/./../", "/.//")
STARTS: tuple[str, ...] = (
    "",
    "",
    "",
    "",
    "./",
    "../",
    "../ws/",
    "../ws-evil/",
    "ROOT/",
    "ROOT-evil/",
    "ROOT/../",
    "//ROOT/",
    "/",
    "~/",
)
STARTS += (
    "/proc/self/cwd/",
    "/proc/self/root/",
    "/proc/self/root/ROOT/",
    "/proc/thread-self/fd/",
    "/dev/fd/",
    "/tmp/../",
)
ENDS = ("", "", "", "", "/", "/.", "/..", "//", "\0", "\0/../secret", "\n", " ", "\ud800", "/" + "x" * 256, "/y" * 2500)


@dataclass(frozen=True)
class Tree:
    root: Path


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    """A workspace full of links, with a sibling directory whose name has the same prefix."""
    top = tmp_path_factory.mktemp("paths").resolve()
    root, evil = top / "ws", top / "ws-evil"
    for directory in (root / "src", root / "deep/er/est", root / ".git", evil / "src", root / "é", root / "twin."):
        directory.mkdir(parents=True)
    for file in (root / "src/app.py", root / "file", root / ".git/config", root / "a", root / "deep/er/file"):
        file.write_bytes(b"inside\n")
    for file in (top / "secret", evil / "secret", evil / "src/app.py", evil / "file"):
        file.write_bytes(SECRET)
    os.mkfifo(root / "pipe")
    os.link(root / "file", root / "hard")
    links = {
        "up": "..",
        "out": "../ws-evil",
        "out-file": "../secret",
        "chain": "up/ws-evil",
        "loop": "loop",
        "here": ".",
    }
    links |= {"self": "../ws", "abs": str(root / "src"), "proc": "/proc/self", "fd": "/proc/self/fd", "b": "deep/er"}
    links |= {
        "dangling": "../not-there",
        "dangling-in": "src/not-there",
        "deep/b": "../../out",
        "src/up": "../..",
        "SRC": "src",
    }
    for name, target in links.items():
        (root / name).symlink_to(target)
    return Tree(root)


def random_path(rng: random.Random, root: Path) -> str:
    path = rng.choice(STARTS)
    for number in range(rng.choice((1, 1, 2, 3, 4, 6))):
        path += (rng.choice(GLUE) if number else "") + rng.choice(NAMES)
    return (path + rng.choice(ENDS)).replace(
        "ROOT", str(root).removeprefix("/") if path.startswith("//") else str(root)
    )


def real_path(path: str, root: Path) -> str | None:
    """The real path as resolved by the kernel, or None if nothing is there."""
    try:
        descriptor = os.open(root / path, os.O_PATH)
    except (OSError, ValueError):
        return None
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


def is_within(real: str, root: Path) -> bool:
    return real == str(root) or real.startswith(f"{root}/")


def failure_of(path: str, target: Target, root: Path) -> str:
    """Return the failure, or an empty string."""
    real = real_path(path, root)
    if real is not None and str(target.path) != real:
        return f"leads to {real}, resolved as {target.path}"
    if target.is_inside != is_within(str(target.path), root):
        return f"{target.path} inside: {target.is_inside}"
    if target.is_inside and (target.subject.startswith("/") or ".." in target.subject.split("/")):
        return f"is called {target.subject}"
    # No component is a link any more, so the path is its own real path, whether it exists or not.
    if (resolved := real_path(str(target.path), Path("/"))) is not None and resolved != str(target.path):
        return f"{target.path} leads on to {resolved}"
    folded = {unicodedata.normalize("NFC", part).casefold() for part in target.path.parts}
    if folded & GUARDED_DIRECTORIES and not target.is_guarded:
        return f"{target.path} guards the machine"
    return _read(target)


def _read(target: Target) -> str:
    """Check that a file inside does not have the content of one outside."""
    if not target.is_inside:
        return ""
    try:
        content = disk.read(target.path)
    except ToolFailed:
        return ""
    return "outside was read" if content is not None and content.data == SECRET else ""


@pytest.mark.proof
@pytest.mark.timeout(1800 if IS_LONG else 120)
@pytest.mark.parametrize("seeds", parts(50, 10_000, 1_000), ids=name_of)
def test_random_paths_stay_in_the_workspace(tree: Tree, seeds: range) -> None:
    inside = outside = refused = 0
    with proof("G14", "fuzzed paths", "bypasses") as figure:
        for seed in seeds:
            rng = random.Random(seed)
            for path in [random_path(rng, tree.root) for _ in range(EACH)]:
                try:
                    target = resolve(path, tree.root)
                except ToolFailed:
                    refused += 1
                    continue
                except Exception as error:
                    error.add_note(f"{path!r}: {replay('test_fuzzed_paths.py', seed)}")
                    raise
                assert failure_of(path, target, tree.root) == "", f"{path!r}: {replay('test_fuzzed_paths.py', seed)}"
                inside += target.is_inside
                outside += not target.is_inside
        figure.count = len(seeds) * EACH
        figure.notes = {"inside": inside, "outside": outside, "refused": refused}
        assert IS_REPLAY or min(inside, outside, refused) > figure.count // 50


@pytest.mark.found(
    "seed 1009 of the fuzzed paths",
    "a path through a symlink loop, then up and into a link to the outside, was resolved as inside; only opening "
    "without following links prevented an escape; such a path is now refused",
)
@pytest.mark.parametrize(
    "path", ["loop/x/../../up", "loop/../out-file", "new/../loop/é/../../out", "here/loop/a/../../out"]
)
def test_path_after_symlink_loop_is_refused(tree: Tree, path: str) -> None:
    with pytest.raises(ToolFailed, match="a symlink loop"):
        resolve(path, tree.root)
