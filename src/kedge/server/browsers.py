"""The browsers that have access, and the tickets with which they get it.

A ticket is a single-use secret in a link. Its login makes a browser with two secrets: a cookie, which scripts cannot
read, and a key, which the page keeps. A request needs both, since browsers send cookies to all ports of a host. Only
digests are stored. The secrets are random, so a plain hash is enough."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from msgspec import Struct

from kedge.errors import BrowserNotFound, Busy, LinkGone, StoreUnavailable
from kedge.server.open_connections import OpenConnections
from kedge.wire.web_models import Rights

log = logging.getLogger("kedge.server")

FILE_NAME = "web.json"
#: A link is used at once: long enough to pick up a phone. Seconds.
TICKET_S = 300
#: A browser has to be let in again after this time. Seconds.
BROWSER_S = 30 * 24 * 3600
#: Unused tickets, and browsers: more than one user has. Items.
TICKETS_MAX = 100
BROWSERS_MAX = 100
#: The file has at most BROWSERS_MAX entries of about 500 bytes. Bytes.
FILE_BYTES_MAX = 1024 * 1024


class Ticket(Struct, frozen=True):
    rights: Rights
    expires_at: int
    workspace_id: str = ""
    session_id: str = ""


class Browser(Struct):
    id: str
    label: str
    rights: Rights
    created_at: int
    expires_at: int
    last_used_at: int
    cookie_digest: str
    key_digest: str
    #: Empty: the browser reaches the whole server.
    workspace_id: str = ""
    session_id: str = ""


class _Stored(Struct):
    """The content of the file."""

    browsers: list[Browser] = []
    #: The port of this machine on which the page was last served; 0: none.
    port: int = 0


class Browsers:
    def __init__(self, path: Path | None = None, now_s: Callable[[], float] = time.time) -> None:
        """`path` is the file of the browsers; None: they are not stored."""
        self._path = path
        self._now_s = now_s
        self._tickets: dict[str, Ticket] = {}
        self._browsers: dict[str, Browser] = {}
        self._open = OpenConnections()
        self._writing = asyncio.Lock()
        self.port = 0
        self._load()

    # --- tickets -------------------------------------------------------------------------------------------------

    def issue(self, rights: Rights, workspace_id: str = "", session_id: str = "") -> tuple[str, int]:
        """Return a new ticket, and when it expires."""
        self._drop_expired()
        if len(self._tickets) >= TICKETS_MAX:
            raise Busy(f"There are {TICKETS_MAX} unused links. Use one, or wait {TICKET_S // 60} minutes.")
        secret = secrets.token_urlsafe(32)
        expires_at = self._now_ms() + TICKET_S * 1000
        self._tickets[_digest(secret)] = Ticket(rights, expires_at, workspace_id, session_id)
        return secret, expires_at

    def redeem(self, secret: str) -> Ticket:
        """Return the ticket, which no later call can use."""
        self._drop_expired()
        ticket = self._tickets.pop(_digest(secret), None)
        if ticket is None:
            raise LinkGone("This link was already used or has expired. Get another one with: kedge web")
        return ticket

    # --- browsers ------------------------------------------------------------------------------------------------

    async def admit(self, ticket: Ticket, label: str, replaced: Browser | None) -> tuple[Browser, str, str]:
        """Return a new browser with its cookie and its key. `replaced` is its own former entry, if it has one."""
        self._drop_expired()
        if len(self._browsers) - (replaced is not None) >= BROWSERS_MAX:
            raise Busy(f"{BROWSERS_MAX} browsers have access, the limit of this server. Revoke some: kedge web revoke")
        now = self._now_ms()
        browser_id, secret, key = f"b{secrets.token_hex(5)}", secrets.token_urlsafe(32), secrets.token_urlsafe(32)
        browser = Browser(
            id=browser_id,
            label=label,
            rights=ticket.rights,
            created_at=now,
            expires_at=now + BROWSER_S * 1000,
            last_used_at=now,
            cookie_digest=_digest(secret),
            key_digest=_digest(key),
            workspace_id=ticket.workspace_id,
            session_id=ticket.session_id,
        )
        self._browsers[browser.id] = browser
        if replaced is not None:
            self._remove(replaced.id)
        await self._write()
        return browser, f"{browser.id}.{secret}", key

    def find(self, cookie: str, key: str) -> Browser | None:
        """Return the browser that has both secrets."""
        browser_id, _, secret = cookie.partition(".")
        browser = self._browsers.get(browser_id)
        if browser is None or browser.expires_at <= self._now_ms():
            return None
        matches = [
            hmac.compare_digest(_digest(text), digest)
            for text, digest in ((secret, browser.cookie_digest), (key, browser.key_digest))
        ]
        if not all(matches):
            return None
        browser.last_used_at = self._now_ms()
        return browser

    def all(self) -> list[Browser]:
        self._drop_expired()
        return list(self._browsers.values())

    async def revoke(self, browser_id: str, spared: Callable[[], None] | None = None) -> None:
        """Remove the browser and end its connections, except for `spared`, which carries the request."""
        if browser_id not in self._browsers:
            raise BrowserNotFound(f"Browser {browser_id[:50]} not found. List them with: kedge web list")
        self._remove(browser_id, spared)
        await self._write()

    @property
    def has_any(self) -> bool:
        """True if a browser has access, or may get it with a ticket."""
        self._drop_expired()
        return bool(self._browsers or self._tickets)

    @contextmanager
    def in_use(self, browser: Browser, end: Callable[[], None]) -> Iterator[None]:
        """Call `end` when the browser is revoked or expires within this block."""
        left_s = browser.expires_at / 1000 - self._now_s()
        timer = asyncio.get_running_loop().call_later(max(left_s, 0), end)
        try:
            with self._open.added(browser.id, end):
                yield
        finally:
            timer.cancel()

    def _remove(self, browser_id: str, spared: Callable[[], None] | None = None) -> None:
        self._browsers.pop(browser_id, None)
        self._open.end(browser_id, spared)

    def _drop_expired(self) -> None:
        now = self._now_ms()
        self._tickets = {digest: ticket for digest, ticket in self._tickets.items() if ticket.expires_at > now}
        for browser in [browser for browser in self._browsers.values() if browser.expires_at <= now]:
            self._remove(browser.id)

    def _now_ms(self) -> int:
        return int(self._now_s() * 1000)

    # --- the file ------------------------------------------------------------------------------------------------

    async def remember_port(self, port: int) -> None:
        if port != self.port:
            self.port = port
            await self._write()

    async def close(self) -> None:
        """Store the times of the last use."""
        if self._browsers:
            try:
                await self._write()
            except StoreUnavailable as error:
                log.warning("%s", error)

    def _load(self) -> None:
        if self._path is None:
            return
        try:
            with open(os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
                stored = msgspec.json.decode(file.read(FILE_BYTES_MAX), type=_Stored)
        except FileNotFoundError:
            return
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            log.warning("%s cannot be read (%s): all browsers have to log in again", self._path, error)
            return
        self._browsers = {browser.id: browser for browser in stored.browsers[:BROWSERS_MAX]}
        self.port = stored.port
        self._drop_expired()

    async def _write(self) -> None:
        """Store the browsers as they are now. The change has taken effect even if this fails."""
        if self._path is None:
            return
        path = self._path
        async with self._writing:
            data = msgspec.json.encode(_Stored(list(self._browsers.values()), self.port))
            try:
                await asyncio.to_thread(_replace_file, path, data)
            except OSError as error:
                raise StoreUnavailable(f"The change is not stored in {path} ({error.strerror}); try again.") from error


def _replace_file(path: Path, data: bytes) -> None:
    """Replace the file, readable by its owner only. A revoked browser must stay so after a power cut."""
    new = path.with_name(f".{path.name}-{os.getpid()}")
    handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(handle, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)
    directory = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
