"""System calls that the sandbox refuses: neither mounts nor Landlock restrict what they change outside.

Loaded by the keeper: standard library only.
"""

from __future__ import annotations

import ctypes
import errno
import struct
import sys
from contextlib import suppress

from kedge.warden import libc

#: For each architecture, by its number in the kernel's audit system: the first of add_key, request_key and keyctl,
#: which follow each other, prlimit64, and socket. A 64-bit kernel also runs programs of its 32-bit relative.
_NUMBERS = {
    0xC000003E: (248, 302, 41),  # x86-64
    0x40000003: (286, 340, 359),  # i386
    0xC00000B7: (217, 261, 198),  # AArch64
    0x40000028: (309, 369, 281),  # ARM
    0xC00000F3: (217, 261, 198),  # RISC-V
}
#: i386 has a second call for sockets. Its first argument is what to do, its second a pointer, which no filter follows.
_SOCKETCALL = {0x40000003: 102}
_SYS_SOCKET = 1
#: io_uring creates sockets without the system call. The number is the same on every architecture.
_IO_URING_SETUP = 425
#: System calls of x32, the third ABI of x86-64, have this bit and the same numbers.
_X32_BIT = 0x4000_0000

# Instructions of classic BPF, and the field offsets of `struct seccomp_data`.
_LOAD, _AND, _EQUAL, _AT_LEAST, _GREATER, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x25, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16
_ALLOW = 0x7FFF_0000
_REFUSE = 0x0005_0000 | errno.EPERM

_Instruction = tuple[int, int, int, int]


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def refuse(*, limits: bool, families: frozenset[int] | None = None) -> None:
    """Deny this process access to kernel keyrings, which belong to the user and outlive it.

    With `limits`, also to the resource limits of other processes: the kernel kills a process without processor time, so
    limits are as good as signals. In a pid namespace a process does not see those outside.

    With `families`, also sockets of any other family, except for pairs of connected ones.
    """
    if sys.byteorder != "little":
        return  # the argument has another offset; the table has no such architecture
    code = b"".join(struct.pack("=HBBI", *instruction) for instruction in _filter(limits, families))
    program = _Program(len(code) // 8, code)
    with suppress(OSError):  # a kernel without seccomp
        libc.prctl(libc.PR_SET_SECCOMP, libc.SECCOMP_MODE_FILTER, ctypes.addressof(program))


def _filter(limits: bool, families: frozenset[int] | None) -> list[_Instruction]:
    program: list[_Instruction] = []
    for architecture, (keys, limit, socket) in _NUMBERS.items():
        # Jump offsets: instructions to skip if true, if false.
        calls: list[_Instruction] = [
            (_LOAD, 0, 0, _NUMBER),
            (_AND, 0, 0, ~_X32_BIT & 0xFFFF_FFFF),
            (_AT_LEAST, 0, 2, keys),
            (_GREATER, 1, 0, keys + 2),
            (_RETURN, 0, 0, _REFUSE),
        ]
        if limits:
            calls += [
                (_EQUAL, 0, 4, limit),
                (_LOAD, 0, 0, _FIRST_ARGUMENT),
                (_EQUAL, 1, 0, 0),  # 0: the limits of the caller itself
                (_RETURN, 0, 0, _REFUSE),
                (_RETURN, 0, 0, _ALLOW),
            ]
        if families is not None:
            calls += _without_sockets(socket, families, _SOCKETCALL.get(architecture))
        calls.append((_RETURN, 0, 0, _ALLOW))
        program += [(_LOAD, 0, 0, _ARCHITECTURE), (_EQUAL, 0, len(calls), architecture), *calls]
    return [*program, (_RETURN, 0, 0, _ALLOW)]


def _without_sockets(socket: int, families: frozenset[int], socketcall: int | None) -> list[_Instruction]:
    """Return instructions for the number of a system call. They fall through for all other calls."""
    program: list[_Instruction] = [(_EQUAL, 0, 1, _IO_URING_SETUP), (_RETURN, 0, 0, _REFUSE)]
    if socketcall is not None:
        program += [
            (_EQUAL, 0, 4, socketcall),
            (_LOAD, 0, 0, _FIRST_ARGUMENT),
            (_EQUAL, 0, 1, _SYS_SOCKET),
            (_RETURN, 0, 0, _REFUSE),
            (_RETURN, 0, 0, _ALLOW),
        ]
    allowed = sorted(families)
    program += [(_EQUAL, 0, len(allowed) + 2, socket), (_LOAD, 0, 0, _FIRST_ARGUMENT)]
    program += [(_EQUAL, len(allowed) - index, 0, family) for index, family in enumerate(allowed)]
    return [*program, (_RETURN, 0, 0, _REFUSE)]
