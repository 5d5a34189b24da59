"""Who is at the other end of a socket: the user, or a tool that an agent has started."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kedge.server.protocol import _is_of_another_user, _is_ours


def test_a_process_below_us_is_ours_whatever_it_is_called(tmp_path: Path) -> None:
    """The kernel cuts a name after 15 bytes, in the middle of a letter."""
    named = tmp_path / ("я" * 10)
    shutil.copy("/bin/sleep", named)
    with subprocess.Popen([named, "1000"]) as process:
        try:
            assert _is_ours(process.pid)
        finally:
            process.kill()
    assert not _is_ours(os.getppid())
    assert _is_ours(process.pid), "one that is gone by now may have been a tool"


def test_one_that_the_system_does_not_show_is_ours_unless_it_is_another_users() -> None:
    assert not _is_of_another_user(os.getpid())
    assert not _is_of_another_user(2**22 + 1)
    me = os.getpid()
    child = os.fork()
    if child == 0:
        if os.getuid() == 0:
            os.setuid(65534)
        other = me if os.getuid() == 65534 else 1
        os._exit(0 if _is_of_another_user(other) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.found(
    "attacks on the fix of attack 10",
    "a server that is the first process of a container took the requests of its own tools; its pid, 1, was never "
    "compared",
)
def test_a_tool_of_a_server_with_pid_1_is_ours() -> None:
    program = """
import os, subprocess
from kedge.server.protocol import _is_ours
assert os.getpid() == 1
with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
    assert _is_ours(process.pid)
"""
    alone = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]
    if not shutil.which("unshare") or subprocess.run([*alone, "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs a pid namespace")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run([*alone, sys.executable, "-c", program], env=environment, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
