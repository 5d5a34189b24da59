"""Bodies of users and of the audit listing."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from kedge.core.audit import Action
from kedge.core.users import USER_NAME_CHARS_MAX, Role
from kedge.wire.limits import PAGE_ITEMS_MAX


class AddUser(Struct, kw_only=True, forbid_unknown_fields=True):
    #: Letters, digits, ".", "_" and "-".
    name: Annotated[str, Meta(min_length=1, max_length=USER_NAME_CHARS_MAX)]
    role: Role


class UserBody(Struct, kw_only=True):
    name: str
    role: Role
    #: Milliseconds since the epoch.
    created_at: int


class AddedUser(Struct, kw_only=True):
    user: UserBody
    #: The only time that it is shown: the server keeps a hash.
    token: str


class AuditQuery(Struct, kw_only=True):
    #: Entries of this user; empty: those of the owner.
    user: str | None = None
    workspace_id: str | None = None
    limit: Annotated[int, Meta(ge=1, le=PAGE_ITEMS_MAX)] = 100
    #: Continue with the `before` of the previous page.
    before: Annotated[int, Meta(ge=0, le=2**53)] = 0


class AuditEntryBody(Struct, kw_only=True):
    #: Milliseconds since the epoch.
    at: int
    #: The name of the user; empty: the owner.
    author: str
    action: Action
    #: Empty: the action does not concern one.
    workspace_id: str
    session_id: str
    run_id: str
    detail: str


class AuditBody(Struct, kw_only=True):
    #: The last stored first.
    entries: list[AuditEntryBody]
    #: For the next page; 0: this is the last one.
    before: int
