"""A hanging test prints where it hangs, in any process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HANGS = """
import asyncio
import pytest

@pytest.mark.timeout(2)
async def test_hangs():
    async def waits_in_vain():
        await asyncio.Event().wait()
    await asyncio.create_task(waits_in_vain(), name="hanging task")
"""


@pytest.mark.parametrize("workers", ["0", "1"])
def test_a_hanging_test_prints_where_and_fails(tmp_path: Path, workers: str) -> None:
    (tmp_path / "test_one.py").write_text(HANGS)
    options = ("-c", str(ROOT / "pyproject.toml"), "--confcutdir", str(tmp_path), "-p", "conftest", "-n", workers)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(tmp_path / "test_one.py")],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stdout
    assert "test_hangs timed out after 2 s" in done.stderr
    assert "--- task hanging task\n    test_hangs.<locals>.waits_in_vain" in done.stderr
