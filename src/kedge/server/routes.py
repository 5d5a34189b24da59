"""All routes over one engine, as an ASGI application. The simulation serves the same one."""

from __future__ import annotations

from collections.abc import Callable

from kedge.engine.engine import Engine
from kedge.server.asgi import App
from kedge.server.auth import Gate
from kedge.server.routes_agent import AgentRoutes
from kedge.server.routes_approvals import ApprovalRoutes
from kedge.server.routes_jobs import JobRoutes
from kedge.server.routes_reversals import ReversalRoutes
from kedge.server.routes_system import SystemRoutes
from kedge.server.routes_workspaces import WorkspaceRoutes
from kedge.server.stream import EventRoutes
from kedge.server.watchdog import Watchdog


def make_app(
    engine: Engine, gate: Gate, data_dir: str, shut_down: Callable[[], None], watchdog: Watchdog | None = None
) -> App:
    """Return the application. `watchdog` is None for a simulated event loop."""
    watchdog = watchdog or Watchdog(lambda: False)
    events = EventRoutes(engine)
    system = SystemRoutes(engine, events, data_dir, shut_down, watchdog.stalls)
    workspaces, agent, approvals = WorkspaceRoutes(engine, data_dir), AgentRoutes(engine), ApprovalRoutes(engine)
    routes = [
        *system.routes(),
        *workspaces.routes(),
        *events.routes(),
        *agent.routes(),
        *approvals.routes(),
        *JobRoutes(engine).routes(),
        *ReversalRoutes(engine).routes(),
    ]
    system.specs.extend(route.spec for route in routes)
    return App(routes, gate, lambda: engine.is_closing, watchdog.notice)
