"""Routes of users, and of the audit listing."""

from __future__ import annotations

from msgspec.structs import asdict

from kedge.core.users import UserRecord
from kedge.errors import Unavailable
from kedge.server.asgi import HttpRequest, Route, route
from kedge.server.auth import Gate
from kedge.server.known_users import KnownUsers
from kedge.wire.models import Ok
from kedge.wire.user_models import AddedUser, AddUser, AuditBody, AuditEntryBody, AuditQuery, UserBody


class UserRoutes:
    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    async def users(self, request: HttpRequest) -> list[UserBody]:
        return [_body(user) for user in await self._users.store.all()]

    async def add(self, request: HttpRequest) -> AddedUser:
        user, token = await self._users.add(request.body.name, request.body.role, request.asker.user)
        return AddedUser(user=_body(user), token=token)

    async def revoke(self, request: HttpRequest) -> Ok:
        await self._users.revoke(request.path["name"], request.asker.user, spared=request.scope["kedge.abort"])
        return Ok()

    async def audit(self, request: HttpRequest) -> AuditBody:
        query: AuditQuery = request.query
        entries, before = await self._users.store.audit(query.limit, query.before, query.user, query.workspace_id)
        return AuditBody(entries=[AuditEntryBody(**asdict(entry)) for entry in entries], before=before)

    @property
    def _users(self) -> KnownUsers:
        if self._gate.users is None:
            raise Unavailable("This server has no users.")
        return self._gate.users

    def routes(self) -> list[Route]:
        return [
            route("GET", "/users", self.users, "List the users", reply=list[UserBody], declared_access="owner"),
            route(
                "POST",
                "/users",
                self.add,
                "Add a user, and return its token",
                body=AddUser,
                reply=AddedUser,
                declared_access="owner",
            ),
            route(
                "DELETE",
                "/users/{name}",
                self.revoke,
                "End the access of a user",
                reply=Ok,
                declared_access="owner",
            ),
            route(
                "GET",
                "/audit",
                self.audit,
                "List the actions of users, the latest first",
                query=AuditQuery,
                reply=AuditBody,
                declared_access="owner",
            ),
        ]


def _body(user: UserRecord) -> UserBody:
    return UserBody(name=user.name, role=user.role, created_at=user.created_at)
