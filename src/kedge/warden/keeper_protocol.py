"""The wire between server, keeper and overseers: one JSON object per line.

Server to keeper, and from there on to the overseer of the tree `id`:

    {"run": id, "argv", "cwd", "env", "stdin", "apart",               with the descriptors of the streams attached
     "writable", "protected", "hidden", "reachable",                  see `base.ProcessSpec`
     "landlock", "mounts"}                                            the layers that are to hold it
    {"end": id, "grace_s"}      ask the tree to go (SIGTERM), then kill it
    {"count": id, "tag"}        how many processes are alive in it?

Keeper to server:

    {"hello": version, "mechanism", "landlock"}     first line: what this machine can do
    {"started": id, "pid", "overseer"}              the program is executing
    {"failed": id, "error"}                         it could not be started; the tree is gone
    {"exited": id, "code", "signal"}                the first process of the tree has ended
    {"counted": id, "tag", "alive"}
    {"gone": id, "left"}                            nothing of the tree is alive but the pids in `left`, normally none
    {"broken": error}                               last line of a keeper that cannot go on

This file is loaded by the keeper: standard library only.
"""

from __future__ import annotations

import json
from typing import Any

WIRE_VERSION = 2

#: One line. An argument list the kernel accepts has at most 2 MiB, and JSON may write a byte with six.
KEEPER_MESSAGE_BYTES_MAX = 16 * 1024 * 1024

#: Bytes taken from a socket at once.
RECEIVE_BYTES = 64 * 1024

#: Descriptors that come with one message: standard input, output, error.
DESCRIPTORS_MAX = 3

KeeperMessage = dict[str, Any]


def encode(line: KeeperMessage) -> bytes:
    # Names of files that are not UTF-8 come as lone surrogates; JSON's escapes carry them over unharmed.
    return json.dumps(line).encode() + b"\n"


class MessageReader:
    """Cuts what arrives into lines."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[KeeperMessage]:
        self._rest += data
        if b"\n" not in data:
            if len(self._rest) > KEEPER_MESSAGE_BYTES_MAX:
                raise ValueError("a line is too long")
            return []
        *whole, rest = bytes(self._rest).split(b"\n")
        self._rest = bytearray(rest)
        return [json.loads(line) for line in whole]
