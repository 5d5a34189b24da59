"""The built page in Chromium, from a server of files that answers logins."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from playwright.async_api import Page, expect

from tests.web.conftest import Console

pytestmark = pytest.mark.asyncio(loop_scope="module")

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "font-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


class Files(ThreadingHTTPServer):
    def __init__(self, root: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.root = root
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.tickets = {"good"}


class Handler(BaseHTTPRequestHandler):
    server: Files

    def do_GET(self) -> None:
        path = self.server.root / (self.path.partition("?")[0].lstrip("/") or "index.html")
        if self.path.startswith("/v1/"):
            self._reply(200, b'{"browser": null}' if self.path == "/v1/web/access" else b"[]", "application/json")
        elif path.is_file():
            self._reply(200, path.read_bytes(), TYPES.get(path.suffix, "application/octet-stream"))
        else:
            self._reply(404, b"", "text/plain")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if body["ticket"] in self.server.tickets:
            self.server.tickets.remove(body["ticket"])
            self._reply(200, b'{"key": "half"}', "application/json")
        else:
            self._reply(401, b'{"code": "unauthorized", "message": "The ticket is used."}', "application/json")

    def _reply(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        for name, value in (("Content-Type", kind), ("Content-Length", len(body)), ("Content-Security-Policy", POLICY)):
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def files(web_page: Path) -> Iterator[Files]:
    with Files(web_page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


async def test_browser_without_access_reads_how_to_get_it(page: Page, console: Console, files: Files) -> None:
    foreign: list[str] = []
    page.on("request", lambda request: None if request.url.startswith(files.url) else foreign.append(request.url))
    await page.goto(files.url)
    await expect(page.get_by_role("heading")).to_have_text("This browser has no access")
    await expect(page.get_by_role("status")).to_contain_text("kedge web")
    assert foreign == []


async def test_ticket_works_once_and_leaves_the_address(page: Page, console: Console, files: Files) -> None:
    await page.goto(f"{files.url}/#ticket=good")
    await expect(page.locator("[data-access=open]")).to_be_visible()
    assert page.url == f"{files.url}/"
    await page.reload()
    await expect(page.locator("[data-access=open]")).to_be_visible()
    await page.evaluate("localStorage.clear()")
    await page.goto(f"{files.url}/?again#ticket=good")
    await expect(page.get_by_role("heading")).to_have_text("This link has expired or was already used")
    console.expect("401")


async def test_theme_follows_the_system(page: Page, console: Console, files: Files) -> None:
    await page.goto(files.url)
    for scheme in ("dark", "light"):
        await page.emulate_media(color_scheme=scheme)
        await expect(page.locator("html")).to_have_attribute("data-theme", scheme)
