"""All routes over one engine, as an ASGI application. The simulation serves the same one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kedge.engine.engine import Engine
from kedge.server.asgi import App
from kedge.server.auth import Gate
from kedge.server.relay_routes import RelayRoutes
from kedge.server.routes_agent import AgentRoutes
from kedge.server.routes_approvals import ApprovalRoutes
from kedge.server.routes_extensions import ExtensionRoutes
from kedge.server.routes_jobs import JobRoutes
from kedge.server.routes_nodes import NodeRoutes
from kedge.server.routes_reports import ReportRoutes
from kedge.server.routes_reversals import ReversalRoutes
from kedge.server.routes_system import SystemRoutes
from kedge.server.routes_users import UserRoutes
from kedge.server.routes_web import ListenForWeb, WebRoutes
from kedge.server.routes_workspaces import WorkspaceRoutes
from kedge.server.session_scope import SessionScope
from kedge.server.stream import EventRoutes
from kedge.server.watchdog import Watchdog
from kedge.server.web_page import WebPage

if TYPE_CHECKING:
    from kedge.server.forwarding import Forwarder  # loads an HTTP client


def make_app(
    engine: Engine,
    gate: Gate,
    data_dir: str,
    shut_down: Callable[[], None],
    watchdog: Watchdog | None = None,
    listen: ListenForWeb | None = None,
    cluster: Forwarder | None = None,
) -> App:
    """Return the application. `watchdog` is None for a simulated event loop, `listen` for a simulated network,
    `cluster` for the only server of a store."""
    watchdog = watchdog or Watchdog(lambda: False)
    scope = SessionScope(engine)
    events = EventRoutes(engine)
    system = SystemRoutes(engine, events, data_dir, shut_down, watchdog.stalls)
    workspaces, agent, approvals = WorkspaceRoutes(engine, data_dir), AgentRoutes(engine), ApprovalRoutes(engine, scope)
    routes = [
        *system.routes(),
        *workspaces.routes(),
        *events.routes(),
        *agent.routes(),
        *approvals.routes(),
        *JobRoutes(engine).routes(),
        *ExtensionRoutes(engine).routes(),
        *ReversalRoutes(engine).routes(),
        *WebRoutes(engine, gate, workspaces, listen).routes(),
        *UserRoutes(gate).routes(),
        *ReportRoutes(engine).routes(),
        *NodeRoutes(cluster.node if cluster else None).routes(),
    ]
    system.specs.extend(route.spec for route in routes)
    if cluster is not None:
        cluster.node.streams = lambda: events.open_streams
        cluster.relay_streams(events)
        routes += RelayRoutes(engine, events).routes()
    return App(routes, gate, lambda: engine.is_closing, WebPage(), scope.check, watchdog.notice, cluster)
