"""A test that hangs says where, in whatever process it runs."""

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
    await asyncio.create_task(waits_in_vain(), name="the one that hangs")
"""


@pytest.mark.parametrize("workers", ["0", "1"])
def test_a_test_that_hangs_says_where_and_fails(tmp_path: Path, workers: str) -> None:
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
    assert "test_hangs is not over after 2 s" in done.stderr
    assert "--- task the one that hangs\n    test_hangs.<locals>.waits_in_vain" in done.stderr
