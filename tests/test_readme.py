"""The documents are correct: commands and programs in the README are run, and named files exist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


@pytest.fixture
def home() -> Iterator[dict[str, str]]:
    """An empty home. The server that the first command starts exits soon after the last one."""
    # A short path: the path of a socket below it is limited to about 100 bytes.
    with tempfile.TemporaryDirectory(prefix="kedge-", ignore_cleanup_errors=True) as name:
        config = Path(name) / ".config" / "kedge" / "config.toml"
        config.parent.mkdir(parents=True)
        config.write_text("[server]\nidle_exit_s = 0.5\ngrace_s = 0.2\n")
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(("KEDGE_", "XDG_"))}
        yield {**inherited, "HOME": name, "XDG_RUNTIME_DIR": name}


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


@pytest.mark.timeout(180)
def test_first_command_answers(home: dict[str, str]) -> None:
    command = next(block for block in blocks("sh") if "scripts/kedge run" in block).strip()
    done = subprocess.run(
        ["sh", "-c", command], cwd=ROOT, env=home, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stderr
    assert "pyproject.toml" in done.stdout


@pytest.mark.timeout(180)
def test_other_commands_work(home: dict[str, str]) -> None:
    lines = next(block for block in blocks("sh") if "scripts/kedge runs" in block).splitlines()
    commands = [line.partition("#") for line in lines if "SESSION" not in line]
    assert len(commands) >= 5
    for command, _, remark in commands:
        done = subprocess.run(["sh", "-c", command], cwd=ROOT, env=home, capture_output=True, text=True, check=False)
        # Exit code 3: an approval is needed, and there is no terminal to ask on.
        expected = (0, 3) if "approval" in remark else (0,)
        assert done.returncode in expected, f"{command}: {done.stderr}"


def test_program_runs(home: dict[str, str]) -> None:
    (program,) = blocks("python")
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=home, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("completed\n")


def documents() -> list[Path]:
    return [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("*/README.md")]


def test_linked_files_exist() -> None:
    for document in documents():
        for target in re.findall(r"\]\((?!http)([^)#]+)\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name} links to {target}"


def test_named_source_files_exist() -> None:
    """A path in backticks is relative to the root or to src/kedge."""
    missing = [
        f"{document.name}: {name}"
        for document in documents()
        if document.name != "CHANGELOG.md"
        for name in re.findall(r"`(\w[\w/]*/[\w./]*\w\.(?:py|md|json|lock))`", document.read_text())
        if not (ROOT / name).exists() and not (ROOT / "src/kedge" / name).exists()
    ]
    assert missing == []


RECIPE = re.compile(r"### Add (.+)\n\nExample: `([^`]+)`(, at least)?\n\n((?:- .*\n(?:  .*\n)*)+)")
RECIPES = RECIPE.findall((ROOT / "CONTRIBUTING.md").read_text())


@pytest.mark.parametrize(("what", "example", "at_least", "items"), RECIPES, ids=[recipe[0] for recipe in RECIPES])
def test_recipe_lists_the_files_of_its_example(what: str, example: str, at_least: str, items: str) -> None:
    source = ROOT / "src" / "kedge"
    pattern = re.compile(rf"(?<!\w){re.escape(example)}(?!\w)")
    mention = {
        str(path.relative_to(source))
        for path in source.rglob("*.py")
        if path.stem == example or pattern.search(path.read_text())
    }
    listed = set(re.findall(r"^- `([^`]+)`", items, re.MULTILINE))
    assert listed <= mention if at_least else listed == mention, f"Add {what}: {sorted(mention)}"


def test_there_are_recipes() -> None:
    assert len(RECIPES) == 7
