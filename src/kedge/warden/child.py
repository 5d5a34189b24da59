"""The setup of a tool's process between fork and exec. Loaded by the keeper: standard library only."""

from __future__ import annotations

import os
import resource
import signal
from contextlib import suppress
from typing import NoReturn

from kedge.warden import capabilities, landlock, libc, mounts, network, seccomp
from kedge.warden.keeper_protocol import KeeperMessage


def exec_tool(order: KeeperMessage, streams: list[int], report: int, outside: int) -> NoReturn:
    """Execute the program of `order`. Writes to `report` the pid in the server's pid namespace, then any error; a
    successful exec closes it. `outside` is the /proc of the server."""
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
    for kind, limit in ((resource.RLIMIT_DATA, order["data_bytes_max"]), (resource.RLIMIT_CPU, order["cpu_s_max"])):
        _, hard = resource.getrlimit(kind)
        if limit and (hard == resource.RLIM_INFINITY or limit < hard):
            resource.setrlimit(kind, (limit, limit))
    _mount(order)
    _enter(order["cwd"])
    if order["writable"] is not None:
        _restrict(order)
    os.execvpe(order["argv"][0], order["argv"], order["env"])


class SandboxFailed(Exception):
    """An available sandbox layer could not be set up. The program is not started."""


def _mount(order: KeeperMessage) -> None:
    """Set up the mounts of the tree. Called before chdir: a directory entered earlier would be below the mounts."""
    if not order["mounts"]:
        return
    try:
        if order["writable"] is None:
            mounts.hide(order["hidden"])
            return
        with suppress(OSError):  # a kernel that was built without it
            # System V shared memory and POSIX message queues of other programs: neither mounts nor Landlock restrict
            # them.
            libc.unshare(libc.CLONE_NEWIPC)
        paths = (order["writable"], order["protected"], order["hidden"], order["reachable"], order["scratch"])
        mounts.isolate(*paths, network=order["network"] is None)
        if not order["stdin"]:
            # The keeper's /dev/null is on an outside mount, where its mode could be changed.
            null = os.open("/dev/null", os.O_RDONLY)
            os.dup2(null, 0)
            os.close(null)
    except OSError as error:
        raise SandboxFailed(error.strerror or str(error)) from None


def _restrict(order: KeeperMessage) -> None:
    families = None
    try:
        if order["network"] is not None:
            namespace = order["network"] == "namespace"
            is_scoped = namespace or (order["landlock"] and landlock.abi() >= landlock.SCOPES_ABI_MIN)
            families = network.families(namespace=namespace, unix=order["mounts"] and is_scoped)
            if namespace:
                network.unshare()
        if order["landlock"]:
            scratch = [order["scratch"]] if order["scratch"] and order["mounts"] else []
            landlock.restrict([*order["writable"], *scratch])
        libc.prctl(libc.PR_SET_NO_NEW_PRIVS, 1)
        capabilities.drop(must=order["mounts"])
        seccomp.refuse(limits=not order["mounts"], families=families)
        if families is not None:
            network.check(families)
    except OSError as error:
        raise SandboxFailed(error.strerror or str(error)) from None


def _enter(directory: str) -> None:
    """Change the directory component by component, without following links: the path was checked without any."""
    try:
        os.chdir("/")
        for part in filter(None, directory.split("/")):
            directory_fd = os.open(part, _TRAVERSE)
            os.fchdir(directory_fd)
            os.close(directory_fd)
    except OSError as error:
        raise OSError(error.errno, error.strerror, directory) from None


#: O_PATH, since traversing a directory needs no permission to list it. (Linux only.)
_TRAVERSE = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def _attach(order: KeeperMessage, streams: list[int]) -> None:
    """Connect standard input, output and error. Without `stdin` it stays /dev/null, as in the keeper; without `stderr`
    errors go to the output. exec closes all other descriptors."""
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
