"""The contract of `kedge.store.base`, for every store: removal of workspaces."""

from __future__ import annotations

from typing import Any

import pytest

from kedge.core.records import WorkspaceRecord
from kedge.errors import WorkspaceNotFound
from kedge.store.base import Store
from tests.store.samples import (
    W,
    accepted,
    ask,
    ended,
    events,
    file_version,
    grant,
    lane,
    message,
    run,
    session,
    with_workspace,
)


async def test_removed_workspace_leaves_nothing(store: Store) -> None:
    await with_workspace(store, W, "w2")
    for workspace_id, session_id in ((W, "s1"), (W, "s2"), ("w2", "s3")):
        about: dict[str, Any] = {"session_id": session_id, "workspace_id": workspace_id}
        made = run(f"r-{session_id}", state="ended", **about)
        await store.append(
            events(
                accepted(made.run_id),
                ended(made.run_id),
                **about,
                sessions=(session(session_id, workspace_id),),
                runs=(made,),
                lane=lane(1, 0, session_id),
                messages=tuple(message(f"m{number}-{session_id}", session_id=session_id) for number in range(300)),
                asks=(ask(f"a-{session_id}", **about),),
                grants=(grant(f"g-{session_id}", **about),),
                files=(file_version(f"f-{session_id}", **about),),
            )
        )
    (known, other) = await store.known_workspaces("", 10)
    assert (known.record.id, known.sessions, known.live_runs, known.grants, known.used_at) == (W, 2, 0, 2, 1)
    assert await store.known_workspaces(W, 10) == [other]
    await store.remove_workspace(W)
    assert [record.id for record in await store.workspaces()] == ["w2"]
    assert await store.known_workspace(W) is None
    for call in (store.remove_workspace(W), store.bounds(W), store.append(events(accepted("late")))):
        with pytest.raises(WorkspaceNotFound):
            await call
    again = await store.workspace(known.record.path, WorkspaceRecord("w3", known.record.path, 1, 5))
    assert again.id == "w3", "its path can be used again"
    slices = 0
    while await store.purge():
        slices += 1
    assert slices == 0 or slices > 5, "it is deleted in slices, or at once in memory"
    for session_id in ("s1", "s2"):
        assert await store.messages(session_id, None, 10) == []
        assert await store.runs(session_id, 10) == []
        assert await store.session_asks(session_id) == []
        assert await store.file_versions(W, session_id, None) == []
        assert (await store.lane(session_id))[0].version == 0
    assert await store.grants(W) == []
    assert len(await store.messages("s3", None, 1000)) == 300
    assert len(await store.read("w2", 0, 10)) == 2
    assert not await store.purge()
