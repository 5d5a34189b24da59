"""Socket files of servers that start and stop."""

from __future__ import annotations

import socket
from pathlib import Path

from kedge.server.sockets import bind_unix, socket_files, unlink_sockets


def test_a_server_removes_only_its_own_socket_file(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    old = bind_unix(path)
    files = socket_files([f"unix://{path}", "tcp://127.0.0.1:1"])
    old.close()  # it accepts no connections, and still serves those it has
    new = bind_unix(path)
    new.listen()
    unlink_sockets(files)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
    new.close()
    unlink_sockets(socket_files([f"unix://{path}"]))
    assert not path.exists()
