"""The users of this server, held in memory: no request waits for the store to find its user.

A token is random and known only to its user: the store and the memory have its digest. In a cluster all nodes share the
users of the store. Each node reads them again regularly, and when it receives an unknown token. While the store is
unavailable, the users that were read last remain, and a user revoked at this node stays revoked.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
import secrets
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager

from kedge.core.audit import Action, AuditEntry
from kedge.core.users import USERS_MAX, Role, UserRecord, check_user_name
from kedge.errors import Busy, StoreError, StoreUnavailable, UserNotFound
from kedge.server.open_connections import OpenConnections
from kedge.store.base import UserStore

log = logging.getLogger("kedge.server")

#: The format of tokens: other text is refused without reading the store.
_TOKEN = re.compile(r"kedge_[A-Za-z0-9_-]{43}")
#: The shortest time between two reads because of unknown tokens: wrong ones must not keep the store busy. Seconds.
REREAD_S = 1.0
#: A request with an unknown token waits for the store up to this time. Seconds.
READ_S_MAX = 3.0


class KnownUsers:
    def __init__(self, store: UserStore, now_ms: Callable[[], int], *, is_shared: bool = False) -> None:
        """`is_shared`: other nodes may change the users, too."""
        self.store = store
        self._now_ms = now_ms
        self._is_shared = is_shared
        self._by_digest: dict[str, UserRecord] = {}
        #: The users that were revoked here and may still be in the store, by digest.
        self._revoked: dict[str, UserRecord] = {}
        self._open = OpenConnections()
        self._changing = asyncio.Lock()
        #: When the last read began, by the clock of the loop.
        self._read_at = float("-inf")

    @property
    def has_any(self) -> bool:
        return bool(self._by_digest)

    # --- requests ------------------------------------------------------------------------------------------------

    async def find(self, token: str) -> UserRecord | None:
        """Return the user with this token. Another node may have added the user a moment ago."""
        if not _TOKEN.fullmatch(token):
            return None
        digest = _digest(token)
        if digest not in self._by_digest and self._is_shared:
            await self._read_since(asyncio.get_running_loop().time())
        return self._by_digest.get(digest)

    def in_use(self, name: str, end: Callable[[], None]) -> AbstractContextManager[None]:
        """Call `end` if the user is revoked within this block."""
        return self._open.added(name, end)

    # --- changes -------------------------------------------------------------------------------------------------

    async def add(self, name: str, role: Role, author: str) -> tuple[UserRecord, str]:
        """Add a user, and return it with its token."""
        check_user_name(name)
        if len(self._by_digest) >= USERS_MAX:
            raise Busy(f"There are {USERS_MAX} users, the limit of a server. Revoke some: kedge users revoke NAME")
        token = f"kedge_{secrets.token_urlsafe(32)}"
        user = UserRecord(name, role, _digest(token), self._now_ms())
        async with self._changing:
            await self.store.add(user, self._entry(author, "add_user", f"{name}, {role}"))
            self._replace([*self._by_digest.values(), user])
        return user, token

    async def revoke(self, name: str, author: str, spared: Callable[[], None] | None = None) -> None:
        """Remove the user and end its connections, except for `spared`, which carries the request."""
        self._revoked |= {digest: user for digest, user in self._by_digest.items() if user.name == name}
        self._replace(self._by_digest.values(), spared)
        was_revoked = any(user.name == name for user in self._revoked.values())
        async with self._changing:
            try:
                await self.store.remove(name, self._entry(author, "revoke_user", name))
            except UserNotFound:
                if not was_revoked:  # otherwise an earlier attempt, which seemed to fail, has removed it
                    raise
            except StoreUnavailable as error:
                if not was_revoked:
                    raise
                raise StoreUnavailable(
                    f"User {name} has no access to this server any more, but the store was not changed ({error}). "
                    f"Repeat: kedge users revoke {name}"
                ) from error
            self._revoked = {digest: user for digest, user in self._revoked.items() if user.name != name}

    def _entry(self, author: str, action: Action, detail: str) -> AuditEntry:
        return AuditEntry(self._now_ms(), author, action, detail=detail)

    # --- reading -------------------------------------------------------------------------------------------------

    async def load(self) -> None:
        """Read the users for the first time. With a damaged store, only the owner has access."""
        try:
            self._replace(await self.store.all())
        except StoreError as error:
            log.error("only the owner has access, since the users cannot be read: %s", error)

    async def refresh(self) -> None:
        """Read the users again. If the store is unavailable, nothing changes."""
        async with self._changing:
            await self._read()

    async def _read_since(self, since: float) -> None:
        """Wait for the end of a read that began at this time or later. Concurrent requests share a read."""
        async with self._changing:
            if self._read_at < since:
                await asyncio.sleep(max(0.0, self._read_at + REREAD_S - asyncio.get_running_loop().time()))
                await self._read()

    async def _read(self) -> None:
        self._read_at = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(READ_S_MAX):
                users = await self.store.all()
        except (StoreUnavailable, StoreError, TimeoutError) as error:
            log.warning("the users were not read: %s", str(error) or "no answer")
            return
        self._replace(users)

    def _replace(self, users: Iterable[UserRecord], spared: Callable[[], None] | None = None) -> None:
        """Replace the users by these, and end the connections of those who are missing."""
        before = self._by_digest
        self._by_digest = {user.token_digest: user for user in users if user.token_digest not in self._revoked}
        for digest in before.keys() - self._by_digest.keys():
            self._open.end(before[digest].name, spared)


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
