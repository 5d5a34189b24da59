"""The trace of a Run: what happened to it besides its life cycle."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, Struct, UnsetType


class TraceBody(Struct, kw_only=True):
    """Something that happened to a live Run. A `cancel` covers every Run with seq <= mark, a `cancel_run` this one."""

    kind: Literal["cancel", "cancel_run", "move", "fold", "resume"]
    at: int
    mark: int | UnsetType = UNSET
    #: Of a move: the Run that it was moved before.
    before: str | UnsetType = UNSET
    #: Of a cancel: the user. Omitted: the owner.
    author: str | UnsetType = UNSET
