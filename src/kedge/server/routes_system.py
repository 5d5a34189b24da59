"""Routes of the server itself."""

from __future__ import annotations

import asyncio
import html
import os
import platform
from collections.abc import Callable
from typing import Any, Literal

from msgspec import Struct

import kedge
from kedge.core.ids import check_client_id
from kedge.engine.engine import Engine
from kedge.errors import ServerNotIdle
from kedge.server.asgi import HttpRequest, Raw, Route, route
from kedge.server.routes_workspaces import ClientQuery
from kedge.server.stream import EventRoutes
from kedge.server.watchdog import Stalls
from kedge.wire import models as m
from kedge.wire.codec import run_body
from kedge.wire.openapi import RouteSpec, openapi


class RunsQuery(Struct):
    state: Literal["queued", "active"] | None = None


class SystemRoutes:
    def __init__(
        self, engine: Engine, events: EventRoutes, data_dir: str, shutdown: Callable[[], None], stalls: Stalls
    ) -> None:
        self._engine = engine
        self._events = events
        self._data_dir = data_dir
        self._shutdown = shutdown
        self._stalls = stalls
        self.specs: list[RouteSpec] = []

    async def health(self, request: HttpRequest) -> m.Health:
        return m.Health(state="starting" if self._engine.recovery.is_starting else "ready")

    async def version(self, request: HttpRequest) -> m.Version:
        return m.Version(
            version=kedge.__version__,
            platform=f"{platform.system().lower()}/{platform.machine()}",
            python_version=platform.python_version(),
            pid=os.getpid(),
            data_dir=self._data_dir,
        )

    async def control(self, request: HttpRequest) -> m.Ok:
        body: m.Control = request.body
        client_id = request.query.client_id
        if body.command == "shutdown_if_idle" and self._engine.workspaces.has_clients(except_for=client_id):
            raise ServerNotIdle("Other clients are attached. Close them, or send the command shutdown.")
        if not (body.command == "shutdown" and body.force) and not self._engine.refuse_new_if_idle():
            raise ServerNotIdle(
                "Runs or commands are active. Wait, cancel them, or shut down with force to interrupt them."
            )
        # After the reply: the shutdown closes the connection that carries it.
        asyncio.get_running_loop().call_soon(self._shutdown)
        return m.Ok()

    async def retire_client(self, request: HttpRequest) -> m.Ok:
        self._engine.workspaces.retire(check_client_id(request.path["client_id"]))
        return m.Ok()

    async def runs(self, request: HttpRequest) -> list[m.RunBody]:
        query: RunsQuery = request.query
        return [run_body(run) for run in await self._engine.workspaces.live_runs() if query.state in (None, run.state)]

    async def metrics(self, request: HttpRequest) -> Raw:
        runs = [run for workspace in self._engine.workspaces.all() for run in workspace.live_runs()]
        metrics: dict[str, tuple[str, str, float]] = {
            "kedge_runs_active": ("gauge", "Active Runs.", sum(run.state == "active" for run in runs)),
            "kedge_runs_queued": ("gauge", "Queued Runs.", sum(run.state == "queued" for run in runs)),
            "kedge_workspaces_open": ("gauge", "Open workspaces.", len(self._engine.workspaces.all())),
            "kedge_workspaces_damaged": (
                "gauge",
                "Workspaces disabled because their records are damaged.",
                len(self._engine.workspaces.unserved.damaged),
            ),
            "kedge_streams_open": ("gauge", "Open event streams.", self._events.open_streams),
            "kedge_loop_stalls_total": ("counter", "Stalls of the event loop of 100 ms or more.", self._stalls.count),
            "kedge_loop_stall_seconds_max": ("gauge", "The longest stall of the event loop.", self._stalls.longest_s),
        }
        lines = [
            f"# HELP {name} {help_text}\n# TYPE {name} {kind}\n{name} {value}"
            for name, (kind, help_text, value) in metrics.items()
        ]
        return Raw(("\n".join(lines) + "\n").encode(), "text/plain; version=0.0.4")

    async def openapi(self, request: HttpRequest) -> dict[str, Any]:
        return openapi(self.specs, kedge.__version__)

    async def docs(self, request: HttpRequest) -> Raw:
        rows = "\n".join(
            f"<tr><td><b>{spec.method}</b></td><td><code>/v1{html.escape(spec.path)}</code></td>"
            f"<td>{html.escape(spec.summary)}</td></tr>"
            for spec in self.specs
        )
        return Raw(
            _DOCS.replace("ROWS", rows).replace("VERSION", kedge.__version__).encode(), "text/html; charset=utf-8"
        )

    def routes(self) -> list[Route]:
        runs, document = list[m.RunBody], dict[str, Any]
        return [
            route("GET", "/health", self.health, "Check that the server responds", reply=m.Health, needs_token=False),
            route("GET", "/version", self.version, "Return the version of the server", reply=m.Version),
            route(
                "POST",
                "/control",
                self.control,
                "Shut down the server",
                query=ClientQuery,
                body=m.Control,
                reply=m.Ok,
                declared_access="owner",
            ),
            route(
                "DELETE",
                "/clients/{client_id}",
                self.retire_client,
                "Retire a client",
                reply=m.Ok,
                for_all_nodes=True,
            ),
            route("GET", "/runs", self.runs, "List the live runs of all workspaces", query=RunsQuery, reply=runs),
            route("GET", "/metrics", self.metrics, "Return metrics for Prometheus", media_type="text/plain"),
            route("GET", "/openapi.json", self.openapi, "Return the OpenAPI document", reply=document),
            route("GET", "/docs", self.docs, "Show the list of routes as HTML", media_type="text/html"),
        ]


_DOCS = """<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>kedge VERSION: HTTP reference</title><style>
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2.5rem auto; padding: 0 1rem; color: #1d2430; }
table { border-collapse: collapse; width: 100%; } td { padding: .35rem .8rem .35rem 0; border-top: 1px solid #dde; }
code { font-size: .92em; } @media (prefers-color-scheme: dark) { body { background: #14181f; color: #dde3ec; }
td { border-color: #2a3240; } }</style>
<h1>kedge VERSION</h1><p>Bodies and replies are described in <a href="openapi.json">openapi.json</a>.</p>
<table>ROWS</table></html>"""
