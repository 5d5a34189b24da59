"""Escapes from the sandbox without a file: terminals, shared memory, keys, limits, renamed sockets."""

from __future__ import annotations

import asyncio
import ctypes
import os
import pty
import resource
import socket
import subprocess
import sys
import tempfile
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kedge.warden.landlock import IOCTL_ABI_MIN
from kedge.warden.warden import Warden
from tests.warden.support import read_all, spec
from tests.warden.test_sandbox_mounts import daemon, worked

LIBC = ctypes.CDLL(None, use_errno=True)
IPC_RMID = 0
#: On x86-64 and on AArch64.
ADD_KEY = 248 if os.uname().machine == "x86_64" else 217
USER_KEYRING = -4


@pytest.fixture
def terminal() -> Iterator[tuple[str, int]]:
    """The terminal of a user who has just typed a line. No session has it yet."""
    controller, terminal = pty.openpty()
    os.write(controller, b"password\n")
    yield os.ttyname(terminal), terminal
    os.close(controller)
    os.close(terminal)


@pytest.mark.found(
    "attack round 2: sandbox",
    "a sandboxed command opened the user's terminal for reading, took typed input and changed settings, and inserted "
    "input into a terminal without a session; five devices can be opened now, and Landlock refuses ioctl on others",
)
async def test_terminals_of_the_user_are_out_of_reach(
    sandboxed: Warden, tmp_path: Path, terminal: tuple[str, int]
) -> None:
    if not sandboxed.sandbox.can_subtract and sandboxed.sandbox.landlock < IOCTL_ABI_MIN:
        pytest.skip("needs a Landlock that holds ioctl")
    path, handle = terminal
    before = termios.tcgetattr(handle)
    opened = f"os.open({path!r}, os.O_RDONLY | os.O_NONBLOCK)"
    session = f"os.setsid() and None or {opened}"
    attempts = {
        "insert": f"[fcntl.ioctl({session}, 0x5412, b'e'), None][1]",
        "size": f"[fcntl.ioctl({opened}, 0x5414, bytes([7] * 8)), None][1]",
        "write": f"[{session}, os.write(os.open('/dev/tty', os.O_RDWR), b'x'), None][2]",
        "settings": f"[(fd := {opened}), fcntl.ioctl(fd, 0x5402, fcntl.ioctl(fd, 0x5401, bytes(64))), None][2]",
    }
    if sandboxed.sandbox.can_subtract:  # reading is not restricted by Landlock
        attempts["input"] = f"[os.read({opened}, 100), None][1]"
    assert await worked(sandboxed, tmp_path, attempts, writable=(str(tmp_path),)) == []
    assert termios.tcgetattr(handle) == before


@pytest.mark.found(
    "attack round 2: sandbox",
    "a sandboxed command wrote to the System V shared memory of other programs and removed it; it has an IPC namespace "
    "of its own now",
)
async def test_shared_memory_of_other_programs_is_out_of_reach(subtracting: Warden, tmp_path: Path) -> None:
    if subtracting.sandbox.bubblewrap:
        pytest.skip("bubblewrap is not asked for it")
    segment = LIBC.shmget(0, 4096, 0o600)
    try:
        attempts = [f"checked(libc.shmctl({segment}, {IPC_RMID}, None))", "checked(libc.shmget(0, 4096, 0o600))"]
        assert await worked(subtracting, tmp_path, attempts, writable=(str(tmp_path),)) == attempts[1:]
    finally:
        assert LIBC.shmctl(segment, IPC_RMID, None) == 0


@pytest.mark.skipif(os.uname().machine not in ("x86_64", "aarch64"), reason="other numbers of system calls")
@pytest.mark.found(
    "attack round 2: sandbox",
    "a sandboxed command added and changed keys in the kernel keyrings of the user; a filter refuses these calls",
)
async def test_keyrings_of_the_user_are_out_of_reach(sandboxed: Warden, tmp_path: Path) -> None:
    if sandboxed.sandbox.bubblewrap:
        pytest.skip("bubblewrap is not given a filter")
    name = f"kedge-test-{os.getpid()}".encode()
    add = f"checked(libc.syscall({ADD_KEY}, b'user', {name!r}, b'x', 1, {USER_KEYRING}))"
    assert await worked(sandboxed, tmp_path, [add], writable=(str(tmp_path),)) == []


