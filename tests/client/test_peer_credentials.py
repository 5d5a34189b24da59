"""The client sends data only to the user's server, not to another process on its socket."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from kedge import paths
from kedge.client.client import Client
from kedge.client.local_server import find_or_start
from kedge.client.peer_credentials import WrongServer
from kedge.wire.server_record import recorded_pid, write_record
from tests.client.process import Home

pytestmark = pytest.mark.skipif(not hasattr(socket, "SO_PEERCRED"), reason="the kernel does not tell who listens")


@pytest.fixture
def impostor(in_home: Home) -> Iterator[socket.socket]:
    """A socket of this process at the server's path."""
    paths.runtime_dir().mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(str(paths.socket_file()))
        listening.listen()
        yield listening


def received(listening: socket.socket) -> bytes:
    """The data sent on all connections, which are closed by now."""
    listening.setblocking(False)
    data = b""
    while True:
        try:
            connection, _ = listening.accept()
        except BlockingIOError:
            return data
        with connection:
            connection.settimeout(5)
            while piece := connection.recv(4096):
                data += piece


@pytest.mark.found(
    "attack 13",
    "a sandboxed command replaced the server's socket by its own and read the next prompt; clients now ask the kernel "
    "for the listening process before they send anything, and compare it with the server's record",
)
@pytest.mark.parametrize("record", ["none", "of another process", "of an earlier process with this pid"])
def test_no_prompt_is_sent_to_another_listener(in_home: Home, impostor: socket.socket, record: str) -> None:
    if record == "of another process":
        paths.server_record().write_text("1 1\n")
    elif record == "of an earlier process with this pid":
        paths.server_record().write_text(f"{os.getpid()} 1\n")
    done = in_home.kedge("run", "deploy with password hunter2")
    assert done.code != 0
    assert "is not the kedge server" in done.err
    assert done.err.count("\n") == 1
    checked = in_home.kedge("doctor")
    assert (checked.code, "is not the kedge server" in checked.out) == (1, True)
    assert received(impostor) == b""


async def test_server_is_identified_by_its_record(in_home: Home, impostor: socket.socket) -> None:
    async with Client() as client:
        with pytest.raises(WrongServer):
            await client.health()
    impostor.close()
    await find_or_start()
    pid = int(paths.server_record().read_text().split()[0])
    assert recorded_pid(paths.server_record(), in_home.data) == pid
    assert stat.S_IMODE(paths.server_record().stat().st_mode) == 0o600
    async with Client() as client:
        assert (await client.version()).pid == pid


def test_record_identifies_one_process(tmp_path: Path) -> None:
    record, data = tmp_path / "run" / "server.pid", tmp_path / "data"
    assert recorded_pid(record, data) is None
    write_record(record, data)
    assert recorded_pid(record, data) == os.getpid()
    assert recorded_pid(record, tmp_path / "other") is None
    (tmp_path / "link").symlink_to(record)
    assert recorded_pid(tmp_path / "link", data) is None
    with pytest.raises(OSError, match="symbolic links"):
        write_record(tmp_path / "link", data)
    child = os.fork()
    if child == 0:
        write_record(record, data)
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert recorded_pid(record, data) is None, "a zombie has ended"
    os.waitpid(child, 0)
    assert recorded_pid(record, data) is None


@pytest.mark.found(
    "attack 13",
    "without XDG_RUNTIME_DIR the socket was in the temporary directory, which sandboxed commands can write; it is now "
    "in the data directory",
)
def test_socket_is_never_in_a_temporary_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KEDGE_DATA_DIR", "XDG_RUNTIME_DIR", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/ada")
    monkeypatch.setenv("TMPDIR", "/scratch/ada")
    inside = paths.data_dir() / "run"
    assert paths.runtime_dir() == inside
    (tmp_path / "link").symlink_to("/tmp")
    for temporary in ("/tmp/run", "/var/tmp", "/scratch/ada/run", "relative", "", str(tmp_path / "link" / "run")):
        monkeypatch.setenv("XDG_RUNTIME_DIR", temporary)
        assert paths.runtime_dir() == inside
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/1000")
    assert paths.runtime_dir() == Path("/run/user/1000/kedge")
    monkeypatch.setenv("KEDGE_DATA_DIR", "/srv/data")
    assert paths.runtime_dir() == Path("/srv/data/run")
    monkeypatch.setenv("KEDGE_DATA_DIR", f"/srv/{'long' * 25}")
    assert paths.runtime_dir() == Path("/home/ada/.kedge")
    assert len(str(paths.socket_file())) <= paths.SOCKET_PATH_BYTES_MAX


@pytest.mark.timeout(10)
@pytest.mark.found(
    "attack round 2: sandbox",
    "a FIFO instead of the server's record blocked every client forever; the record must now be a regular file",
)
def test_record_that_is_not_a_file_is_ignored(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    assert recorded_pid(tmp_path / "fifo", tmp_path) is None
    assert recorded_pid(tmp_path, tmp_path) is None
