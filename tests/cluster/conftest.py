from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kedge.testing.hosted import HostedEndpoint
from tests.cluster.nodes import Nodes
from tests.conformance.harness import Endpoint
from tests.postgres_server import shared_url


@pytest.fixture(scope="session")
def endpoint() -> Iterator[Endpoint]:
    with HostedEndpoint() as hosted:
        yield Endpoint(hosted)


@pytest.fixture(scope="session")
def postgres_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    return shared_url(tmp_path_factory.getbasetemp().parent / "postgres")


@pytest.fixture
def nodes(tmp_path: Path, postgres_url: str, endpoint: Endpoint) -> Iterator[Nodes]:
    nodes = Nodes(tmp_path / "nodes", postgres_url, endpoint.hosted.url)
    yield nodes
    nodes.stop()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "workspace"
    path.mkdir()
    return path
