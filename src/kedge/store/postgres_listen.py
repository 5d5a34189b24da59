"""Wake-ups between the processes of one PostgreSQL database: hints that workspaces are free for another node.

Log entries need none: one node serves a workspace, and publishes them itself.

A wake-up is sent after the commit, in a transaction of its own, which writes nothing: PostgreSQL commits transactions
with a NOTIFY one after the other, and these are short. Wake-ups may be lost with a process or a connection. So the
callback also gets an empty set after each new connection, and callers also poll slowly.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable

from kedge.store.postgres_connect import PostgresConnection
from kedge.store.postgres_pool import Connections, Tasks

log = logging.getLogger("kedge.store")

#: The longest list of workspaces in a notification; PostgreSQL allows 7,999. Bytes.
PAYLOAD_BYTES_MAX = 7_000
#: The pauses between two attempts to connect. Seconds.
_BACKOFF_S, _BACKOFF_S_MAX = 0.1, 5.0
#: The time between two checks that the connection still answers. Seconds.
_CHECK_EACH_S = 10.0


class Wakeups:
    """Sends the ids of released workspaces, as many as possible in one notification."""

    def __init__(self, tasks: Tasks, connections: Connections, channel: str) -> None:
        self._tasks, self._connections, self._channel = tasks, connections, channel
        self._changed: set[str] = set()
        self._is_sending = False

    def add(self, workspace_ids: Iterable[str]) -> None:
        self._changed.update(workspace_ids)
        if self._changed and not self._is_sending:
            self._is_sending = True
            self._tasks.start(self._send())

    async def _send(self) -> None:
        try:
            while self._changed:
                async with self._connections.use() as db:
                    text, self._changed = payload(self._changed), set()
                    await db.execute("SELECT pg_notify($1, $2)", self._channel, text)
        except Exception as error:  # a lost hint; the listeners look at all workspaces from time to time
            log.debug("a wake-up was not sent: %s", type(error).__name__)
        finally:
            self._is_sending = False


def payload(workspace_ids: Iterable[str]) -> str:
    """Return the text of a notification; empty, which means all workspaces, if the ids do not fit."""
    text = "\n".join(sorted(workspace_ids))
    return text if len(text.encode()) <= PAYLOAD_BYTES_MAX and "\0" not in text else ""


class WakeupListener:
    """Calls back with the workspaces of each notification; with an empty set for all, and after each connection."""

    def __init__(self, connect: Callable[[], Awaitable[PostgresConnection]], channel: str) -> None:
        self._connect, self._channel = connect, channel
        self._task: asyncio.Task[None] | None = None

    def start(self, callback: Callable[[frozenset[str]], None]) -> None:
        assert self._task is None, "one listener is enough"
        self._task = asyncio.create_task(self._run(callback))

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _run(self, callback: Callable[[frozenset[str]], None]) -> None:
        pause_s = _BACKOFF_S
        while True:
            try:
                db = await self._connect()
                pause_s = _BACKOFF_S
                try:
                    await self._listen(db, callback)
                finally:
                    db.end()
            except Exception as error:  # whatever it is, another connection may work
                log.debug("no wake-ups: %s", type(error).__name__)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _BACKOFF_S_MAX)

    async def _listen(self, db: PostgresConnection, callback: Callable[[frozenset[str]], None]) -> None:
        """Return when the connection has ended."""
        ended = asyncio.Event()
        db.on_end(ended.set)
        await db.listen(self._channel, lambda text: callback(frozenset(text.split("\n")) if text else frozenset()))
        # Notifications before this moment are lost.
        callback(frozenset())
        while not ended.is_set():
            try:
                async with asyncio.timeout(_CHECK_EACH_S):
                    await ended.wait()
            except TimeoutError:
                await db.execute("SELECT 1")
