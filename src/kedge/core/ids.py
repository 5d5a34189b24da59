"""Validation of identifiers, which are opaque strings. The engine's Ids port creates new ones."""

from __future__ import annotations

import re

from kedge.errors import BadClientId, WrongType

#: Fits a UUID with a prefix; small enough for an index key and a log line. Characters.
RUN_ID_CHARS_MAX = 128

# Only characters that need no escaping in a URL path: a run_id is the last part of one.
_RUN_ID = re.compile(r"[A-Za-z0-9._~@:+-]+")
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE)


def check_run_id(run_id: str) -> str:
    """Return the run_id. Raises WrongType if it is not valid."""
    if len(run_id) > RUN_ID_CHARS_MAX:
        raise WrongType(f"run_id has {len(run_id)} characters; at most {RUN_ID_CHARS_MAX} are allowed.")
    if not _RUN_ID.fullmatch(run_id) or run_id in (".", ".."):
        raise WrongType("run_id must not be empty and may contain only letters, digits and . _ ~ @ : + -")
    return run_id


def check_client_id(client_id: str) -> str:
    """Return the client_id in lower case. Raises BadClientId if it is not a UUID."""
    if not _UUID.fullmatch(client_id):
        raise BadClientId("client_id must be a UUID. Create one per client process.")
    return client_id.lower()
