"""The protocol between server, keeper and overseers: one JSON object per line.

Server to keeper, which forwards it to the overseer of the tree `id`:

    {"run": id, "argv", "cwd", "env", "stdin", "stderr",              with the descriptors of the streams attached
     "writable", "protected", "hidden", "reachable", "scratch",       see `base.ProcessSpec`
     "data_bytes_max", "cpu_s_max",
     "landlock", "mounts",                                            the sandbox layers to use
     "network"}                                                       how to isolate it: "namespace", "filter" or null
    {"end": id, "grace_s"}      terminate the tree (SIGTERM), then kill it
    {"count": id, "tag"}        count its processes that are alive
    {"ping": number}            answered by the keeper itself, at once
    {"alive_until": time}       kill all trees then, and start none, unless another such message arrives before. In
                                seconds of CLOCK_BOOTTIME

Keeper to server:

    {"hello": version, "mechanism", "landlock"}     first message: the features of this machine
    {"accepted": id}                                the program may have begun from here on; without it, it has not
    {"started": id, "pid", "overseer"}              the program is executing
    {"failed": id, "error"}                         the program could not be started; the tree is gone
    {"exited": id, "code", "signal"}                the first process of the tree has ended
    {"counted": id, "tag", "alive"}
    {"pong": number}
    {"gone": id, "left"}                            the tree has ended except for the pids in `left`, normally none
    {"broken": error}                               last message of a keeper that failed

This file is loaded by the keeper: standard library only.
"""

from __future__ import annotations

import json
from typing import Any

WIRE_VERSION = 6

#: Size of a message: the kernel accepts argument lists of 2 MiB, and JSON may take six bytes for one. Bytes.
KEEPER_MESSAGE_BYTES_MAX = 16 * 1024 * 1024

#: Bytes per read of a socket.
RECEIVE_BYTES = 64 * 1024

#: Descriptors in one message: standard input, output, error.
DESCRIPTORS_MAX = 3

KeeperMessage = dict[str, Any]


def encode(line: KeeperMessage) -> bytes:
    # File names that are not UTF-8 contain lone surrogates; JSON's escapes preserve them.
    return json.dumps(line).encode() + b"\n"


class MessageReader:
    """Splits received bytes into messages."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[KeeperMessage]:
        self._rest += data
        if b"\n" not in data:
            if len(self._rest) > KEEPER_MESSAGE_BYTES_MAX:
                raise ValueError("a line is too long")
            return []
        *complete, rest = bytes(self._rest).split(b"\n")
        self._rest = bytearray(rest)
        return [json.loads(line) for line in complete]
