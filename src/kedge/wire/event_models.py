"""Bodies of events without a record: a changed file, a problem of the configuration, a gap."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class FileEvent(Struct, kw_only=True):
    """A file that a Run changed, or whose changes were undone. All changes by one Run have the same `version_id`."""

    path: str
    run_id: str
    session_id: str
    version_id: str
    undone: bool = False


class ConfigProblem(Struct, kw_only=True):
    problem: str


class GapBody(Struct, kw_only=True):
    reason: Literal["evicted", "epoch"]
    position: int
