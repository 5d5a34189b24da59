"""The process that listens on a Unix socket, checked with SO_PEERCRED before the first byte is sent.

A prompt may contain a password. A process that replaced the server's socket with its own must not receive it.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx2

from kedge import paths
from kedge.errors import Unreachable
from kedge.process_identity import identity_of, living_pid
from kedge.wire.server_record import recorded_pid

#: httpcore's public "trace" extension, which is awaited before the request continues.
Trace = Callable[[str, dict[str, Any]], Awaitable[None]]


class WrongServer(Unreachable):
    """A process other than the user's server listens on the socket. Nothing was sent to it."""


def peer_check(path: str) -> Trace:
    """Return a hook that raises WrongServer for a connection of this socket with the wrong peer."""

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
        return  # macOS: the mode of the directory keeps other users out
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, user, _ = struct.unpack("3i", credentials)
    if user != os.getuid() and os.getuid() != 0:
        raise WrongServer(f"Process {pid}, which listens on {path}, belongs to another user. Use another socket.")
    # A server on another socket may have another data directory, with its record there.
    if Path(path) == paths.socket_file() and recorded_pid(paths.server_record(), paths.data_dir()) != pid:
        if pid and living_pid(identity_of(pid)) is None:
            raise httpx2.ConnectError("the server has exited since it accepted the connection")
        raise WrongServer(
            f"Process {pid}, which listens on {path}, is not the kedge server of {paths.data_dir()}. Nothing "
            "was sent to it. End it or remove the socket, then try again."
        )
