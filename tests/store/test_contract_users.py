"""The contract of `kedge.store.base`, for every store: users and audit entries."""

from __future__ import annotations

import pytest

from kedge.core import audit
from kedge.core.audit import AuditEntry
from kedge.core.users import UserRecord
from kedge.errors import StoreError, UserExists, UserNotFound, WrongType
from kedge.store.base import Store
from tests.store.conftest import StoreData
from tests.store.samples import W, ended, events, lane, run, with_workspace

EVE, BOB = UserRecord("eve", "collaborator", "e" * 64, 5), UserRecord("Bob", "owner", "b" * 64, 2**40)
ADDED, REVOKED = AuditEntry(5, "", "add_user", detail="eve"), AuditEntry(6, "Bob", "revoke_user", detail="eve")


def entry(number: int, author: str = "eve", workspace_id: str = W) -> AuditEntry:
    return AuditEntry(number, author, "submit", workspace_id, "s1", f"r{number}", "a detail \0 é")


async def entries(store: Store) -> list[AuditEntry]:
    listed, before = await store.users.audit(1000)
    assert before == 0
    return listed


async def test_users_are_listed_by_name_and_kept(store: Store, data: StoreData) -> None:
    assert await store.users.all() == []
    await store.users.add(EVE, ADDED)
    await store.users.add(BOB, AuditEntry(1, "", "add_user"))
    assert await store.users.all() == [BOB, EVE]
    await store.close()
    store = await data.open()
    assert await store.users.all() == [BOB, EVE]
    await store.users.remove("eve", REVOKED)
    assert await store.users.all() == [BOB]
    assert await entries(store) == [REVOKED, AuditEntry(1, "", "add_user"), ADDED]


async def test_refused_change_of_a_user_changes_nothing(store: Store) -> None:
    await store.users.add(EVE, ADDED)
    with pytest.raises(UserExists, match="kedge users revoke eve"):
        await store.users.add(UserRecord("eve", "owner", "x" * 64, 6), REVOKED)
    with pytest.raises(UserNotFound, match="User Eve not found"):
        await store.users.remove("Eve", REVOKED)
    with pytest.raises(WrongType):
        await store.users.add(UserRecord("bob", "owner", "y" * 64, 6), AuditEntry(1, "", "add_user", detail="\ud800"))
    assert await store.users.all() == [EVE]
    assert await entries(store) == [ADDED]


async def test_audit_is_stored_with_its_write(store: Store) -> None:
    await with_workspace(store)
    await store.append(events(lane=lane(1, 0), audit=(entry(1), entry(2))))
    with pytest.raises(StoreError):  # the Lane has another version
        await store.append(events(lane=lane(2, 0), audit=(entry(3),)))
    with pytest.raises(StoreError, match="a record of workspace w2"):
        await store.append(events(audit=(entry(4, workspace_id="w2"),)))
    assert await entries(store) == [entry(2), entry(1)]


async def test_audit_is_read_in_pages_newest_first(store: Store) -> None:
    await with_workspace(store, W, "w2")
    for number in range(1, 7):
        owner = "w2" if number == 6 else W
        made = entry(number, "eve" if number % 2 else "", owner)
        await store.append(events(audit=(made,), workspace_id=owner))

    async def pages(limit: int, **selected: str) -> list[list[int]]:
        result: list[list[int]] = []
        before = 0
        while not result or before:
            page, before = await store.users.audit(limit, before, **selected)
            result.append([one.at for one in page])
        return result

    assert await pages(4) == [[6, 5, 4, 3], [2, 1]]
    assert await pages(2, author="eve") == [[5, 3], [1]]
    assert await pages(9, author="") == [[6, 4, 2]]
    assert await pages(9, author="", workspace_id="w2") == [[6]]
    assert await pages(9, author="unknown") == [[]]
    assert await store.users.audit(9, 2**50) == (await entries(store), 0)


async def test_latest_audit_entries_are_kept(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "AUDIT_MAX", 3)
    await with_workspace(store)
    await store.append(events(audit=tuple(entry(number) for number in range(1, 3))))
    await store.append(events(audit=tuple(entry(number) for number in range(3, 5))))
    assert [one.at for one in await entries(store)] == [4, 3, 2]
    await store.users.add(EVE, ADDED)
    assert [one.at for one in await entries(store)] == [5, 4, 3]


async def test_audit_outlives_session_and_workspace(store: Store) -> None:
    await with_workspace(store)
    await store.append(events(ended(), runs=(run(state="ended"),), audit=(entry(1),)))
    await store.append(events(deleted_sessions=("s1",)))
    await store.remove_workspace(W, (entry(2),))
    while await store.purge():
        pass
    assert await entries(store) == [entry(2), entry(1)]
