"""Routes of browsers: links, login and logout, the list of browsers, and the addresses that serve the page."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from kedge.core.ids import check_client_id
from kedge.engine.engine import Engine
from kedge.errors import Invalid, Unavailable
from kedge.server.asgi import HttpRequest, Route, WithHeaders, route
from kedge.server.auth import Gate, Headers, cookie_name
from kedge.server.browsers import BROWSER_S, Browser
from kedge.server.routes_workspaces import WorkspaceRoutes
from kedge.wire import web_models as w
from kedge.wire.models import Ok, WorkspaceBody

#: Opens a listening socket for browsers.
ListenForWeb = Callable[[w.ListenForWeb], Awaitable[w.WebAddress]]

#: Part of a User-Agent -> name for the user. The first that fits: Edge and Opera also name Chrome, Chrome names Safari.
_PROGRAMS = {
    "Edg": "Edge",
    "OPR/": "Opera",
    "Firefox/": "Firefox",
    "FxiOS/": "Firefox",
    "Chrome/": "Chrome",
    "CriOS/": "Chrome",
    "Safari/": "Safari",
}
_SYSTEMS = {
    "Android": "Android",
    "iPhone": "iPhone",
    "iPad": "iPad",
    "Windows": "Windows",
    "Mac OS X": "macOS",
    "Linux": "Linux",
}


class WebRoutes:
    def __init__(
        self, engine: Engine, gate: Gate, workspaces: WorkspaceRoutes, listen: ListenForWeb | None = None
    ) -> None:
        """`listen` is None for a server without sockets."""
        self._engine = engine
        self._gate = gate
        self._browsers = gate.browsers
        self._workspaces = workspaces
        self._listen = listen

    async def listen(self, request: HttpRequest) -> w.WebAddress:
        if self._listen is None:
            raise Unavailable("This server cannot listen on further addresses.")
        return await self._listen(request.body)

    async def create_ticket(self, request: HttpRequest) -> w.TicketBody:
        body: w.CreateTicket = request.body
        if bool(body.workspace_id) != bool(body.session_id):
            raise Invalid("Send both workspace_id and session_id, or none of them.")
        if body.session_id:
            await self._engine.session(self._engine.workspaces.get(body.workspace_id), body.session_id)
        ticket, expires_at = self._browsers.issue(body.rights, body.workspace_id, body.session_id)
        return w.TicketBody(ticket=ticket, expires_at=expires_at)

    async def login(self, request: HttpRequest) -> WithHeaders:
        host = request.header(b"host") or ""
        own = self._gate.browser(request.headers, host.lower())
        ticket = self._browsers.redeem(request.body.ticket)
        label = _label(request.header(b"user-agent") or "")
        browser, cookie, key = await self._browsers.admit(ticket, label, own)
        reply = w.WebLoginReply(key=key, browser=_body(browser))
        return WithHeaders(reply, _cookie(request, cookie, BROWSER_S))

    async def logout(self, request: HttpRequest) -> WithHeaders:
        browser = request.asker.browser
        if browser is None:
            raise Invalid("Only a browser can log out. Revoke one with: kedge web revoke ID")
        await self._browsers.revoke(browser.id, spared=request.scope["kedge.abort"])
        return WithHeaders(Ok(), _cookie(request, "", 0))

    async def access(self, request: HttpRequest) -> w.WebAccessBody:
        browser = request.asker.browser
        return w.WebAccessBody(browser=_body(browser) if browser is not None else None)

    async def browsers(self, request: HttpRequest) -> list[w.BrowserBody]:
        return [_body(browser) for browser in self._browsers.all()]

    async def revoke(self, request: HttpRequest) -> Ok:
        await self._browsers.revoke(request.path["browser_id"])
        return Ok()

    async def open_workspace(self, request: HttpRequest) -> WorkspaceBody:
        client_id = check_client_id(request.body.client_id)
        return self._workspaces.body(await self._engine.known_workspaces.open(request.path["id"], client_id))

    def routes(self) -> list[Route]:
        browsers = "/web/browsers"
        return [
            route(
                "POST",
                "/web/listen",
                self.listen,
                "Serve the web page on a further address",
                body=w.ListenForWeb,
                reply=w.WebAddress,
                declared_access="owner",
            ),
            route(
                "POST",
                "/web/tickets",
                self.create_ticket,
                "Create the ticket of a link to the web page",
                body=w.CreateTicket,
                reply=w.TicketBody,
                declared_access="owner",
            ),
            route(
                "POST",
                "/web/login",
                self.login,
                "Exchange a ticket for a cookie and a key",
                body=w.WebLogin,
                reply=w.WebLoginReply,
                needs_token=False,
            ),
            route(
                "POST",
                "/web/logout",
                self.logout,
                "End the access of this browser",
                reply=Ok,
                declared_access="read",
                declared_session="none",
            ),
            route(
                "GET",
                "/web/access",
                self.access,
                "Return what this browser may do",
                reply=w.WebAccessBody,
                declared_session="none",
            ),
            route(
                "GET",
                browsers,
                self.browsers,
                "List the browsers that have access",
                reply=list[w.BrowserBody],
                declared_access="owner",
            ),
            route(
                "DELETE",
                f"{browsers}/{{browser_id}}",
                self.revoke,
                "End the access of a browser",
                reply=Ok,
                declared_access="owner",
            ),
            route(
                "POST",
                "/workspaces/{id}/open",
                self.open_workspace,
                "Open a stored workspace again, to read it",
                body=w.OpenWorkspaceAgain,
                reply=WorkspaceBody,
                declared_access="read",
                declared_session="workspace",
            ),
        ]


def _body(browser: Browser) -> w.BrowserBody:
    return w.BrowserBody(
        id=browser.id,
        label=browser.label,
        rights=browser.rights,
        workspace_id=browser.workspace_id,
        session_id=browser.session_id,
        created_at=browser.created_at,
        expires_at=browser.expires_at,
        last_used_at=browser.last_used_at,
    )


def _cookie(request: HttpRequest, value: str, age_s: int) -> Headers:
    # If a proxy terminates TLS, only the Origin of the page has the scheme that the browser uses.
    is_secure = request.scope.get("scheme") == "https" or (request.header(b"origin") or "").startswith("https:")
    name = cookie_name((request.header(b"host") or "").lower())
    text = f"{name}={value}; Path=/v1; Max-Age={age_s}; HttpOnly; SameSite=Strict{'; Secure' if is_secure else ''}"
    return [(b"set-cookie", text.encode("latin-1"))]


def _label(user_agent: str) -> str:
    """Return a name for the list of browsers. Only known words: any program can send any text."""
    program, system = (
        next((name for part, name in table.items() if part in user_agent), "") for table in (_PROGRAMS, _SYSTEMS)
    )
    return " on ".join(word for word in (program, system) if word) or "unknown browser"
