"""The sandbox by bubblewrap, for machines without Landlock and mounts of our own: a command in front of the command."""

from __future__ import annotations

import os
import shutil

from kedge.warden import mounts
from kedge.warden.base import ProcessSpec

PROGRAM = "bwrap"
#: Where it may be, in this order. Not PATH: an entry that leads into a workspace would replace the sandbox.
_DIRECTORIES = ("/usr/bin", "/bin", "/usr/local/bin", "/run/current-system/sw/bin")

#: Root keeps what `capabilities` keeps.
_CAPABILITIES = (
    *("CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_SETGID", "CAP_SETUID"),
    *("CAP_NET_BIND_SERVICE", "CAP_NET_RAW", "CAP_SYS_CHROOT"),
)


def wrapped(spec: ProcessSpec) -> tuple[str, ...]:
    """The command of `spec` with the whole file system read-only but for `writable`. Unlike `mounts` it goes by the
    path: links are followed, and root can change the modes of the devices. A path that does not exist is left out."""
    writable = spec.writable or ()
    steps: list[tuple[str, int, tuple[str, ...]]] = [(path, 0, ("--bind-try", path, path)) for path in writable]
    sockets = mounts.sockets((*mounts.HARMLESS, *spec.reachable, *spec.hidden))
    pinned = mounts.ancestors((*spec.protected, *spec.hidden, *sockets), writable)
    steps += [(path, 1, ("--bind-try", path, path)) for path in pinned]
    steps += [(path, 2, ("--ro-bind-try", path, path)) for path in spec.protected]
    steps += [(path, 3, _cover(path)) for path in spec.hidden]
    # From the root downwards: what is mounted later must not be covered by it.
    steps.sort(key=lambda step: (mounts.depth(step[0]), step[1], step[0]))
    steps += [(path, 4, _cover(path)) for path in sockets]
    steps += [(path, 5, ("--remount-ro", path)) for path in filter(os.path.isdir, spec.hidden)]
    kept = [word for name in _CAPABILITIES for word in ("--cap-add", name)] if os.geteuid() == 0 else []
    head = ("--ro-bind", "/", "/", "--dev", "/dev", "--cap-drop", "ALL", *kept)
    return (_program(), *head, *(word for _, _, words in steps for word in words), "--", *spec.argv)


def _program() -> str:
    return shutil.which(PROGRAM, path=os.pathsep.join(_DIRECTORIES)) or f"{_DIRECTORIES[0]}/{PROGRAM}"


def _cover(path: str) -> tuple[str, ...]:
    if os.path.isdir(path):
        return ("--tmpfs", path)
    return ("--ro-bind", "/dev/null", path) if os.path.exists(path) else ()
