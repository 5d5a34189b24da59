"""Separate file systems that are small enough to fill."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def mounted(path: Path, options: str) -> Iterator[Path]:
    """Mount a file system in memory with these options at a new directory."""
    path.mkdir()
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk requires root")
    command = ["mount", "-t", "tmpfs", "-o", options, "kedge-test", str(path)]
    if (done := subprocess.run(command, capture_output=True, text=True, check=False)).returncode:
        pytest.skip(f"cannot mount a disk: {done.stderr.strip()}")
    try:
        yield path
    finally:
        # Lazily: a test that fails may have left a file open.
        subprocess.run(["umount", "-l", str(path)], check=True)
