"""The transports of kedge as an MCP server: standard input and output, and HTTP on a loopback address.

A client that disconnects does not cancel its Runs; a cancelled call does. The library cancels the task of the call in
both cases, so this module records which connections are closing.
"""

from __future__ import annotations

import asyncio
import hmac
import io
import logging
import os
import secrets
import signal
import socket
import stat
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import click
import uvicorn
from mcp.server.mcpserver import Context
from mcp.server.streamable_http_manager import DEFAULT_MAX_SESSIONS
from mcp.server.transport_security import TransportSecuritySettings
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from kedge import paths
from kedge.cli.mcp_server import KedgeMcp
from kedge.cli.mcp_tools import KedgeTools
from kedge.client.client import Client
from kedge.client.safe_text import one_line

#: Open HTTP connections: more than the agents of one user need. Connections.
CONNECTIONS_MAX = 100
#: On shutdown, requests in progress get this long. Seconds.
SHUTDOWN_S_MAX = 1
#: A shorter token in the file is replaced. Characters.
TOKEN_CHARS_MIN = 32

HTTP_PATH = "/mcp"


def serve_stdio(cwd: str, host: str | None, *, approve: bool) -> int:
    """Serve the client that started this process, until it closes standard input."""
    _log_one_line_each()
    # The thread that reads standard input cannot be interrupted. Runs continue without this process.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

    async def serve() -> None:
        async with Client(host) as client:
            tools = KedgeTools(client, cwd, may_start=host is None)
            source = _Input(os.dup(0), closefd=False)
            tools.is_closing = lambda context: source.at_end
            # The library reads from this object as it is, since it has another descriptor than 0.
            sys.stdin = io.TextIOWrapper(io.BufferedReader(source))
            await KedgeMcp(tools, approve=approve).run_stdio_async()

    anyio.run(serve)
    return 0


class _Input(io.FileIO):
    """Standard input. `at_end` is set before the library sees the end and cancels the calls."""

    at_end = False

    def readinto(self, buffer: Any, /) -> int | None:
        count = super().readinto(buffer)
        self.at_end = count == 0
        return count


def serve_http(address: tuple[str, int], cwd: str, host: str | None, *, approve: bool) -> int:
    """Serve on this address until SIGTERM or Ctrl-C. The token is in a file that only the user can read."""
    _log_one_line_each()
    listener = _listen(*address)
    token = _token()

    async def serve() -> None:
        async with Client(host) as client:
            tools = KedgeTools(client, cwd, may_start=host is None)
            app = KedgeMcp(tools, approve=approve).streamable_http_app(
                streamable_http_path=HTTP_PATH, transport_security=_own_names_only(listener)
            )
            gate = _Gate(app, token)
            config = uvicorn.Config(
                gate,
                ws="none",
                log_config=None,
                access_log=False,
                server_header=False,
                limit_concurrency=CONNECTIONS_MAX,
                timeout_graceful_shutdown=SHUTDOWN_S_MAX,
            )
            server = _HttpServer(config)
            tools.is_closing = lambda context: server.should_exit or gate.is_closing(context)
            click.echo(f"listening on http://{_authority(listener)}{HTTP_PATH}")
            click.echo(f"token in {paths.mcp_token_file()}")
            await server.serve(sockets=[listener])

    anyio.run(serve)
    return 0


class _HttpServer(uvicorn.Server):
    """A server that SIGTERM and Ctrl-C end normally. The base class raises the signal again after its shutdown."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        yield


class _Gate:
    """The check of the token, before anything else. The library then checks Host and Origin."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._expected = b"Bearer " + token.encode()
        #: Sessions of the protocol that their clients ended.
        self._ended: deque[str] = deque(maxlen=DEFAULT_MAX_SESSIONS)

    def is_closing(self, context: Context[Any, Any]) -> bool:
        """Return whether the client of this call has ended its session.

        Without sessions (protocol 2026-07-28) closing the connection of a call is how a client cancels it."""
        return (context.headers or {}).get("mcp-session-id") in self._ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            values = [value for name, value in scope["headers"] if name == b"authorization"]
            if len(values) != 1 or not hmac.compare_digest(values[0], self._expected):
                text = "Missing or wrong token; send Authorization: Bearer with the content of the token file.\n"
                response = PlainTextResponse(text, 401, {"www-authenticate": "Bearer"})
                await response(scope, receive, send)
                return
            if scope["method"] == "DELETE":
                self._ended.extend(
                    value.decode("latin-1") for name, value in scope["headers"] if name == b"mcp-session-id"
                )
        await self._app(scope, receive, send)


def _listen(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise click.ClickException(f"Cannot listen on {host}, port {port}: {error.strerror}") from None


def _authority(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if listener.family == socket.AF_INET6 else f"{host}:{port}"


def _own_names_only(listener: socket.socket) -> TransportSecuritySettings:
    """Refuse foreign names as Host, which is DNS rebinding, and every Origin: programs send none."""
    port = listener.getsockname()[1]
    return TransportSecuritySettings(allowed_hosts=[_authority(listener), f"localhost:{port}"], allowed_origins=[])


def _token() -> str:
    """Return the token of the file, or write a new one. It stays the same, since clients have it configured."""
    path = paths.mcp_token_file()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        pass
    else:
        with open(descriptor) as file:
            status, token = os.fstat(descriptor), file.read(4096).strip()
        is_private = status.st_uid == os.getuid() and not status.st_mode & (stat.S_IRWXG | stat.S_IRWXO)
        if is_private and token.isascii() and token.isprintable() and len(token) >= TOKEN_CHARS_MIN:
            return token
    token = secrets.token_urlsafe(32)
    # A new file, then renamed: never readable by others, never incomplete.
    new = path.with_name(f".{path.name}-{os.getpid()}")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with open(descriptor, "w") as file:
        file.write(token + "\n")
    os.replace(new, path)
    return token


class _OneLine(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        error = record.exc_info[0].__name__ if record.exc_info and record.exc_info[0] else ""
        return f"kedge: {one_line(record.getMessage())}{f' ({error})' if error else ''}"


def _log_one_line_each() -> None:
    """Log warnings of the libraries to standard error, without tracebacks. This must precede their own set-up."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_OneLine())
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
