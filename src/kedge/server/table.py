"""The whole route table over one engine, as every server has it: on sockets, or in a simulation."""

from __future__ import annotations

from collections.abc import Callable

from kedge.engine.engine import Engine
from kedge.server.app import App
from kedge.server.auth import Gate
from kedge.server.routes_agent import AgentRoutes
from kedge.server.routes_approvals import ApprovalRoutes
from kedge.server.routes_system import System
from kedge.server.routes_workspaces import WorkspaceRoutes
from kedge.server.stream import Streams
from kedge.server.watchdog import Watchdog


def make_app(
    engine: Engine, gate: Gate, data_dir: str, shut_down: Callable[[], None], watchdog: Watchdog | None = None
) -> App:
    """`watchdog`: of the loop that runs this; a simulated loop has none."""
    watchdog = watchdog or Watchdog(lambda: False)
    streams = Streams(engine)
    system = System(engine, streams, data_dir, shut_down, watchdog.stalls)
    workspaces, agent = WorkspaceRoutes(engine, streams, data_dir), AgentRoutes(engine)
    routes = [*system.routes(), *workspaces.routes(), *agent.routes(), *ApprovalRoutes(engine).routes()]
    system.specs.extend(route.spec for route in routes)
    return App(routes, gate, lambda: engine.is_closing, watchdog.notice)
