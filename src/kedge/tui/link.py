"""The line to the server: follows its events for as long as the screen is there, and asks it for things.

A lost connection is resumed by Position, however long that takes; a server of the user's own that is gone is started
again. Requests that may be repeated are, so that a restart underneath is no more than a pause.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Protocol, TypeVar

from kedge.client.client import Client
from kedge.client.event_stream import EventStream, StreamEvent
from kedge.client.local_server import find_or_start, open_workspace
from kedge.client.retry import RETRY_S_MAX, RETRY_S_MIN
from kedge.errors import KedgeError, Unavailable, Unreachable
from kedge.tui.model import View
from kedge.waiting import backoff_s, retrieve_exception
from kedge.wire import models as m

#: How long somebody waits for a request that finds no server, before being told. Seconds.
INSIST_S = 20.0

#: Who leaves waits so long for the server to take note. Seconds.
LEAVE_S = 1.0

T = TypeVar("T")


class Listener(Protocol):
    """Who is told what comes over the line."""

    def came(self, event: StreamEvent) -> None: ...

    def connected(self, is_connected: bool) -> None: ...

    async def missed(self) -> None:
        """Events were missed: everything has to be read again."""

    def lost(self, error: KedgeError) -> None:
        """There is no way to go on."""


class Link:
    def __init__(self, path: str, host: str | None, token: str | None = None) -> None:
        self.client = Client(host, token)
        self.path = os.path.abspath(path)
        #: The user's own server may be started; one that was named may not.
        self.may_start = host is None
        self.workspace: m.WorkspaceBody
        self._stream: EventStream | None = None
        self._again = asyncio.Event()
        self._reviving: asyncio.Task[str] | None = None

    @property
    def id(self) -> str:
        return self.workspace.id

    @property
    def root(self) -> str:
        """The directory as the server calls it, links resolved; as we do until it has said so."""
        return self.workspace.path if self._stream else self.path

    @property
    def at(self) -> int:
        """The Position up to which everything was told; what is read from now on is of this Position or later."""
        return (self._stream and self._stream.position) or 0

    async def open(self) -> None:
        """Find or start the server, open the directory, and listen from here on."""
        self.workspace = await open_workspace(self.client, self.path, may_start=self.may_start)
        self._stream = self.client.events(self.id, deltas=True, give_up_s=float("inf"))
        await self._stream.connect()

    async def close(self) -> None:
        if self._reviving is not None:
            self._reviving.cancel()
        if self._stream is not None:
            await self._stream.aclose()
            with suppress(KedgeError, TimeoutError):  # a server that is away forgets us by itself
                async with asyncio.timeout(LEAVE_S):
                    await self.client.retire()
        await self.client.aclose()

    # --- events -----------------------------------------------------------------------------------------------------

    async def follow(self, listener: Listener) -> None:
        """Tell everything that happens, until this task is cancelled."""
        assert self._stream is not None, "open first"
        stream = self._stream
        stream.on_connected = lambda is_connected: self._connected(listener, is_connected)
        try:
            while True:
                event = await self._next(stream)
                if event is None:
                    await stream.aclose()
                elif event.type == "gap":
                    await listener.missed()
                else:
                    listener.came(event)
        except KedgeError as error:
            listener.lost(error)
        except (
            Exception
        ) as error:  # of a server of another version, perhaps: better said than a screen that stands still
            listener.lost(KedgeError(f"what the server sent cannot be shown ({type(error).__name__})"))

    def connect_again(self) -> None:
        """The server then tells how the messages stand that are being written, so that Deltas can be added to them."""
        self._again.set()

    async def _next(self, stream: EventStream) -> StreamEvent | None:
        """The next event; None when somebody wants a new connection."""
        coming = asyncio.ensure_future(anext(stream))
        again = asyncio.ensure_future(self._again.wait())
        try:
            await asyncio.wait({coming, again}, return_when=asyncio.FIRST_COMPLETED)
            if coming.done():
                return coming.result()
            self._again.clear()
            return None
        finally:
            again.cancel()
            if not coming.done():
                coming.cancel()
                await asyncio.wait({coming})  # it lets go of its connection

    def _connected(self, listener: Listener, is_connected: bool) -> None:
        listener.connected(is_connected)
        if not is_connected and self.may_start and (self._reviving is None or self._reviving.done()):
            self._reviving = asyncio.ensure_future(find_or_start())
            self._reviving.add_done_callback(retrieve_exception)  # connecting reports the failure

    # --- requests ---------------------------------------------------------------------------------------------------

    async def insist(self, call: Callable[[], Awaitable[T]]) -> T:
        """For what may be asked twice: again and again while the server is away."""
        deadline = asyncio.get_running_loop().time() + INSIST_S
        pauses = backoff_s(RETRY_S_MIN, RETRY_S_MAX)
        while True:
            pause = next(pauses)
            try:
                return await call()
            except (Unreachable, Unavailable):
                if asyncio.get_running_loop().time() + pause > deadline:
                    raise
            await asyncio.sleep(pause)

    async def load(self, view: View) -> None:
        """Sessions, live Runs, and what waits for people."""
        at, client = self.at, self.client
        view.load_sessions(await self.insist(lambda: client.sessions(self.id)), at)
        live = await self.insist(client.runs)
        view.load_runs([run for run in live if run.workspace_id == self.id], at)
        view.skip = await self.insist(lambda: client.skip_permissions(self.id))
        view.load_asks(
            [
                *await self.insist(lambda: client.permissions(self.id)),
                *await self.insist(lambda: client.questions(self.id)),
            ]
        )

    async def load_session(self, view: View, session_id: str) -> None:
        """Its Runs and its messages."""
        at, client = self.at, self.client
        # Open before it is read: what happens meanwhile is told by events.
        view.load_conversation(session_id, [], at)
        view.load_runs(await self.insist(lambda: client.session_runs(self.id, session_id)), at)

        async def messages() -> list[m.MessageBody]:
            return [message async for message in client.all_messages(self.id, session_id)]

        conversation = view.load_conversation(session_id, await self.insist(messages), at)
        if any(entry.body.role == "assistant" and not entry.is_finished for entry in conversation.ordered()):
            self.connect_again()

    async def load_queue(self, view: View, session_id: str) -> None:
        at = self.at
        view.load_runs(await self.insist(lambda: self.client.session_runs(self.id, session_id)), at)
