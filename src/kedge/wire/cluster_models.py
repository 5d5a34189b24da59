"""Bodies about the nodes of a cluster."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class NodeBody(Struct, kw_only=True):
    name: str
    #: Its address for other nodes.
    url: str
    #: The directories whose workspaces it serves.
    roots: list[str]
    state: Literal["live", "lost"]
    #: True for the node that answers.
    is_this: bool
    #: Milliseconds since the epoch.
    started_at: int
    #: The workspaces that it serves.
    workspaces: int
    #: As it has last reported.
    live_runs: int
    streams: int
