"""Streams of workspaces that another node serves.

All readers of this node share one stream of the serving node, a relay, which feeds a Mirror. While that node cannot be
reached, the Mirror is fed from the store. Readers do not notice: their connections stay open, and their events have
neither a gap nor a duplicate. The relay ends when this node serves the workspace, or when no node does and none will.
Its readers then continue from their Positions, at this node or after they have connected again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any, Protocol

import httpx2
import msgspec

from kedge.engine.engine import Engine
from kedge.engine.feed import Reader
from kedge.engine.mirror import Mirror
from kedge.engine.readers import read_mirror
from kedge.engine.workspaces import client_retired
from kedge.errors import ClientRetired, KedgeError, NodeUnreachable, StoreUnavailable
from kedge.server.asgi import STREAMED, HttpRequest, Streamed
from kedge.server.cluster_node import ClusterNode
from kedge.server.relay_frames import FrameBuffer, LogReplaced, take_frame
from kedge.server.relay_routes import NAMED, RELAY_HEARTBEAT_S
from kedge.server.stream import EventRoutes, StreamReply, Subscription
from kedge.store.leases import NodeInfo
from kedge.waiting import wait_uncancelled
from kedge.wire.relay_models import RelayNamed, RelayReader, RelayReaders

log = logging.getLogger("kedge.server")

#: A link that is silent for this time counts as cut: on a busy machine some heartbeats may be late. Seconds.
SILENCE_S = 4 * RELAY_HEARTBEAT_S
#: The pause between two reads of the store, and between two attempts to connect, while the node cannot be reached:
#: text appears that much later. Seconds.
REFRESH_S = 0.5
#: Readers that one request names as new, and as gone: together about 150 bytes, and a body has 64 KiB. Items.
NAMED_MAX = 300


class Link(Protocol):
    """The connection to other nodes (`server/forwarding.py`)."""

    node: ClusterNode

    async def open(self, node: NodeInfo, target: str) -> httpx2.Response: ...

    async def fetch(self, node: NodeInfo, method: str, target: str, body: bytes = b"") -> bytes: ...

    async def unless_dead(self, node: NodeInfo, work: Coroutine[Any, Any, Any]) -> Any: ...


class Refused(Exception):
    """The serving node refuses to stream the workspace, for example since it is not open there."""


class Relays:
    """The relays of one node."""

    def __init__(self, engine: Engine, events: EventRoutes, link: Link) -> None:
        self._engine = engine
        self._events = events
        self._link = link
        self._relays: dict[str, Relay] = {}

    async def close(self) -> None:
        await wait_uncancelled([relay.end() for relay in self._relays.values()])

    async def stream(self, request: HttpRequest, node: NodeInfo) -> Streamed:
        """Send the events of a workspace to a client. Refused, before the first byte, if its node refuses."""
        subscription = Subscription.of(request)
        workspace_id = request.path["id"]
        with self._events.counted():
            async with self._events.stream(request) as stream:
                holder: NodeInfo | None = node
                rest: Subscription | None = subscription
                while rest is not None:
                    try:
                        rest = await self._follow(stream, workspace_id, holder, rest)
                        holder = await self._holder(workspace_id) if rest is not None else None
                    except (KedgeError, Refused):
                        if not stream.is_started:
                            raise
                        break  # the client connects again, and receives the reason
                await stream.end()
        return STREAMED

    async def _follow(
        self, stream: StreamReply, workspace_id: str, holder: NodeInfo | None, subscription: Subscription
    ) -> Subscription | None:
        """Send the events of one reader until its feed ends. Return the subscription to later events; None: the client
        has disconnected, or this node stops."""
        async with AsyncExitStack() as stack:
            opening = stack.enter_async_context(self._reader(workspace_id, holder, subscription))
            reader = await stream.while_connected(opening)
            await stream.follow(reader)
        if stream.is_over or self._engine.is_closing:
            return None
        return msgspec.structs.replace(subscription, after=reader.position)

    async def _holder(self, workspace_id: str) -> NodeInfo | None:
        """Return the other node that serves the workspace; None: this one. Refused if none does."""
        holder = await self._link.node.holder(workspace_id)
        if holder is None and not self._is_here(workspace_id):
            raise Refused("no node serves the workspace")
        return holder

    @asynccontextmanager
    async def _reader(
        self, workspace_id: str, holder: NodeInfo | None, subscription: Subscription
    ) -> AsyncIterator[Reader]:
        """A reader of the workspace, where it is served now."""
        if (workspace := self._engine.workspaces.find(workspace_id)) is not None:
            async with self._events.reader(workspace, subscription) as reader:
                yield reader
            return
        relay = self._relays.get(workspace_id) or await self._start(workspace_id, holder)
        stream_id = self._new_name()
        relay.enter(stream_id, subscription.client_id)
        try:
            await relay.until_entered(stream_id)
            reader = await read_mirror(
                relay.mirror, subscription.after, subscription.session_id, deltas=subscription.deltas
            )
            try:
                yield reader
            finally:
                reader.close()
        finally:
            relay.leave(stream_id)

    async def _start(self, workspace_id: str, node: NodeInfo | None) -> Relay:
        mirror = await self._engine.workspaces.mirror(workspace_id)
        if (relay := self._relays.get(workspace_id)) is None:  # another client may have started it meanwhile
            relay = self._relays[workspace_id] = Relay(
                self._link, mirror, self._is_here, self._ended, self._new_name, node
            )
        return relay

    def _new_name(self) -> str:
        """Return an id that no other node uses."""
        return f"{self._link.node.info.incarnation}-{self._events.new_id()}"

    def _is_here(self, workspace_id: str) -> bool:
        return self._engine.workspaces.find(workspace_id) is not None

    def _ended(self, relay: Relay) -> None:
        if self._relays.get(relay.mirror.workspace_id) is relay:
            del self._relays[relay.mirror.workspace_id]


class Relay:
    """The readers of one workspace, and their common stream of the node that serves it."""

    def __init__(
        self,
        link: Link,
        mirror: Mirror,
        is_here: Callable[[str], bool],
        ended: Callable[[Relay], None],
        new_name: Callable[[], str],
        node: NodeInfo | None,
    ) -> None:
        """`node`: the node that serves the workspace, if one does."""
        self._link = link
        self._new_name = new_name
        self.mirror = mirror
        self._is_here = is_here
        self._ended = ended
        #: stream_id -> client_id
        self._readers: dict[str, str] = {}
        #: stream_id -> done when the serving node has the reader, and the mirror has everything that it sent before; or
        #: when that node cannot be reached.
        self._entering: dict[str, asyncio.Future[None]] = {}
        #: Number of a request to the serving node -> the readers that it has named.
        self._named: dict[int, list[RelayReader]] = {}
        self._changed = asyncio.Event()
        self._is_cut = False
        self._was_live = False
        self._refreshing: asyncio.Task[None] | None = None
        #: As of the last refresh.
        self._has_live_runs = True
        self._task = asyncio.get_running_loop().create_task(self._run(node))

    def end(self) -> asyncio.Task[None]:
        self._task.cancel()
        return self._task

    # --- readers -------------------------------------------------------------------------------------------------

    def enter(self, stream_id: str, client_id: str) -> None:
        self._readers[stream_id] = client_id
        entering = self._entering[stream_id] = asyncio.get_running_loop().create_future()
        if self._is_cut:
            entering.set_result(None)
        self._changed.set()

    async def until_entered(self, stream_id: str) -> None:
        await self._entering[stream_id]

    def leave(self, stream_id: str) -> None:
        self._readers.pop(stream_id, None)
        self._entering.pop(stream_id).cancel()
        self._changed.set()
        if not self._readers:
            self._ended(self)
            self._task.cancel()

    # --- the stream of the serving node --------------------------------------------------------------------------

    async def _run(self, node: NodeInfo | None) -> None:
        try:
            while not self._is_here(self.mirror.workspace_id):
                if node is not None:
                    await self._follow(node)
                self._cut()
                with suppress(StoreUnavailable):
                    node = await self._link.node.holder(self.mirror.workspace_id)
                if node is None and not self._has_live_runs:
                    break  # no node serves it, and none will take it over
                await asyncio.sleep(REFRESH_S)
                if self._refreshing is not None and self._refreshing.done():
                    self._refreshing.result()  # its error: the readers would wait for ever
        except Refused as refused:
            self._refuse(refused)
        except LogReplaced:
            pass  # the readers connect again, and receive a gap
        except Exception:  # a boundary: the readers connect again
            log.exception("the relay of workspace %s has failed", self.mirror.workspace_id)
        finally:
            self._ended(self)
            await self._stop_refreshing()
            self._refuse(Refused("the relay has ended"))
            self.mirror.close()

    async def _follow(self, node: NodeInfo) -> None:
        """Feed the mirror from the stream of a node until the stream ends or fails."""
        workspace_id = self.mirror.workspace_id
        target = f"/v1/workspaces/{workspace_id}/relays/{self._new_name()}"
        try:
            async with asyncio.timeout(SILENCE_S):
                response = await self._link.open(node, f"{target}?after={self.mirror.head}")
            try:
                self._check(response.status_code)
                await self._stop_refreshing()
                if self._is_cut:
                    log.info("workspace %s is streamed by node %s again", workspace_id, node.name)
                self._is_cut, self._was_live = False, True
                await _until_first(
                    self._link.unless_dead(node, self._receive(response)), self._name_readers(node, target)
                )
            finally:
                await response.aclose()
        except (NodeUnreachable, StoreUnavailable, httpx2.TransportError, TimeoutError) as error:
            if not self._is_cut:
                reason = str(error) or "it is silent"
                log.warning("workspace %s cannot be streamed by node %s: %s", workspace_id, node.name, reason)

    def _check(self, status: int) -> None:
        if status == 200:
            return
        if status in (429, 503) and (self._was_live or self._is_cut):
            raise NodeUnreachable(f"status {status}")
        raise Refused(f"status {status}")

    async def _receive(self, response: httpx2.Response) -> None:
        buffer, received = FrameBuffer(), response.aiter_raw()
        while True:
            async with asyncio.timeout(SILENCE_S):
                data = await anext(received, None)
            if data is None:
                return
            for frame in buffer.add(data):
                if frame.startswith(NAMED):
                    self._enter_named(msgspec.json.decode(frame.removeprefix(NAMED), type=RelayNamed))
                else:
                    take_frame(self.mirror, frame)
            self.mirror.flush_due()

    async def _name_readers(self, node: NodeInfo, target: str) -> None:
        """Report the readers to the node, which holds the workspace for their clients."""
        named: set[str] = set()
        number = 0
        self._named.clear()
        while True:
            self._changed.clear()
            opened = [RelayReader(*one) for one in self._readers.items() if one[0] not in named][:NAMED_MAX]
            closed = [stream_id for stream_id in named if stream_id not in self._readers][:NAMED_MAX]
            if not (opened or closed):
                await self._changed.wait()
                continue
            number += 1
            self._named[number] = opened
            body = msgspec.json.encode(RelayReaders(number, opened, closed))
            await self._link.fetch(node, "POST", f"{target}/readers", body)
            named = (named | {one.stream_id for one in opened}) - set(closed)

    def _enter_named(self, answer: RelayNamed) -> None:
        for one in self._named.pop(answer.number, ()):
            self._settle(one.stream_id, client_retired(one.client_id) if one.stream_id in answer.retired else None)

    def _settle(self, stream_id: str, error: ClientRetired | Refused | None = None) -> None:
        entering = self._entering.get(stream_id)
        if entering is None or entering.done():
            return
        if error is None:
            entering.set_result(None)
        else:
            entering.set_exception(error)
            entering.exception()  # its reader may be gone

    def _refuse(self, error: Refused) -> None:
        for stream_id in self._entering:
            self._settle(stream_id, error)

    # --- while the node cannot be reached ------------------------------------------------------------------------

    def _cut(self) -> None:
        """Start to feed the mirror from the store."""
        self._is_cut = True
        for stream_id in self._entering:
            self._settle(stream_id)
        if self._refreshing is None:
            self._refreshing = asyncio.get_running_loop().create_task(self._refresh())

    async def _refresh(self) -> None:
        while True:
            with suppress(StoreUnavailable):
                self._has_live_runs = await self.mirror.refresh()
            await asyncio.sleep(REFRESH_S)

    async def _stop_refreshing(self) -> None:
        refreshing, self._refreshing = self._refreshing, None
        if refreshing is not None:
            refreshing.cancel()
            await wait_uncancelled([refreshing])


async def _until_first(*coroutines: Coroutine[Any, Any, Any]) -> None:
    """Run coroutines until the first ends, and raise its error. The others are cancelled."""
    tasks = [asyncio.get_running_loop().create_task(coroutine) for coroutine in coroutines]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done():
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await wait_uncancelled(tasks)
