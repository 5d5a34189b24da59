"""The bubblewrap sandbox, for machines without Landlock and mount namespaces: a wrapper command."""

from __future__ import annotations

import os
import shutil

from kedge.warden import mounts
from kedge.warden.base import ProcessSpec

PROGRAM = "bwrap"
#: Search path. Not PATH: an entry inside a workspace could replace the sandbox.
_DIRECTORIES = ("/usr/bin", "/bin", "/usr/local/bin", "/run/current-system/sw/bin")

#: The names of `capabilities.KEPT`.
_CAPABILITIES = (
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_SETGID",
    "CAP_SETUID",
    "CAP_NET_BIND_SERVICE",
    "CAP_NET_RAW",
    "CAP_SYS_CHROOT",
)


def wrapped(spec: ProcessSpec) -> tuple[str, ...]:
    """Wrap the command of `spec`: the file system is read-only except for `writable`. Unlike `mounts` it works by path:
    links are followed, and root can change the modes of devices. Paths that do not exist are skipped."""
    writable = spec.writable or ()
    steps: list[tuple[str, int, tuple[str, ...]]] = [(path, 0, ("--bind-try", path, path)) for path in writable]
    harmless = mounts.HARMLESS if spec.network else ()
    sockets = mounts.sockets((*harmless, *spec.reachable, *spec.hidden))
    pinned = mounts.ancestors((*spec.protected, *spec.hidden, *sockets), writable)
    steps += [(path, 1, ("--bind-try", path, path)) for path in pinned]
    steps += [(path, 2, ("--ro-bind-try", path, path)) for path in spec.protected]
    steps += [(path, 3, _cover(path)) for path in spec.hidden]
    # From the root downwards: a later mount must not cover an earlier one.
    steps.sort(key=lambda step: (mounts.depth(step[0]), step[1], step[0]))
    steps += [(path, 4, _cover(path)) for path in sockets]
    steps += [(path, 5, ("--remount-ro", path)) for path in filter(os.path.isdir, spec.hidden)]
    # Without a network there are no raw sockets either, although they would reach only the loopback device.
    capabilities = (
        [name for name in _CAPABILITIES if spec.network or name != "CAP_NET_RAW"] if os.geteuid() == 0 else []
    )
    added = [word for name in capabilities for word in ("--cap-add", name)]
    head = ("--ro-bind", "/", "/", "--dev", "/dev", "--cap-drop", "ALL", *added)
    if spec.scratch:
        steps.append((spec.scratch, 6, ("--tmpfs", spec.scratch)))
    network = () if spec.network else ("--unshare-net",)
    return (_program(), *head, *network, *(word for _, _, words in steps for word in words), "--", *spec.argv)


def _program() -> str:
    return shutil.which(PROGRAM, path=os.pathsep.join(_DIRECTORIES)) or f"{_DIRECTORIES[0]}/{PROGRAM}"


def _cover(path: str) -> tuple[str, ...]:
    if os.path.isdir(path):
        return ("--tmpfs", path)
    return ("--ro-bind", "/dev/null", path) if os.path.exists(path) else ()
