"""The process at the other end of a socket: the user's own, or a tool that an agent has started."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kedge.server.peer import is_descendant, is_of_another_user


def test_a_child_is_a_descendant_whatever_its_name(tmp_path: Path) -> None:
    """The kernel cuts a name after 15 bytes, in the middle of a letter."""
    program = tmp_path / ("я" * 10)
    shutil.copy("/bin/sleep", program)
    with subprocess.Popen([program, "1000"]) as process:
        try:
            assert is_descendant(process.pid)
        finally:
            process.kill()
    assert not is_descendant(os.getppid())
    assert is_descendant(process.pid), "a process that has exited may have been a tool"


def test_a_hidden_process_counts_unless_of_another_user() -> None:
    assert not is_of_another_user(os.getpid())
    assert not is_of_another_user(2**22 + 1)
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        if os.getuid() == 0:
            os.setuid(65534)
        other = parent if os.getuid() == 65534 else 1
        os._exit(0 if is_of_another_user(other) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.found(
    "attacks on the fix of attack 10",
    "a server that is the first process of a container accepted the requests of its own tools: its pid, 1, was never "
    "compared",
)
def test_a_tool_of_a_server_with_pid_1_is_a_descendant() -> None:
    program = """
import os, subprocess
from kedge.server.peer import is_descendant
assert os.getpid() == 1
with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
    assert is_descendant(process.pid)
"""
    alone = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]
    if not shutil.which("unshare") or subprocess.run([*alone, "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs a pid namespace")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run([*alone, sys.executable, "-c", program], env=environment, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
