"""Browsers that reach one session: the requests that concern it, and the approvals and questions that they may see.

The session includes those of the child agents that its Runs started."""

from __future__ import annotations

from kedge.core.approvals import Ask
from kedge.engine.engine import Engine
from kedge.engine.workspace import Workspace
from kedge.errors import Forbidden, NotFound
from kedge.server.asgi import HttpRequest
from kedge.server.auth import ONE_SESSION
from kedge.server.browsers import Browser
from kedge.wire.models import GrantPermission
from kedge.wire.openapi import RouteSpec

#: Child agents of child agents. Items.
DEPTH_MAX = 10


class SessionScope:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def check(self, request: HttpRequest, spec: RouteSpec) -> None:
        """Raise Forbidden unless the request concerns the session of the browser that sends it."""
        browser = request.asker.browser
        assert browser is not None
        if spec.session == "none":
            return
        if request.path["id"] != browser.workspace_id:
            raise Forbidden(ONE_SESSION)
        if spec.session in ("listed", "workspace"):
            return
        workspace = self._engine.workspaces.get(browser.workspace_id)
        if spec.session == "query" and request.query.session_id is None:
            request.query.session_id = browser.session_id
        try:
            session_id = await self._session_of(request, spec, workspace)
        except NotFound:
            raise Forbidden(ONE_SESSION) from None
        if not await self._reaches(browser, workspace, session_id):
            raise Forbidden(ONE_SESSION)

    async def visible_asks(self, request: HttpRequest, workspace: Workspace) -> list[Ask]:
        """Return the pending asks that the sender of the request may see."""
        asks, browser = await self._engine.asks.pending(workspace), request.asker.browser
        if browser is None or not browser.session_id:
            return asks
        return [ask for ask in asks if await self._reaches(browser, workspace, ask.session_id)]

    async def _session_of(self, request: HttpRequest, spec: RouteSpec, workspace: Workspace) -> str:
        body = request.body
        match spec.session:
            case "path":
                return request.path["sid"]
            case "run":
                return (await self._engine.run(workspace, request.path["run_id"])).session_id
            case "body":
                return str(body.session_id)
            case "query":
                return str(request.query.session_id)
            case "ask":
                if isinstance(body, GrantPermission) and body.action == "allow_always":
                    raise Forbidden(f"{ONE_SESSION} Allow this once, or for the session.")
                ask_id = body.id if isinstance(body, GrantPermission) else body.batch_request_id
                return (await self._engine.asks.ask(workspace, ask_id)).session_id
        raise Forbidden(ONE_SESSION)

    async def _reaches(self, browser: Browser, workspace: Workspace, session_id: str) -> bool:
        for _ in range(DEPTH_MAX):
            if session_id == browser.session_id:
                return True
            try:
                session = await self._engine.session(workspace, session_id)
            except NotFound:
                return False
            if not session.parent_run_id:
                return False
            session_id = session.parent_session_id
        return False
