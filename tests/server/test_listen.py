"""Sockets of servers that come and go."""

from __future__ import annotations

import socket
from pathlib import Path

from kedge.server import listen


def test_a_server_that_leaves_removes_its_own_socket_and_not_its_successors(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    old = listen._bind_unix(path)
    files = listen._socket_files([f"unix://{path}", "tcp://127.0.0.1:1"])
    old.close()  # it takes no more connections, and still waits for those it has
    new = listen._bind_unix(path)
    new.listen()
    listen._unlink_sockets(files)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
    new.close()
    listen._unlink_sockets(listen._socket_files([f"unix://{path}"]))
    assert not path.exists()
