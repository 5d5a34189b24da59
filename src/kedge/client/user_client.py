"""The routes of users, and of the audit listing."""

from __future__ import annotations

import msgspec

from kedge.client.http_transport import Transport, quoted_path
from kedge.core.users import Role
from kedge.wire.user_models import AddedUser, AddUser, AuditBody, UserBody


class UserClient:
    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def all(self) -> list[UserBody]:
        return msgspec.json.decode(await self._transport.request("GET", "/users"), type=list[UserBody])

    async def add(self, name: str, role: Role) -> AddedUser:
        """Return the new user with its token, which cannot be read again."""
        body = AddUser(name=name, role=role)
        return msgspec.json.decode(await self._transport.request("POST", "/users", body=body), type=AddedUser)

    async def revoke(self, name: str) -> None:
        """End the access of a user, and its open streams."""
        await self._transport.request("DELETE", quoted_path("users", name))

    async def audit(
        self, *, user: str | None = None, workspace_id: str | None = None, limit: int | None = None, before: int = 0
    ) -> AuditBody:
        """Return a page of the actions of users, the latest first. `user`: empty for the owner."""
        params = {"user": user, "workspace_id": workspace_id, "limit": limit, "before": before}
        return msgspec.json.decode(await self._transport.request("GET", "/audit", params=params), type=AuditBody)
