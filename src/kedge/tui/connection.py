"""Connection to the server: event stream and requests.

A lost stream resumes from its last Position, without a time limit. The user's own server is started again when it is
gone. Idempotent requests are retried, so a server restart is only a pause.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from kedge.client.client import PAGE_MESSAGES, Client
from kedge.client.event_stream import EventStream, StreamEvent
from kedge.client.local_server import find_or_start, open_workspace
from kedge.client.retry import retry_while_away
from kedge.client.view.workspace_view import WorkspaceView
from kedge.errors import KedgeError
from kedge.wire import models as m

#: How long a request is retried while the server is unreachable; the user waits for it. Seconds.
REQUEST_RETRY_S = 20.0

#: Runs read for a preview, from the end: enough to recognise a session. Items.
PREVIEW_RUNS = 3

#: How long closing waits for the server to detach this client; a slow server must not delay the exit. Seconds.
CLOSE_S = 1.0

T = TypeVar("T")


class ServerConnection:
    def __init__(self, path: str, host: str | None, token: str | None = None) -> None:
        self.client = Client(host, token)
        self.path = os.path.abspath(path)
        #: The user's own server may be started; a server named by `host` may not.
        self.may_start = host is None
        self.workspace: m.WorkspaceBody
        self._stream: EventStream | None = None
        self._reconnect = asyncio.Event()
        self._starting: asyncio.Task[str] | None = None
        #: Why the server could not be started again, such as an invalid configuration file; empty: it was.
        self.start_error = ""

    @property
    def id(self) -> str:
        return self.workspace.id

    @property
    def root(self) -> str:
        """The workspace directory as the server names it, symlinks resolved; before `open`, the local path."""
        return self.workspace.path if self._stream else self.path

    @property
    def at(self) -> int:
        """The Position of the last received event. A response to a later request is at least this new."""
        return (self._stream and self._stream.position) or 0

    async def open(self) -> None:
        """Find or start the server, open the workspace and subscribe to its events."""
        self.workspace = await open_workspace(self.client, self.path, may_start=self.may_start)
        self._stream = self.client.events(self.id, deltas=True, give_up_s=float("inf"))
        await self._stream.connect()

    async def close(self) -> None:
        if self._starting is not None:
            self._starting.cancel()
        if self._stream is not None:
            await self._stream.aclose()
            with suppress(KedgeError, TimeoutError):  # an unreachable server detaches the client after a timeout
                async with asyncio.timeout(CLOSE_S):
                    await self.client.retire()
        await self.client.aclose()

    # --- events -----------------------------------------------------------------------------------------------------

    async def follow(
        self,
        *,
        on_event: Callable[[StreamEvent], None],
        on_connection: Callable[[bool], None],
        on_gap: Callable[[], Awaitable[None]],
        on_lost: Callable[[KedgeError], None],
    ) -> None:
        """Deliver events until the task is cancelled. `on_gap`: events were missed and all state must be reloaded.
        `on_lost`: the stream ended and will not resume."""
        assert self._stream is not None, "open first"
        stream = self._stream

        def connection_changed(is_connected: bool) -> None:
            on_connection(is_connected)
            if not is_connected:
                self._start_server()

        stream.on_connected = connection_changed
        try:
            while True:
                event = await self._next(stream)
                if event is None:
                    await stream.aclose()
                elif event.type == "gap":
                    await on_gap()
                else:
                    on_event(event)
        except KedgeError as error:
            on_lost(error)
        except Exception as error:  # for example a server of another version; without a report the screen would freeze
            on_lost(KedgeError(f"Cannot display an event of the server ({type(error).__name__})"))

    def reconnect(self) -> None:
        """Reconnect the stream. The server then sends each streaming message in full, so that Deltas apply to it."""
        self._reconnect.set()

    async def _next(self, stream: EventStream) -> StreamEvent | None:
        """Return the next event, or None when a reconnect was requested."""
        event = asyncio.ensure_future(anext(stream))
        reconnect = asyncio.ensure_future(self._reconnect.wait())
        try:
            await asyncio.wait({event, reconnect}, return_when=asyncio.FIRST_COMPLETED)
            if event.done():
                return event.result()
            self._reconnect.clear()
            return None
        finally:
            reconnect.cancel()
            if not event.done():
                event.cancel()
                await asyncio.wait({event})  # until its connection is released

    def _start_server(self) -> None:
        if self.may_start and (self._starting is None or self._starting.done()):
            self._starting = asyncio.ensure_future(find_or_start())
            self._starting.add_done_callback(self._started)

    def _started(self, starting: asyncio.Task[str]) -> None:
        error = None if starting.cancelled() else starting.exception()
        self.start_error = error.message if isinstance(error, KedgeError) else ""

    # --- requests ---------------------------------------------------------------------------------------------------

    async def retry(self, call: Callable[[], Awaitable[T]]) -> T:
        """Repeat an idempotent request while the server is unreachable."""
        return await retry_while_away(call, REQUEST_RETRY_S)

    async def load(self, view: WorkspaceView) -> None:
        """Load sessions, live Runs and pending Asks."""
        at, client = self.at, self.client
        view.load_sessions(await self.retry(lambda: client.sessions(self.id)), at)
        live = await self.retry(client.runs)
        view.load_runs([run for run in live if run.workspace_id == self.id], at)
        approvals = await self.retry(lambda: client.permissions(self.id))
        view.load_asks([*approvals, *await self.retry(lambda: client.questions(self.id))])

    async def load_session(self, view: WorkspaceView, session_id: str) -> None:
        """Load the Runs and messages of a session."""
        at, client = self.at, self.client
        # Create the conversation before the requests: events that arrive meanwhile are applied to it.
        view.load_conversation(session_id, [], at)
        await self.load_runs(view, session_id)
        await self.load_files(view, session_id)

        async def messages() -> list[m.MessageBody]:
            return [message async for message in client.all_messages(self.id, session_id)]

        conversation = view.load_conversation(session_id, await self.retry(messages), at)
        if any(entry.body.role == "assistant" and not entry.is_finished for entry in conversation.ordered()):
            self.reconnect()

    async def load_runs(self, view: WorkspaceView, session_id: str) -> None:
        at = self.at
        view.load_runs(await self.retry(lambda: self.client.session_runs(self.id, session_id)), at)

    async def load_files(self, view: WorkspaceView, session_id: str) -> None:
        at = self.at
        view.load_files(session_id, await self.retry(lambda: self.client.changed_files(self.id, session_id)), at)

    async def last_messages(self, session_id: str) -> list[m.MessageBody]:
        """Return the messages of the last Runs. A session without Runs, such as a copy, returns its last messages."""
        runs = await self.retry(lambda: self.client.session_runs(self.id, session_id))
        ends = [run.message_id for run in runs if run.message_id]
        after = ends[-PREVIEW_RUNS - 1] if len(ends) > PREVIEW_RUNS else None

        async def read() -> list[m.MessageBody]:
            last: deque[m.MessageBody] = deque(maxlen=PAGE_MESSAGES)
            async for message in self.client.all_messages(self.id, session_id, after):
                last.append(message)
            return list(last)

        return await self.retry(read)
