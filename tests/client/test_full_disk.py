"""A server that starts on a full disk."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.client.process import Home


@pytest.fixture
def disk(in_home: Home) -> Iterator[Path]:
    """A file system of 16 MB for the data directory."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk requires root")
    command = ["mount", "-t", "tmpfs", "-o", "size=16m,mode=0700", "kedge-test", str(in_home.data)]
    if (done := subprocess.run(command, capture_output=True, text=True, check=False)).returncode:
        pytest.skip(f"cannot mount a disk: {done.stderr.strip()}")
    try:
        yield in_home.data
    finally:
        # Lazily: a server may still have files open.
        subprocess.run(["umount", "-l", str(in_home.data)], check=True)


def fill(path: Path) -> None:
    size = 1 << 20
    with path.open("wb", buffering=0) as file:
        while size:
            try:
                file.write(bytes(size))
            except OSError:
                size //= 2


@pytest.mark.found(
    "fault 23",
    "a start on a full disk reported a disk error and advised to check the system log; it reports the full disk",
)
@pytest.mark.parametrize("is_new", [True, False])
def test_start_on_a_full_disk_reports_it(in_home: Home, disk: Path, is_new: bool) -> None:
    if not is_new:
        assert in_home.kedge("run", "hello").code == 0
        assert in_home.kedge("stop").code == 0
    fill(disk / "ballast")
    served = in_home.kedge("serve")
    assert (served.code, served.out) == (1, "")
    assert f"the disk of {disk} is full (0 kB free); free some space" in served.err
    assert served.err.count("\n") == 1
    run = in_home.kedge("run", "hello")
    assert run.code == 4
    assert f"the disk of {disk} is full (0 kB free); free some space" in run.err
    doctor = in_home.kedge("doctor")
    assert (doctor.code, f"FAIL  disk: the disk of {disk} is full (0 kB free)" in doctor.out) == (1, True)
    (disk / "ballast").unlink()
    assert in_home.kedge("run", "hello").out == "You said: hello\n"
    assert in_home.kedge("stop").code == 0
