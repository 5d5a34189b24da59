"""The README tells the truth: its commands and its program are run as they stand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


@pytest.fixture
def home(tmp_path: Path) -> Iterator[dict[str, str]]:
    """An empty home; the server that the first command starts leaves soon after the last one."""
    (tmp_path / ".config" / "kedge").mkdir(parents=True)
    (tmp_path / ".config" / "kedge" / "config.toml").write_text("[server]\nidle_exit_s = 0.5\ngrace_s = 0.2\n")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("KEDGE_", "XDG_"))}
    yield {**kept, "HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)}


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


@pytest.mark.timeout(180)
def test_the_first_command_of_the_readme_answers(home: dict[str, str]) -> None:
    command = next(block for block in blocks("sh") if "scripts/kedge run" in block).strip()
    done = subprocess.run(
        ["sh", "-c", command], cwd=ROOT, env=home, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stderr
    assert "pyproject.toml" in done.stdout


@pytest.mark.timeout(180)
def test_the_other_commands_of_the_readme_work(home: dict[str, str]) -> None:
    lines = next(block for block in blocks("sh") if "scripts/kedge runs" in block).splitlines()
    commands = [line.partition("#")[0].strip() for line in lines if "SESSION" not in line]
    assert len(commands) >= 5
    for command in commands:
        done = subprocess.run(["sh", "-c", command], cwd=ROOT, env=home, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{command}: {done.stderr}"


def test_the_program_of_the_readme_runs(home: dict[str, str]) -> None:
    (program,) = blocks("python")
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=home, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("completed\n")


def test_every_file_the_documents_name_is_there() -> None:
    for document in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\((?!http)([^)#]+)\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name} names {target}"
