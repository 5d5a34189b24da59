"""Signatures of nodes: headers of clients that are not signatures."""

from __future__ import annotations

import pytest

from kedge.errors import Unauthorized
from kedge.server.forwarding import ClusterSecret


@pytest.mark.parametrize(
    "header", ["", "1", "1:a:b", "x:a:b:c", "1:a:b:c", "1:a:b:\xe9", "1:\xe9:\xff:0", "9" * 5000 + ":a:b:c"]
)
def test_other_text_is_refused(header: str) -> None:
    with pytest.raises(Unauthorized):
        ClusterSecret.of("s" * 32).verify(f"Kedge-Node {header}", "GET", "/v1/runs", 1)
