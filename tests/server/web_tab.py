"""A browser tab, as far as the server sees it: a cookie, a key, and the headers that browsers add."""

from __future__ import annotations

from typing import Any, Self

import httpx2

from tests.conformance.harness import Json, Peer, Server, open_http


class Tab:
    def __init__(self, url: str, *, verify: Any = False) -> None:
        self.url = url
        host = url.partition("://")[2]
        self.http = httpx2.AsyncClient(base_url=url, timeout=20, verify=verify, trust_env=False)
        self.headers = {"origin": url, "sec-fetch-site": "same-origin", "user-agent": "Mozilla (Linux) Firefox/150.0"}
        self.cookie_name = f"kedge_web_{host.rpartition(':')[2]}"
        self.cookie = self.key = ""
        self.set_cookie = ""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.http.aclose()

    async def log_in(self, ticket: str, *, expect: int = 200) -> Json:
        reply = await self.call("POST", "/web/login", {"ticket": ticket})
        assert reply.status_code == expect, reply.text
        body: Json = reply.json()
        if expect == 200:
            self.set_cookie, self.key = reply.headers["set-cookie"], body["key"]
            name, _, self.cookie = self.set_cookie.partition(";")[0].partition("=")
            assert name == self.cookie_name
        return body

    def secrets(self) -> dict[str, str]:
        cookie = {"cookie": f"other=1; {self.cookie_name}={self.cookie}"} if self.cookie else {}
        return {**cookie, **({"x-kedge-key": self.key} if self.key else {})}

    async def call(self, method: str, path: str, body: Any = None, **headers: str) -> httpx2.Response:
        """Send a request below /v1. Further headers replace those of a browser; an empty one is left out."""
        self.http.cookies.clear()
        wanted = {**self.headers, **self.secrets(), **{name.replace("_", "-"): text for name, text in headers.items()}}
        sent = {name: text for name, text in wanted.items() if text}
        return await self.http.request(method, f"/v1{path}", json=body, headers=sent)

    async def status(self, path: str = "/web/access", **headers: str) -> tuple[int, str]:
        """Return the status and the error code of a GET."""
        reply = await self.call("GET", path, **headers)
        return reply.status_code, reply.json().get("code", "") if isinstance(reply.json(), dict) else ""


async def ticket(owner: httpx2.AsyncClient, **fields: str) -> str:
    reply = await owner.post("/v1/web/tickets", json=fields)
    assert reply.status_code == 200, reply.text
    return str(reply.json()["ticket"])


async def logged_in(server: Server, **fields: str) -> Tab:
    tab = Tab(server.url)
    async with open_http(server.url, server.token) as owner:
        await tab.log_in(await ticket(owner, **fields))
    return tab


def filled(path: str, peer: Peer, **ids: str) -> str:
    """Return the path of a route with ids for its names."""
    known = {"id": peer.workspace, "client_id": peer.client_id, **ids}
    parts = [known.get(part[1:-1], "unknown") if part.startswith("{") else part for part in path.split("/")]
    return "/".join(parts)
