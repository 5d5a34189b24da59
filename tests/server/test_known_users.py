"""The users in memory: a store that is away, changes by other nodes, and unknown tokens."""

from __future__ import annotations

import asyncio

import pytest

from kedge.core.audit import AuditEntry
from kedge.core.users import UserRecord
from kedge.errors import Busy, KedgeError, StoreDamaged, StoreUnavailable, UserNotFound
from kedge.server import known_users
from kedge.server.known_users import KnownUsers
from kedge.store.memory import MemoryData, MemoryStore
from kedge.store.memory_users import MemoryUsers

UNKNOWN = "kedge_" + "x" * 43


class FailingUsers(MemoryUsers):
    """A store that fails, and whose answers can be late."""

    def __init__(self, data: MemoryData) -> None:
        super().__init__(lambda: data)
        self.error: KedgeError | None = None
        self.forgets_to_answer = False
        self.reads = 0
        #: Set: an answer that was read waits until it is cleared.
        self.late: asyncio.Event | None = None

    async def all(self) -> list[UserRecord]:
        self.reads += 1
        self._check()
        users = await super().all()
        if self.late is not None:
            await self.late.wait()
        return users

    async def remove(self, name: str, entry: AuditEntry) -> None:
        self._check()
        await super().remove(name, entry)
        if self.forgets_to_answer:
            raise StoreUnavailable("the connection was lost")

    def _check(self) -> None:
        if self.error is not None:
            raise self.error


class Node:
    """One of several servers with the same users."""

    def __init__(self, data: MemoryData, *, is_shared: bool = True) -> None:
        self.store = FailingUsers(data)
        self.users = KnownUsers(self.store, lambda: 5, is_shared=is_shared)

    async def knows(self, token: str) -> bool:
        return await self.users.find(token) is not None


@pytest.fixture
async def data() -> MemoryData:
    store = MemoryStore()
    await store.open()
    return store.data


async def test_store_that_is_away_changes_nothing(data: MemoryData) -> None:
    node = Node(data)
    _, token = await node.users.add("eve", "spectator", "")
    _, revoked = await node.users.add("bob", "owner", "")
    await node.users.revoke("bob", "eve")
    node.store.error = StoreUnavailable("out of reach")
    await node.users.refresh()
    assert await node.knows(token)
    assert not await node.knows(revoked)
    assert not await node.knows(UNKNOWN)


async def test_revoked_user_stays_out_if_the_store_fails(data: MemoryData) -> None:
    node = Node(data)
    _, token = await node.users.add("eve", "spectator", "")
    ends: list[str] = []
    with node.users.in_use("eve", lambda: ends.append("ended")):
        node.store.error = StoreUnavailable("out of reach")
        with pytest.raises(StoreUnavailable, match="has no access to this server any more, but the store was not"):
            await node.users.revoke("eve", "")
        assert ends == ["ended"]
    node.store.error = None
    await node.users.refresh()
    assert not await node.knows(token), "it is still in the store"
    await node.users.revoke("eve", "")
    assert await node.store.all() == []
    with pytest.raises(UserNotFound):
        await node.users.revoke("eve", "")


async def test_removal_without_an_answer_is_repeated(data: MemoryData) -> None:
    node = Node(data)
    await node.users.add("eve", "spectator", "")
    node.store.forgets_to_answer = True
    with pytest.raises(StoreUnavailable, match="Repeat: kedge users revoke eve"):
        await node.users.revoke("eve", "")
    await node.users.revoke("eve", "")
    _, token = await node.users.add("eve", "owner", "")
    await node.users.refresh()
    assert await node.knows(token)


async def test_late_read_does_not_bring_a_revoked_user_back(data: MemoryData) -> None:
    node = Node(data)
    _, token = await node.users.add("eve", "spectator", "")
    node.store.late = asyncio.Event()
    reading = asyncio.create_task(node.users.refresh())
    revoking = asyncio.create_task(node.users.revoke("eve", ""))
    for _ in range(10):  # both do what they can without the answer
        await asyncio.sleep(0)
    assert not node.users.has_any, "at once, although the store is busy"
    node.store.late.set()
    await asyncio.gather(reading, revoking)
    assert not await node.knows(token)


async def test_changes_of_other_nodes(data: MemoryData) -> None:
    first, second = Node(data), Node(data)
    _, token = await first.users.add("eve", "spectator", "")
    assert await second.knows(token), "at once"
    ends: list[str] = []
    with second.users.in_use("eve", lambda: ends.append("eve")), second.users.in_use("bob", lambda: ends.append("bob")):
        await second.users.refresh()
        assert ends == []
        await first.users.revoke("eve", "")
        await second.users.refresh()
        assert ends == ["eve"]
    assert not await second.knows(token)


async def test_unknown_tokens_share_a_read(data: MemoryData) -> None:
    node, alone = Node(data), Node(data, is_shared=False)
    assert not any(await asyncio.gather(*(node.knows(UNKNOWN) for _ in range(50))))
    assert node.store.reads == 1
    for other in ("wrong", UNKNOWN + "x", UNKNOWN[:-1], UNKNOWN.upper(), "kedge_" + "é" * 43):
        assert not await node.knows(other)
    assert node.store.reads == 1, "they are not tokens of users"
    assert not await alone.knows(UNKNOWN)
    assert alone.store.reads == 0


async def test_number_of_users_is_bounded(data: MemoryData, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_users, "USERS_MAX", 2)
    node = Node(data)
    for name in ("a", "b"):
        await node.users.add(name, "owner", "")
    with pytest.raises(Busy, match="There are 2 users"):
        await node.users.add("c", "owner", "")
    assert [user.name for user in await node.store.all()] == ["a", "b"]


async def test_damaged_users_leave_the_owner(data: MemoryData, caplog: pytest.LogCaptureFixture) -> None:
    node = Node(data)
    await node.users.add("eve", "spectator", "")
    again = Node(data)
    again.store.error = StoreDamaged("a page is damaged")
    await again.users.load()
    assert not again.users.has_any
    assert "only the owner has access" in caplog.text
    again.store.error = StoreUnavailable("out of reach")
    with pytest.raises(StoreUnavailable):  # a server without its store does not start
        await again.users.load()
    again.store.error = None
    await again.users.load()
    assert again.users.has_any
