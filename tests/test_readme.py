"""The README tells the truth: its commands and its program are run as they stand."""

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
    """An empty home; the server that the first command starts leaves soon after the last one."""
    # A short path: it will hold a socket, and a socket's path has about 100 bytes.
    with tempfile.TemporaryDirectory(prefix="kedge-", ignore_cleanup_errors=True) as name:
        config = Path(name) / ".config" / "kedge" / "config.toml"
        config.parent.mkdir(parents=True)
        config.write_text("[server]\nidle_exit_s = 0.5\ngrace_s = 0.2\n")
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("KEDGE_", "XDG_"))}
        yield {**kept, "HOME": name, "XDG_RUNTIME_DIR": name}


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
    commands = [line.partition("#") for line in lines if "SESSION" not in line]
    assert len(commands) >= 5
    for command, _, remark in commands:
        done = subprocess.run(["sh", "-c", command], cwd=ROOT, env=home, capture_output=True, text=True, check=False)
        # Here nobody can be asked: where an approval is needed, that is the exit code.
        expected = (0, 3) if "ask" in remark else (0,)
        assert done.returncode in expected, f"{command}: {done.stderr}"


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


def test_the_session_of_the_readme_is_the_one_that_is_played() -> None:
    (played,) = re.findall(r"```\n(.*?)```", (ROOT / "docs" / "session.md").read_text(), re.DOTALL)
    assert played in README
