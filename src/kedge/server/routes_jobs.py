"""Routes of kept commands: commands of the agent that continue after their Run."""

from __future__ import annotations

from kedge.engine.engine import Engine
from kedge.engine.workspace import Workspace
from kedge.server.asgi import HttpRequest, Route, route
from kedge.wire.codec import job_body
from kedge.wire.job_models import JobBody, JobOutput


class JobRoutes:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def jobs(self, request: HttpRequest) -> list[JobBody]:
        state = await self._engine.workspaces.lane(self._workspace(request), request.path["sid"])
        return [job_body(entry) for entry in state.kept_commands]

    async def output(self, request: HttpRequest) -> JobOutput:
        path = request.path
        entry = await self._engine.kept_registry.output(self._workspace(request), path["sid"], path["job_id"])
        return JobOutput(job=job_body(entry.command), output=entry.output, is_cut=entry.is_cut)

    async def end(self, request: HttpRequest) -> JobBody:
        path = request.path
        return job_body(await self._engine.kept_registry.end(self._workspace(request), path["sid"], path["job_id"]))

    def _workspace(self, request: HttpRequest) -> Workspace:
        return self._engine.workspaces.get(request.path["id"])

    def routes(self) -> list[Route]:
        jobs = "/workspaces/{id}/sessions/{sid}/jobs"
        job = f"{jobs}/{{job_id}}"
        return [
            route("GET", jobs, self.jobs, "List the kept commands of a session", reply=list[JobBody]),
            route("GET", job, self.output, "Return a kept command with its recent output", reply=JobOutput),
            route("POST", f"{job}/end", self.end, "End a kept command", reply=JobBody),
        ]
