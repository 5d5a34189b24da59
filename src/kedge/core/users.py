"""Users: the senders of requests besides the owner of a server, and their roles."""

from __future__ import annotations

import re
from typing import Literal

from msgspec import Struct

from kedge.errors import Invalid

#: owner: everything that the server's token may do. collaborator: read and act. spectator: read.
Role = Literal["owner", "collaborator", "spectator"]

#: Users of one server: a large team. All of them are held in memory. Items.
USERS_MAX = 1000
#: A name is shown in lists and beside messages. Characters.
USER_NAME_CHARS_MAX = 63
_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{USER_NAME_CHARS_MAX - 1}}}")


class UserRecord(Struct, frozen=True):
    name: str
    role: Role
    #: SHA-256 of the token, in hexadecimal. The token is random, so a plain hash is enough.
    token_digest: str
    #: Milliseconds since the epoch.
    created_at: int


def check_user_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise Invalid(
            f"{name[:100]!r} is not a valid name of a user: letters, digits, '.', '_' and '-', "
            f"at most {USER_NAME_CHARS_MAX}."
        )
    return name
