"""Fixtures for tests with a real server process. Each conftest.py that needs them imports them."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from copy import copy
from pathlib import Path

import pytest

from kedge.client.client import Client
from kedge.testing import HostedEndpoint
from kedge.wire.server_record import recorded_pid
from tests.client.process import Home, Server

__all__ = ["client", "endpoint", "home", "in_home", "own_client", "own_server", "server", "shared_server"]


@pytest.fixture(scope="session")
def endpoint() -> Iterator[HostedEndpoint]:
    with HostedEndpoint() as endpoint:
        yield endpoint


@pytest.fixture
def home(endpoint: HostedEndpoint) -> Iterator[Home]:
    with tempfile.TemporaryDirectory(prefix="kedge-") as root:
        home = Home(Path(root), endpoint)
        yield home
        home.close()


@pytest.fixture
def in_home(home: Home, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    """A home that this process uses too. Its servers are killed at the end."""
    for name in ("KEDGE_TOKEN", "KEDGE_STORE", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    for name in ("KEDGE_DATA_DIR", "KEDGE_CONFIG"):
        monkeypatch.setenv(name, home.env[name])
    monkeypatch.chdir(home.workspace)
    yield home
    for pid in server_pids(home):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def server_pids(home: Home) -> list[int]:
    """The pids of the servers with this home's data directory."""
    pids = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with suppress(OSError):
                arguments = (entry / "cmdline").read_bytes().split(b"\0")
                if b"serve" in arguments and _has_data(home, entry):
                    pids.append(int(entry.name))
    return pids


def _has_data(home: Home, process: Path) -> bool:
    try:
        return f"KEDGE_DATA_DIR={home.data}".encode() in (process / "environ").read_bytes().split(b"\0")
    except PermissionError:  # only root can read it; the record identifies the latest server
        return any(recorded_pid(path, home.data) == int(process.name) for path in home.data.glob("run/*.pid"))


@pytest.fixture(scope="session")
def shared_server(endpoint: HostedEndpoint) -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="kedge-") as root:
        server = Server(Home(Path(root), endpoint)).start()
        yield server
        server.stop()


@pytest.fixture
def server(shared_server: Server) -> Iterator[Server]:
    """A server shared with other tests, with a workspace of this test."""
    server = copy(shared_server)
    server.home = copy(shared_server.home)
    server.home.workspace = Path(tempfile.mkdtemp(prefix="work-", dir=server.home.root))
    server.home.started = []
    yield server
    server.home.close()


@pytest.fixture
async def client(server: Server) -> AsyncIterator[Client]:
    async with Client(server.host) as client:
        yield client


@pytest.fixture
def own_server(home: Home) -> Iterator[Server]:
    """A server that the test can stop, kill and restart."""
    server = Server(home).start()
    yield server
    server.stop()


@pytest.fixture
async def own_client(own_server: Server) -> AsyncIterator[Client]:
    async with Client(own_server.host) as client:
        yield client
