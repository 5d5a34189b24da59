"""Bodies between two nodes: the readers that share one stream."""

from __future__ import annotations

from msgspec import Struct


class RelayReader(Struct, frozen=True):
    """An open stream of a client at the other node."""

    stream_id: str
    client_id: str


class RelayReaders(Struct):
    """The readers that were opened and closed since the last request. The answer is in the stream."""

    number: int
    opened: list[RelayReader] = []
    closed: list[str] = []


class RelayNamed(Struct):
    """The answer to RelayReaders, in the stream."""

    number: int
    #: The streams whose clients were retired.
    retired: list[str]


class RelaySession(Struct):
    """The state of a session that only the serving node has."""

    id: str
    attached_clients: int
    #: The ids of the kept commands that run.
    jobs: list[str]
