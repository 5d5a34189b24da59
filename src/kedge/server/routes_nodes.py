"""The route that lists the nodes of the cluster."""

from __future__ import annotations

from kedge.server.asgi import HttpRequest, Route, route
from kedge.server.cluster_node import ClusterNode
from kedge.wire.cluster_models import NodeBody


class NodeRoutes:
    """`node` is None for the only server of a store."""

    def __init__(self, node: ClusterNode | None) -> None:
        self._node = node

    async def nodes(self, request: HttpRequest) -> list[NodeBody]:
        if self._node is None:
            return []
        own = self._node.info.incarnation
        return [
            NodeBody(
                name=state.info.name,
                url=state.info.url,
                roots=list(state.info.roots),
                state="live" if state.is_alive else "lost",
                is_this=state.info.incarnation == own,
                started_at=state.started_at,
                live_runs=state.load.live_runs,
                workspaces=state.workspaces,
                streams=state.load.streams,
            )
            for state in await self._node.nodes()
        ]

    def routes(self) -> list[Route]:
        summary = "List the nodes of the cluster; none, if the server is alone"
        return [route("GET", "/nodes", self.nodes, summary, reply=list[NodeBody])]
