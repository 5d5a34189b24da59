"""The serving node's side of a relay: one stream to another node, on behalf of all its readers.

The readers count as clients of this node: they hold the workspace, and a Run with `on_disconnect: cancel` is cancelled
when they have left. The other node names them, and all of them leave when its stream ends. Only nodes may use these
routes, so they are not in the reference.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
from msgspec import Struct

from kedge.engine.engine import Engine
from kedge.engine.feed import Reader
from kedge.engine.workspace import Workspace
from kedge.errors import ClientRetired, Forbidden, Invalid
from kedge.server.asgi import STREAMED, HttpRequest, Route, Streamed, route
from kedge.server.stream import EventRoutes, StreamReply
from kedge.wire import models as m
from kedge.wire.relay_models import RelayNamed, RelayReaders, RelaySession

#: The interval of heartbeats between nodes: a link that is silent for longer is cut. Seconds.
RELAY_HEARTBEAT_S = 2.0
#: Lines of the stream besides its events: the state of the sessions that is in no store, and the answer to a request
#: that has named readers.
SESSIONS, NAMED = b": sessions ", b": named "
#: A relay, below /v1.
RELAY_PATH = "/workspaces/{id}/relays/{relay_id}"


class RelayQuery(Struct):
    after: int


@dataclass(slots=True)
class _Relay:
    workspace: Workspace
    reader: Reader
    #: stream_id -> client_id
    readers: dict[str, str] = field(default_factory=dict)


class RelayRoutes:
    def __init__(self, engine: Engine, events: EventRoutes) -> None:
        self._engine = engine
        self._events = events
        self._relays: dict[str, _Relay] = {}

    async def stream(self, request: HttpRequest) -> Streamed:
        """Send all events after a Position. The first line has the state of the sessions that is in no store."""
        _check_is_node(request)
        workspace, relay_id = self._engine.workspaces.get(request.path["id"]), request.path["relay_id"]
        with self._events.counted():
            reader = await workspace.feed.reader(request.query.after, None, deltas=True)
            relay = self._relays[relay_id] = _Relay(workspace, reader)
            try:
                async with StreamReply(request, RELAY_HEARTBEAT_S) as stream:
                    await stream.follow(reader, SESSIONS + msgspec.json.encode(_sessions(workspace)) + b"\n\n")
                    await stream.end()
            finally:
                reader.close()
                del self._relays[relay_id]
                for stream_id in list(relay.readers):
                    self._leave(relay, stream_id)
        return STREAMED

    async def readers(self, request: HttpRequest) -> m.Ok:
        _check_is_node(request)
        body: RelayReaders = request.body
        relay = self._relays.get(request.path["relay_id"])
        if relay is None:
            raise Invalid("This relay has no stream.")
        retired: list[str] = []
        for stream_id in body.closed:
            self._leave(relay, stream_id)
        for one in body.opened:
            try:
                self._engine.workspaces.stream_opened(relay.workspace, one.client_id, one.stream_id)
            except ClientRetired:
                retired.append(one.stream_id)
            else:
                relay.readers[one.stream_id] = one.client_id
        # In the stream, so that the other node first receives everything that this one has sent to any reader.
        named = msgspec.json.encode(RelayNamed(body.number, retired))
        relay.workspace.feed.mark(relay.reader, NAMED + named + b"\n\n")
        return m.Ok()

    def _leave(self, relay: _Relay, stream_id: str) -> None:
        client_id = relay.readers.pop(stream_id, None)
        if client_id is not None and not self._engine.is_closing:
            self._engine.workspaces.stream_closed(relay.workspace, client_id, stream_id)

    def routes(self) -> list[Route]:
        return [
            route(
                "GET",
                RELAY_PATH,
                self.stream,
                "Stream the events of a workspace to another node",
                query=RelayQuery,
                media_type="text/event-stream",
                declared_access="owner",
            ),
            route(
                "POST",
                f"{RELAY_PATH}/readers",
                self.readers,
                "Name the readers of another node",
                body=RelayReaders,
                reply=m.Ok,
                declared_access="owner",
            ),
        ]


def _check_is_node(request: HttpRequest) -> None:
    if not request.asker.node:
        raise Forbidden("Only nodes of the cluster may do this.")


def _sessions(workspace: Workspace) -> list[RelaySession]:
    ids = {*workspace.current.values(), *(lane.session.id for lane in workspace.lanes.values() if lane.has_kept)}
    return [
        RelaySession(
            id_,
            workspace.attached_clients(id_),
            [one.id for one in workspace.lanes[id_].own_kept.values() if one.is_running]
            if id_ in workspace.lanes
            else [],
        )
        for id_ in sorted(ids)
    ]
