"""Identifiers are opaque strings. This file says which strings may be one; new ones come from the engine's Ids port."""

from __future__ import annotations

import re

from kedge.errors import BadClientId, WrongType

#: Room for a UUID with a prefix and more; small enough to be an index key and a log line. In characters.
RUN_ID_CHARS_MAX = 128

# Only characters that stand for themselves in a URL path: a run_id is also the last part of one.
_RUN_ID = re.compile(r"[A-Za-z0-9._~@:+-]+")
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE)


def check_run_id(run_id: str) -> str:
    """The run_id itself, or WrongType that says what one looks like."""
    if len(run_id) > RUN_ID_CHARS_MAX:
        raise WrongType(f"run_id has {len(run_id)} characters; at most {RUN_ID_CHARS_MAX} are allowed")
    if not _RUN_ID.fullmatch(run_id) or run_id in (".", ".."):
        raise WrongType("run_id may hold letters, digits and . _ ~ @ : + - only, and not be empty")
    return run_id


def check_client_id(client_id: str) -> str:
    """The client_id in lower case, or BadClientId."""
    if not _UUID.fullmatch(client_id):
        raise BadClientId("client_id must be a UUID, made once per client process")
    return client_id.lower()
