"""Processes without a network. Loaded by the keeper: standard library only.

A network namespace of its own leaves a process tree with a loopback device that no other tree shares, and without the
abstract Unix sockets of others. Where there are no namespaces, `seccomp` refuses to create sockets. It also refuses the
families that namespaces do not separate: a virtual machine reaches its host by AF_VSOCK.
"""

from __future__ import annotations

import fcntl
import socket
import struct
from contextlib import suppress

from kedge.warden import libc

_UNIX, _INET, _INET6, _NETLINK, _VSOCK = 1, 2, 10, 16, 40

_SIOCGIFFLAGS, _SIOCSIFFLAGS = 0x8913, 0x8914
_IFF_UP = 1
#: `struct ifreq`: the name of the device, its flags, and the rest of a union.
_INTERFACE = "16sH22x"


def unshare() -> None:
    """Enter a network namespace that has only a loopback device."""
    libc.unshare(libc.CLONE_NEWNET)
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        # Tests and builds use servers of their own at localhost.
        request = fcntl.ioctl(control, _SIOCGIFFLAGS, struct.pack(_INTERFACE, b"lo", 0))
        flags = struct.unpack(_INTERFACE, request)[1] | _IFF_UP
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack(_INTERFACE, b"lo", flags))


def families(*, namespace: bool, unix: bool) -> frozenset[int]:
    """Return the families of sockets that a process without a network may create. `unix`: the Unix sockets of other
    programs are out of reach."""
    return frozenset({_INET, _INET6, _NETLINK} if namespace else ()) | ({_UNIX} if unix else set())


def check(allowed: frozenset[int]) -> None:
    """Raise OSError if this process can still create another socket, as on an architecture that `seccomp` lacks."""
    for family in {_UNIX, _INET, _VSOCK} - allowed:
        try:
            socket.socket(family, socket.SOCK_STREAM).close()
        except OSError:
            continue
        raise OSError("the network cannot be taken away")
