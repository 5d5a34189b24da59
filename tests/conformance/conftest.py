"""One server for most tests; tests that crash, stop or configure a server have their own."""

from __future__ import annotations

import os
import resource
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kedge.store.leases import LEASE_S
from kedge.testing.hosted import HostedEndpoint
from tests.cluster.balancer import hosted
from tests.cluster.nodes import Nodes
from tests.conformance.harness import IS_CLUSTER, Endpoint, Peer, Server, open_http
from tests.postgres_server import shared_url

#: The end of a server's log that is shown with a failed test. Characters.
LOG_CHARS = 3_000


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """On a cluster, leave out tests with a server of their own: they test one process, its files or its settings."""
    if IS_CLUSTER:
        items[:] = [item for item in items if _is_shared(set(getattr(item, "fixturenames", ())))]


def _is_shared(fixtures: set[str]) -> bool:
    return "shared" in fixtures and "own_server" not in fixtures


@pytest.fixture(scope="session")
def endpoint() -> Iterator[Endpoint]:
    port = int(os.environ.get("KEDGE_TEST_ENDPOINT_PORT", "9001")) if "KEDGE_URL" in os.environ else 0
    with HostedEndpoint(port) as hosted:
        yield Endpoint(hosted)


@pytest.fixture(scope="session")
def shared(endpoint: Endpoint, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The URL and the token of the server under test."""
    if url := os.environ.get("KEDGE_URL"):
        yield url.replace("tcp://", "http://"), os.environ.get("KEDGE_TOKEN", "")
        return
    if IS_CLUSTER:
        with two_nodes(tmp_path_factory, endpoint) as address:
            yield address
        return
    server = Server(tmp_path_factory.mktemp("server"), endpoint.hosted.url).start()
    yield server.url, server.token
    server.stop()


@contextmanager
def two_nodes(tmp_path_factory: pytest.TempPathFactory, endpoint: Endpoint) -> Iterator[tuple[str, str]]:
    """Two nodes and a balancer. Yields its URL, and the token of the nodes."""
    base = tmp_path_factory.getbasetemp()
    postgres = shared_url((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "postgres")
    # With the default lease: no pause of the machine is longer.
    nodes = Nodes(tmp_path_factory.mktemp("nodes"), postgres, endpoint.hosted.url, LEASE_S)
    try:
        ports = [int(nodes.add(name).url.rpartition(":")[2]) for name in ("a", "b")]
        with hosted(ports) as port:
            yield f"http://127.0.0.1:{port}", nodes.token
    finally:
        nodes.stop()


@pytest.fixture
async def kedge(shared: tuple[str, str], tmp_path: Path) -> AsyncIterator[Peer]:
    """A client of the shared server, with its own workspace."""
    async with open_http(*shared) as http:
        (tmp_path / "workspace").mkdir()
        yield await Peer(http, tmp_path / "workspace").open()


@pytest.fixture
def own_server(endpoint: Endpoint, tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """`own_server("[server]\\ngrace_s = 0.2")` starts a server for one test."""
    if "KEDGE_URL" in os.environ:
        pytest.skip("needs a server process of its own")
    started: list[Server] = []

    def start(config: str = "", *, titles: bool = False, program: tuple[str, ...] = ("-m", "kedge")) -> Server:
        server = Server(tmp_path / f"server-{len(started)}", endpoint.hosted.url, config, titles=titles)
        server.program = program
        started.append(server)
        return server.start()

    yield start
    for server in started:
        # pytest shows it if the test has failed.
        print(f"{server.home.name}, exit code {server.exit_code}, end of its log:\n{server.log[-LOG_CHARS:]}")
        server.stop()


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    directory = tmp_path / "workspace"
    directory.mkdir(exist_ok=True)
    return directory


@pytest.fixture
def many_files() -> Iterator[None]:
    """Raise the limit of open files, which the server inherits; a shell often sets it to 1,024."""
    before, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most not in (resource.RLIM_INFINITY, -1) and most < 4096:
        pytest.skip("this machine allows too few open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before, 4096), most))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (before, most))