@pytest.mark.found(
    "attack round 2: sandbox",
    "without namespaces, a sandboxed command that may send no signals killed a process outside by taking its processor "
    "time away; it cannot change the limits of other processes now",
)
async def test_limits_of_other_processes_cannot_be_changed(sandboxed: Warden, tmp_path: Path) -> None:
    if sandboxed.sandbox.bubblewrap:
        pytest.skip("bubblewrap is not given a filter")
    victim = await asyncio.create_subprocess_exec("sleep", "1000")
    before = resource.prlimit(victim.pid, resource.RLIMIT_NOFILE)
    change = "__import__('resource').prlimit({}, 7, (9, 9)) and None"
    attempts = {"other": change.format(victim.pid), "own": change.format(0)}
    assert await worked(sandboxed, tmp_path, attempts, writable=(str(tmp_path),)) == ["own"]
    assert resource.prlimit(victim.pid, resource.RLIMIT_NOFILE) == before
    victim.kill()
    await victim.wait()


@pytest.mark.found(
    "attack round 2: sandbox",
    "one command renamed the directory of a program's socket in the temporary directory, and the next one found the "
    "socket uncovered under the new name; the directories above a covered socket cannot be renamed now",
)
async def test_a_socket_is_covered_for_the_next_command_too(subtracting: Warden, tmp_path: Path) -> None:
    work, temporary = tmp_path / "work", tmp_path / "tmp"
    (temporary / "a" / "b").mkdir(parents=True)
    work.mkdir()
    limits: dict[str, Any] = {"writable": (str(work), str(temporary))}
    async with daemon(str(temporary / "a" / "b" / "s")):
        moves = [f"os.rename({str(temporary / 'a')!r}, {str(temporary / 'c')!r})"]
        moves += [f"os.rename({str(temporary / 'a/b')!r}, {str(temporary / 'd')!r})"]
        await worked(subtracting, work, moves, **limits)
        attempts = [f"unix({str(temporary / name)!r})" for name in ("a/b/s", "c/b/s", "d/s")]
        assert await worked(subtracting, work, attempts, **limits) == []
        assert await worked(subtracting, work, [f"write({str(temporary / 'a/b/new')!r})"], **limits) != []


@pytest.mark.found(
    "attack round 2: sandbox",
    "the name of a socket that was removed, or a name with a line break in it, hid any file from later commands of "
    "other workspaces; only sockets are covered now",
)
async def test_only_sockets_are_covered(subtracting: Warden) -> None:
    with (
        tempfile.TemporaryDirectory() as name,  # short: the name of a socket has at most 107 bytes
        socket.socket(socket.AF_UNIX) as removed,
        socket.socket(socket.AF_UNIX) as forged,
    ):
        removed.bind(f"{name}/a")
        removed.listen()
        os.unlink(f"{name}/a")
        forged.bind(f"\0\n0: 2 0 00010000 0001 01 1 {name}/b")  # as a line of /proc/net/unix
        forged.listen()
        for file in ("a", "b"):
            Path(name, file).write_text("hello")
        attempts = [f"open('{name}/{file}').read()" for file in ("a", "b")]
        assert await worked(subtracting, Path(name), attempts, writable=(name,)) == attempts


@pytest.mark.found(
    "attack round 2: sandbox",
    "the trial of the sandbox ran `true` from PATH, which may lead into a workspace; it runs /bin/sh now",
)
def test_the_trial_of_the_sandbox_runs_nothing_from_path() -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:  # /tmp is hidden in the trial
        _check_trial(Path(name))


def _check_trial(directory: Path) -> None:
    for program in ("true", "sh", "bwrap"):
        (directory / program).write_text(f"#!/bin/sh\necho ran >>{directory}/ran\n")
        (directory / program).chmod(0o755)
    script = "import asyncio\nfrom kedge.warden.warden import Warden\nw = Warden()\n"
    script += (
        "async def main():\n await w.start()\n print(w.sandbox.is_available)\n await w.close()\nasyncio.run(main())"
    )
    environment = {"PATH": f"{directory}:/usr/bin:/bin", "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False, cwd="/"
    )
    assert (done.stdout.strip() in ("True", "False"), (directory / "ran").exists()) == (True, False), done.stderr


async def test_programs_still_find_what_they_expect(sandboxed: Warden, tmp_path: Path) -> None:
    script = "echo x >/dev/null && head -c1 /dev/urandom >/dev/zero && cat </dev/null && ulimit -n 20 && ulimit -n"
    process = await sandboxed.run(
        spec("sh", "-c", script, cwd=str(tmp_path), writable=(str(tmp_path),), env={"PATH": "/usr/bin:/bin"})
    )
    assert await read_all(process) == b"20\n"
    await process.end(0)
