"""The files of the web page, over a real socket."""

from __future__ import annotations

import asyncio
import gzip
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import uvicorn

from kedge.server.asgi import App
from kedge.server.auth import Gate
from kedge.server.http_server import HttpServer
from kedge.server.protocol import HttpProtocol
from kedge.server.web_page import CONTENT_SECURITY_POLICY, WebPage
from tests.conformance.raw import connect, request

SCRIPT = b"console.log('kedge');" * 100


async def _no_session(*_: Any) -> None:
    raise AssertionError("no browser of one session is used here")


@asynccontextmanager
async def serving(directory: Path) -> AsyncIterator[httpx2.AsyncClient]:
    app = App([], Gate("a-token-of-16-characters"), lambda: False, WebPage(directory), _no_session)
    server = HttpServer(uvicorn.Config(app, http=HttpProtocol, ws="none", lifespan="off", log_config=None))
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        task = asyncio.create_task(server.serve([sock]))
        await server.ready.wait()
        try:
            url = f"http://127.0.0.1:{sock.getsockname()[1]}"
            async with httpx2.AsyncClient(base_url=url, headers={"accept-encoding": "identity"}) as http:
                yield http
        finally:
            server.should_exit = True
            await task


def build(directory: Path) -> None:
    (directory / "assets").mkdir(parents=True)
    (directory / "index.html").write_text("<!doctype html><title>kedge</title>")
    (directory / "manifest.webmanifest").write_text("{}")
    (directory / "assets" / "index-lyvKVup7.js").write_bytes(SCRIPT)
    (directory / "assets" / "index-lyvKVup7.js.gz").write_bytes(gzip.compress(SCRIPT))
    (directory / "assets" / "plain.js").write_bytes(b"1")
    (directory / ".env.js").write_text("hidden")
    (directory.parent / "secret.js").write_text("secret")
    (directory / "link.js").symlink_to(directory.parent / "secret.js")


async def test_page_is_served_with_a_strict_policy(tmp_path: Path) -> None:
    build(tmp_path / "page")
    async with serving(tmp_path / "page") as http:
        page = await http.get("/")
        assert page.status_code == 200
        assert page.text.startswith("<!doctype html>")
        for name, expected in {
            "content-type": "text/html; charset=utf-8",
            "content-security-policy": CONTENT_SECURITY_POLICY,
            "x-content-type-options": "nosniff",
            "referrer-policy": "no-referrer",
            "cache-control": "no-cache",
        }.items():
            assert page.headers[name] == expected
        head = await http.head("/")
        assert (head.status_code, head.content) == (200, b"")
        assert (await http.get("/manifest.webmanifest")).headers["content-type"] == "application/manifest+json"
        api = await http.get("/v1/nothing")
        assert (api.status_code, api.headers["cache-control"]) == (401, "no-store")


async def test_hashed_files_are_cached_and_compressed(tmp_path: Path) -> None:
    build(tmp_path / "page")
    async with serving(tmp_path / "page") as http:
        path = "/assets/index-lyvKVup7.js"
        small = await http.get(path, headers={"accept-encoding": "gzip, br;q=0.5"})
        assert (small.content, small.headers["content-encoding"]) == (SCRIPT, "gzip")
        assert small.headers["cache-control"] == "public, max-age=31536000, immutable"
        assert small.headers["vary"] == "accept-encoding"
        for accepted in ("identity", "gzip;q=0", "br"):
            plain = await http.get(path, headers={"accept-encoding": accepted})
            assert plain.content == SCRIPT
            assert "content-encoding" not in plain.headers
        assert (await http.get("/assets/plain.js")).headers["cache-control"] == "no-cache"


async def test_nothing_but_the_page_is_served(tmp_path: Path) -> None:
    build(tmp_path / "page")
    wrong = ["/secret.js", "/../secret.js", "/%2e%2e/secret.js", "/assets/..%2f..%2fsecret.js", "/link.js", "/.env.js"]
    wrong += ["/assets", "/assets/", "//index.html", "/index.html%00.js", "/" + "a" * 5000 + ".js", "/assets%5cx.js"]
    async with serving(tmp_path / "page") as http:
        for path in wrong:
            async with connect(str(http.base_url)) as connection:  # sends the path as it is
                await connection.send(request("GET", path))
                status, body = await connection.reply()
            expected = (404, "route_not_found") if path in ("/secret.js", "/link.js") else (401, "unauthorized")
            assert (status, body["code"]) == expected, path
        assert (await http.post("/")).status_code == 401
        assert (await http.get("/", headers={"host": "evil.example"})).status_code == 421
        assert (await http.get("/", headers={"sec-fetch-site": "cross-site"})).status_code == 403


async def test_missing_page_says_how_to_build_it(tmp_path: Path) -> None:
    async with serving(tmp_path / "nothing") as http:
        page = await http.get("/")
        assert page.status_code == 404
        assert "scripts/web" in page.text
        assert page.headers["content-security-policy"] == CONTENT_SECURITY_POLICY
