"""Who listens on a Unix socket: asked of the kernel on the connection itself, before the first byte is sent on it.

A prompt may hold a password. Another process that has put its socket in the server's place must not get one.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from kedge import paths
from kedge.errors import Unreachable
from kedge.wire.identity import is_recorded

#: A hook of httpcore: its name is public ("trace extension"), and it is awaited before anything else happens.
Trace = Callable[[str, dict[str, Any]], Awaitable[None]]


class WrongServer(Unreachable):
    """Another process than the user's server listens. Nothing was sent to it."""


def checked(path: str) -> Trace:
    """Checks each new connection to this socket; raises WrongServer."""

    async def trace(event: str, info: dict[str, Any]) -> None:
        if event == "connection.connect_unix_socket.complete":
            stream = info["return_value"]
            try:
                _check(path, stream.get_extra_info("socket"))
            except BaseException:
                await stream.aclose()
                raise

    return trace


def _check(path: str, connection: Any) -> None:
    if not hasattr(socket, "SO_PEERCRED"):
        return  # macOS: the modes of the directory keep other users out
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, user, _ = struct.unpack("3i", credentials)
    if user != os.getuid() and os.getuid() != 0:
        raise WrongServer(f"the process that listens at {path} (pid {pid}) belongs to another user: use another socket")
    # A server at another address may have another data directory, and its record there.
    if Path(path) == paths.socket_file() and not is_recorded(paths.server_record(), pid):
        raise WrongServer(
            f"the process that listens at {path} (pid {pid}) is not the kedge server of {paths.data_dir()}: "
            "nothing was sent to it; end it or remove the socket, then try again"
        )
