"""Between fork and exec: how a process of a tool begins. Loaded by the keeper: standard library only."""

from __future__ import annotations

import os
import resource
import signal
from contextlib import suppress
from typing import NoReturn

from kedge.warden import capabilities, landlock, libc, mounts, seccomp
from kedge.warden.keeper_protocol import KeeperMessage


def exec_tool(order: KeeperMessage, streams: list[int], report: int, outside: int) -> NoReturn:
    """Executes what `order` says. `report` gets the pid as the server sees it, then the error if there is one; it is
    closed by a successful exec. `outside` is the /proc of the server."""
    try:
        os.write(report, os.readlink("self", dir_fd=outside).encode() + b"\n")
        _exec_tool(order, streams)
    except BaseException as error:
        os.write(report, _describe(error, order).encode(errors="replace"))
    finally:
        os._exit(127)


def _exec_tool(order: KeeperMessage, streams: list[int]) -> None:
    os.setsid()
    _attach(order, streams)
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _mount(order)
    _enter(order["cwd"])
    if order["writable"] is not None:
        _restrict(order)
    os.execvpe(order["argv"][0], order["argv"], order["env"])


class SandboxFailed(Exception):
    """A layer of the sandbox that this machine has could not be set up: the program is not started."""


def _mount(order: KeeperMessage) -> None:
    """Set up the mounts of the tree, before a directory is entered: one entered earlier lies below them."""
    if not order["mounts"]:
        return
    try:
        if order["writable"] is None:
            mounts.hide(order["hidden"])
            return
        with suppress(OSError):  # a kernel that was built without it
            # System V shared memory and POSIX message queues of other programs: no mount and no Landlock rule holds
            # them.
            libc.unshare(libc.CLONE_NEWIPC)
        mounts.isolate(order["writable"], order["protected"], order["hidden"], order["reachable"])
        if not order["stdin"]:
            # The one from the keeper lies on a mount from outside, where its mode could be changed.
            null = os.open("/dev/null", os.O_RDONLY)
            os.dup2(null, 0)
            os.close(null)
    except OSError as error:
        raise SandboxFailed(error.strerror or str(error)) from None


def _restrict(order: KeeperMessage) -> None:
    try:
        if order["landlock"]:
            landlock.restrict(order["writable"])
        libc.prctl(libc.PR_SET_NO_NEW_PRIVS, 1)
        capabilities.drop(must=order["mounts"])
        seccomp.refuse(limits=not order["mounts"])
    except OSError as error:
        raise SandboxFailed(error.strerror) from None


def _enter(directory: str) -> None:
    """Part by part, and through no link: it was judged without any in it, and one that is there now leads elsewhere."""
    try:
        os.chdir("/")
        for part in filter(None, directory.split("/")):
            there = os.open(part, _TRAVERSE)
            os.fchdir(there)
            os.close(there)
    except OSError as error:
        raise OSError(error.errno, error.strerror, directory) from None


#: To pass through a directory needs no right to list it. (O_PATH is Linux's.)
_TRAVERSE = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def _attach(order: KeeperMessage, streams: list[int]) -> None:
    """Every other descriptor is closed by exec. Standard input is /dev/null unless one was given, as in the keeper."""
    remaining = list(streams)
    if order["stdin"]:
        os.dup2(remaining.pop(0), 0)
    os.dup2(remaining[0], 1)
    os.dup2(remaining[-1], 2)


def _describe(error: BaseException, order: KeeperMessage) -> str:
    program = order["argv"][0]
    if isinstance(error, SandboxFailed):
        return f"the sandbox cannot be set up: {error}"
    if isinstance(error, OSError) and error.filename == order["cwd"]:
        return f"the directory {order['cwd']} cannot be entered: {error.strerror}"
    if isinstance(error, FileNotFoundError):
        return f"{program}: not found"
    if isinstance(error, OSError):
        return f"{program}: {error.strerror}"
    return f"{program}: {error}"
