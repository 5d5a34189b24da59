"""Requests that another node of the cluster has to serve: they are sent there, and the reply is passed on as it comes.

The first node authenticates the client and checks its rights. It vouches for the request and its user with a signature,
which the cluster's secret makes: the second node does not see the client's token. A request is forwarded once.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import time
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from typing import Any

import httpx2
import msgspec
from msgspec import Struct

from kedge.engine.engine import Engine
from kedge.errors import Invalid, KedgeError, NodeUnreachable, Starting, Unauthorized
from kedge.server.asgi import STREAMED, HttpRequest, Scope, Send, Streamed, target_of
from kedge.server.auth import NODE_SCHEME
from kedge.server.cluster_node import ClusterNode
from kedge.server.relay import Refused, Relays
from kedge.server.relay_routes import RELAY_PATH
from kedge.server.stream import EventRoutes, EventsQuery
from kedge.store.leases import NodeInfo
from kedge.waiting import retrieve_exception
from kedge.wire.openapi import RouteSpec

log = logging.getLogger("kedge.server")

#: How far the clocks of two nodes may differ, and for how long a signature is valid. Seconds.
SIGNATURE_S = 60
#: Nodes are near each other. Seconds.
CONNECT_S_MAX = 3.0
#: Time for the part of one node in a list of all nodes. Seconds.
PART_S_MAX = 3.0
#: Connections to one node: each workspace with readers here has one. Items.
CONNECTIONS_MAX = 2_000
SECRET_CHARS_MIN = 32
#: Headers of a client that its request keeps.
_KEPT = (b"content-type", b"accept", b"last-event-id")
#: Headers of a reply that belong to one connection.
_HOP = (b"connection", b"keep-alive", b"transfer-encoding")


class ClusterSecret(Struct, frozen=True):
    """The secret that all nodes of a cluster share."""

    key: bytes

    @classmethod
    def of(cls, text: str) -> ClusterSecret:
        if len(text) < SECRET_CHARS_MIN:
            raise Invalid(f"KEDGE_CLUSTER_SECRET must have at least {SECRET_CHARS_MIN} characters.")
        return cls(hashlib.sha256(b"kedge nodes\0" + text.encode()).digest())

    @property
    def cluster_id(self) -> str:
        """Identifies the cluster in its database, without revealing the secret."""
        return hmac.new(self.key, b"cluster id", "sha256").hexdigest()[:32]

    def sign(self, node: str, user: str, method: str, target: str, now_s: int) -> str:
        return f"{NODE_SCHEME.decode()}{now_s}:{node}:{user}:{self._mac(node, user, method, target, now_s)}"

    def verify(self, header: str, method: str, target: str, now_s: int) -> tuple[str, str]:
        """Return the name of the node that signed this request, and of its user; empty: the owner or a browser."""
        try:
            stamp, node, user, mac = header.removeprefix(NODE_SCHEME.decode()).split(":")
            signed_s = int(stamp)
        except ValueError:
            raise Unauthorized("This is not a valid signature of a node.") from None
        # As bytes: texts must be ASCII, and a client may send any header.
        if not hmac.compare_digest(mac.encode(), self._mac(node, user, method, target, signed_s).encode()):
            raise Unauthorized("The signature of the node is wrong: all nodes need the same KEDGE_CLUSTER_SECRET.")
        if abs(now_s - signed_s) > SIGNATURE_S:
            raise Unauthorized(f"The clocks of the nodes differ by more than {SIGNATURE_S} s; synchronise them.")
        return node, user

    def _mac(self, node: str, user: str, method: str, target: str, now_s: int) -> str:
        text = f"{now_s}\n{node}\n{user}\n{method}\n{target}"
        return hmac.new(self.key, text.encode(), "sha256").hexdigest()


class Forwarder:
    """The requests of one node to the others. `connect` returns the transport to the URL of a node."""

    def __init__(
        self,
        engine: Engine,
        node: ClusterNode,
        secret: ClusterSecret | None,
        connect: Callable[[str], httpx2.AsyncBaseTransport] | None = None,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._engine = engine
        self.node = node
        self._secret = secret
        self._connect = connect or _transport
        self._now_s = now_s
        self._clients: dict[str, httpx2.AsyncClient] = {}
        #: The streams of workspaces that other nodes serve; set by `relay_streams`.
        self.relays: Relays | None = None

    async def close(self) -> None:
        if self.relays is not None:
            await self.relays.close()
        for client in self._clients.values():
            await client.aclose()

    def relay_streams(self, events: EventRoutes) -> None:
        """Let the readers of this node share one stream per workspace."""
        self.relays = Relays(self._engine, events, self)

    def verify(self, header: str, method: str, target: str) -> tuple[str, str]:
        if self._secret is None:
            raise Unauthorized("This node has no KEDGE_CLUSTER_SECRET and accepts no requests of other nodes.")
        verified = self._secret.verify(header, method, target, int(self._now_s()))
        self._check_sure()
        return verified

    async def serving(self, spec: RouteSpec, path: dict[str, str]) -> NodeInfo | None:
        self._check_sure()
        if not spec.path.startswith("/workspaces/{id}") or self._engine.workspaces.find(path["id"]) is not None:
            return None
        if spec.path.startswith(RELAY_PATH):
            return None  # a client's request, which must not arrive as that of a node
        return await self.node.holder(path["id"])

    def _check_sure(self) -> None:
        if not self.node.is_sure:
            raise Starting("This node was paused or has lost its database; it starts again. Try again in a moment.")

    def guarded(self, scope: Scope, send: Send) -> Send:
        """Return a `send` that drops the connection once this node is not sure of its leases. A process that was
        paused has stale texts in memory, and may run for a moment before it restarts: a client must not show them."""

        async def sending(message: MutableMapping[str, Any]) -> None:
            if self.node.is_sure:
                await send(message)
            else:
                scope["kedge.abort"]()

        return sending

    async def named(self, name: str) -> NodeInfo:
        return await self.node.by_name(name)

    async def forward(self, request: HttpRequest, node: NodeInfo, body: bytes) -> Streamed:
        """Send a request to its node, and the reply to the client. Event streams are relayed instead."""
        if self.relays is not None and isinstance(request.query, EventsQuery):
            with suppress(Refused):  # the client receives the refusal itself
                return await self.relays.stream(request, node)
        scope = request.scope
        headers = [(name, value) for name, value in request.headers if name in _KEPT]
        sending = self._send(node, request.asker.user, scope["method"], target_of(scope), headers, body)
        response = await request.while_connected(sending)
        try:
            await request.while_connected(self.unless_dead(node, _pass_on(request, response)))
        except (httpx2.TransportError, NodeUnreachable) as error:
            # The status has been sent: the only way left to report an error is to drop the connection.
            log.warning("a reply of node %s was cut off: %s", node.name, error)
            scope["kedge.abort"]()
        finally:
            await response.aclose()
        return STREAMED

    async def merged(self, request: HttpRequest, spec: RouteSpec, reply: Any) -> Any:
        """Return the reply of all live nodes. One that does not answer in time is left out."""
        method, target = request.scope["method"], target_of(request.scope)
        user = request.asker.user
        replies = await asyncio.gather(*(self._part(node, user, method, target) for node in self.node.others))
        if not spec.merged_by:
            return reply
        items = [msgspec.json.decode(msgspec.json.encode(item)) for item in reply]
        items += [item for part in replies for item in part]
        limit = getattr(request.query, "limit", None)
        return sorted(items, key=lambda item: str(item[spec.merged_by]))[:limit]

    async def _part(self, node: NodeInfo, user: str, method: str, target: str) -> list[dict[str, Any]]:
        try:
            async with asyncio.timeout(PART_S_MAX):
                part = msgspec.json.decode(await self.fetch(node, method, target, user=user))
        except (KedgeError, httpx2.TransportError, TimeoutError, msgspec.DecodeError) as error:
            log.warning("node %s did not answer %s %s: %s", node.name, method, target, str(error) or "no answer")
            return []
        return part if isinstance(part, list) else []

    async def open(self, node: NodeInfo, target: str) -> httpx2.Response:
        """Return the reply of a node to a GET, before its body."""
        return await self._send(node, "", "GET", target, [], b"")

    async def fetch(self, node: NodeInfo, method: str, target: str, body: bytes = b"", user: str = "") -> bytes:
        """Return the body of a node's reply. NodeUnreachable if it has another status than 200."""
        headers = [(b"content-type", b"application/json")] if body else []
        response = await self._send(node, user, method, target, headers, body)
        try:
            reply = await self.unless_dead(node, response.aread())
        finally:
            await response.aclose()
        if response.status_code != 200:
            raise NodeUnreachable(f"Node {node.name} answered {method} {target} with status {response.status_code}.")
        return bytes(reply)

    async def _send(
        self, node: NodeInfo, user: str, method: str, target: str, headers: list[tuple[bytes, bytes]], body: bytes
    ) -> httpx2.Response:
        if not node.url or self._secret is None:
            missing = "--node-url" if self._secret else "KEDGE_CLUSTER_SECRET"
            raise NodeUnreachable(f"Node {node.name} serves this, and requests cannot be forwarded without {missing}.")
        client = self._clients.get(node.url)
        if client is None:
            client = self._clients[node.url] = httpx2.AsyncClient(
                transport=self._connect(node.url), base_url=node.url, trust_env=False
            )
        request = client.build_request(
            method,
            target,
            headers=[*headers, (b"accept-encoding", b"identity")],
            content=body or None,
            timeout=httpx2.Timeout(None, connect=CONNECT_S_MAX, pool=CONNECT_S_MAX),
        )
        # The target as it is sent: the library may encode characters of it.
        sent = request.url.raw_path.decode("latin-1")
        signature = self._secret.sign(self.node.info.name, user, method, sent, int(self._now_s()))
        request.headers["authorization"] = signature
        sending = asyncio.ensure_future(client.send(request, stream=True))
        try:
            response: httpx2.Response = await self.unless_dead(node, sending)
        except httpx2.TransportError as error:
            raise NodeUnreachable(
                f"Node {node.name} serves this and cannot be reached ({type(error).__name__}). Try again."
            ) from None
        except asyncio.CancelledError:
            if sending.done() and not sending.cancelled() and sending.exception() is None:
                await sending.result().aclose()  # an unread stream would hold its workspace open
            raise
        return response

    async def unless_dead(self, node: NodeInfo, work: Awaitable[Any]) -> Any:
        """Return the result of `work`. NodeUnreachable once the node is known to be dead: it may only be stopped, and
        keep its connections."""
        task, death = asyncio.ensure_future(work), self.node.death_of(node)
        task.add_done_callback(retrieve_exception)  # this request may end before it
        try:
            await asyncio.wait({task, death}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise NodeUnreachable(f"Node {node.name} was lost during the request. Try again.")
            return task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task})


async def _pass_on(request: HttpRequest, response: httpx2.Response) -> None:
    headers = [(name.lower(), value) for name, value in response.headers.raw if name.lower() not in _HOP]
    await request.send({"type": "http.response.start", "status": response.status_code, "headers": headers})
    is_stream = response.headers.get("content-type", "").startswith("text/event-stream")
    async for data in response.aiter_raw():
        await request.send({"type": "http.response.body", "body": data, "more_body": True})
        if is_stream:
            await request.scope["kedge.drain"]()
    await request.send({"type": "http.response.body", "body": b""})


def _transport(url: str) -> httpx2.AsyncBaseTransport:
    limits = httpx2.Limits(max_connections=CONNECTIONS_MAX, max_keepalive_connections=20)
    return httpx2.AsyncHTTPTransport(verify=url.startswith("https:"), trust_env=False, limits=limits)
