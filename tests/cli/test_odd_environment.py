"""`kedge run` in an environment that lacks what it usually has: it works, or fails with one line."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from proof.figures import proof
from tests.client.process import Home


@pytest.mark.parametrize("name", ["HOME", "TMPDIR", "XDG_RUNTIME_DIR"])
@pytest.mark.parametrize("how", ["missing", "unset"])
def test_run_works_without_a_usual_directory(in_home: Home, name: str, how: str) -> None:
    in_home.env.pop(name, None)
    if how == "missing":
        in_home.env[name] = str(in_home.root / "missing")
    done = in_home.kedge("run", "hello")
    assert (done.code, done.out, done.errors) == (0, "You said: hello\n", "")


def test_data_directory_that_is_a_file_is_a_one_line_error(in_home: Home) -> None:
    in_home.data.rmdir()
    in_home.data.write_text("a file")
    done = in_home.kedge("run", "hello")
    assert done.code != 0
    assert done.out == ""
    assert done.err.count("\n") == 1
    assert done.err.startswith("kedge: ")
    assert str(in_home.data) in done.err


@contextmanager
def read_only_directory(path: Path) -> Iterator[None]:
    """A file system that cannot be written, not even by root."""
    if os.geteuid() != 0:
        pytest.skip("mounting a read-only directory requires root")
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "ro,size=64k", "kedge-test", str(path)]
    if (done := subprocess.run(mount, capture_output=True, text=True, check=False)).returncode:
        pytest.skip(f"cannot mount a directory: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


@pytest.mark.long
@pytest.mark.proof
@pytest.mark.parametrize(
    ("name", "has_own_data", "works"),
    [
        ("HOME", True, True),
        ("TMPDIR", True, True),
        ("KEDGE_DATA_DIR", True, False),
        ("HOME", False, False),
        ("XDG_RUNTIME_DIR", False, True),
    ],
)
def test_run_works_or_fails_with_a_line_on_a_read_only_disk(
    in_home: Home, name: str, has_own_data: bool, works: bool
) -> None:
    path = in_home.root / "read-only"
    if not has_own_data:
        del in_home.env["KEDGE_DATA_DIR"]
        in_home.env |= {"XDG_DATA_HOME": str(in_home.root / "share")} if name != "HOME" else {}
    with proof("G7", "directories that cannot be written", "without a result or a clear error") as figure:
        with read_only_directory(path):
            in_home.env[name] = str(path)
            done = in_home.kedge("run", "hello")
            in_home.kedge("stop", "--force")
        if works:
            # On a busy machine it also reports that it waits for the server.
            assert (done.code, done.out, "Traceback" in done.err) == (0, "You said: hello\n", False)
        else:
            assert (done.code != 0, done.out) == (True, ""), done
            assert done.err.count("\n") == 1
            assert done.err.startswith("kedge: ")
            assert str(path) in done.err
        figure.count = 1
