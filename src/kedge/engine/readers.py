"""Readers of a feed, which first receive the pending Asks."""

from __future__ import annotations

from kedge.core.events import Asked
from kedge.engine.feed import Feed, Reader
from kedge.engine.mirror import Mirror
from kedge.errors import SessionNotFound
from kedge.store.base import Store


async def read_feed(feed: Feed, store: Store, after: int | None, session_id: str | None, *, deltas: bool) -> Reader:
    """Return a reader that first receives the pending Asks."""
    reader = await feed.reader(after, session_id, deltas=deltas)
    try:
        # After the reader's start, so that no Ask is missed; one put meanwhile may be sent twice.
        asks = await store.asks(feed.workspace_id)
    except BaseException:
        reader.close()
        raise
    for ask in asks:
        if session_id in (None, ask.session_id):
            data = feed.encoder.encode(None, ask.session_id, Asked(ask.run_id, ask.id), {"ask": {ask.id: ask}})
            reader.hold(feed.shared(ask.id, data))
    return reader


async def read_mirror(mirror: Mirror, after: int | None, session_id: str | None, *, deltas: bool) -> Reader:
    """Return a reader of a workspace that another node serves."""
    if session_id and after is None and await mirror.store.session(mirror.workspace_id, session_id) is None:
        raise session_not_found(mirror.workspace_id, session_id)
    return await read_feed(mirror, mirror.store, after, session_id, deltas=deltas)


def session_not_found(workspace_id: str, session_id: str) -> SessionNotFound:
    return SessionNotFound(
        f"Session {session_id} not found in workspace {workspace_id}. List sessions with: kedge sessions list"
    )
