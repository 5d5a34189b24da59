"""uvicorn with kedge's limits, and the three ways to stop it: a signal, a request, and idleness."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import uvicorn

from kedge import paths
from kedge.engine.engine import Engine
from kedge.server.asgi import App
from kedge.server.protocol import HttpProtocol
from kedge.server.socket_watch import SocketWatch
from kedge.server.sockets import socket_url
from kedge.server.web_listeners import WebListeners
from kedge.wire.server_record import record_stop

log = logging.getLogger("kedge.server")

#: The shortest interval between two checks for idleness, whatever `idle_exit_s` is. Seconds.
IDLE_CHECK_S_MIN = 0.05
#: An idle connection is closed after this time: a client that opens one again loses a millisecond. Seconds.
KEEP_ALIVE_S = 5
#: Connections that the kernel accepts for a busy server. Items.
BACKLOG = 1024
#: Time for clients to read their replies at the end of the server. Seconds.
LAST_WRITE_S = 2.0
#: Time for requests to end at the end of the server. Those that wait for their client end with its connection, after
#: LAST_WRITE_S; this is for others. Seconds.
REQUESTS_END_S = 4
#: From the connect to the end of the TLS handshake. Seconds.
HANDSHAKE_S_MAX = 10.0
#: Open files to ask for: the event streams (2,000), as many other connections, and tools. A login shell often allows
#: a process only 1,024. Items.
OPEN_FILES = 8192
#: Open files that connections must not use up: the database, model requests, pipes of tools, late imports. Items.
RESERVED_FILES = 256


class HttpServer(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drop the clients that do not read their replies in time. uvicorn would cancel these requests, and log a
        traceback for each."""
        dropping = asyncio.get_running_loop().call_later(LAST_WRITE_S, self._drop_connections)
        try:
            await super().shutdown(sockets)
        finally:
            dropping.cancel()

    def _drop_connections(self) -> None:
        for connection in list(self.server_state.connections):
            if isinstance(connection, HttpProtocol):
                connection.transport.abort()

    async def listen_again(self, path: Path, sock: socket.socket) -> None:
        """Listen on a socket that was bound again at this path, instead of the one that has lost its file."""
        new = await self._serve_on(sock, None)
        for server in [server for server in self.servers if any(_is_at(one, path) for one in server.sockets)]:
            self.servers.remove(server)
            server.close()
        self.servers.append(new)

    async def listen_also(self, sock: socket.socket, tls: ssl.SSLContext | None) -> None:
        """Listen on a further socket, until the server ends."""
        self.servers.append(await self._serve_on(sock, tls))

    async def _serve_on(self, sock: socket.socket, tls: ssl.SSLContext | None) -> asyncio.Server:
        make_protocol = partial(
            HttpProtocol, config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        loop = asyncio.get_running_loop()
        limit_s = HANDSHAKE_S_MAX if tls is not None else None
        return await loop.create_server(
            make_protocol, sock=sock, backlog=self.config.backlog, ssl=tls, ssl_handshake_timeout=limit_s
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals to `listen`: uvicorn would wait for open streams, which never end."""
        yield


async def listen(
    app: App,
    engine: Engine,
    sockets: list[socket.socket],
    watch: SocketWatch,
    stopping: asyncio.Event,
    exit_when_idle: bool,
    web: WebListeners,
) -> None:
    """Serve until `stopping` is set, then close the engine and the connections."""
    HttpProtocol.connections_max = raise_nofile_limit()
    HttpProtocol.stall_s = engine.config.server.stall_s
    server = HttpServer(
        uvicorn.Config(
            app,
            http=HttpProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,  # never trust X-Forwarded-*
            server_header=False,
            date_header=False,
            backlog=BACKLOG,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=REQUESTS_END_S,
        )
    )
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _on_signal, stopping)
    serving = loop.create_task(server.serve(sockets))
    ready = loop.create_task(server.ready.wait())
    await asyncio.wait({ready, serving}, return_when=asyncio.FIRST_COMPLETED)
    if serving.done():
        await serving  # raises the error of the failed start
        return
    for sock in sockets if sys.stdout is not None else ():  # None: closed before the process started
        # One write: an unbuffered `print` makes two, and a kill between them would leave half a line.
        sys.stdout.write(f"listening on {socket_url(sock)}\n")
        sys.stdout.flush()
    await web.start(server.listen_also)
    tasks = [loop.create_task(watch.run(server.listen_again))]
    if exit_when_idle:
        tasks.append(loop.create_task(_stop_when_idle(engine, stopping, lambda: web.is_needed)))
    await asyncio.wait({loop.create_task(stopping.wait()), serving}, return_when=asyncio.FIRST_COMPLETED)
    log.info("shutting down")
    record_stop(paths.server_record(), paths.data_dir())
    await engine.close()
    server.should_exit = True
    await serving
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


def _is_at(sock: socket.socket, path: Path) -> bool:
    return sock.family == socket.AF_UNIX and sock.getsockname() == str(path)


def _on_signal(stopping: asyncio.Event) -> None:
    if stopping.is_set():
        os._exit(130)  # second signal: exit now; accepted runs are already durable
    stopping.set()


async def _stop_when_idle(engine: Engine, stopping: asyncio.Event, is_needed: Callable[[], bool]) -> None:
    limit_s = engine.config.server.idle_exit_s
    loop = asyncio.get_running_loop()
    started = loop.time()
    while True:
        since = engine.workspaces.idle_since
        idle_s = loop.time() - max(since, started) if since is not None else 0.0
        if since is not None and idle_s >= limit_s and not is_needed() and engine.refuse_new_if_unused():
            log.info("idle for %g s", limit_s)
            stopping.set()
            return
        await asyncio.sleep(max(limit_s - idle_s, limit_s / 10, IDLE_CHECK_S_MIN))


def raise_nofile_limit() -> int:
    """Raise the limit of open files, and return the number of connections that it allows.

    Each connection is an open file. Clients, with or without a token, must not use up the files that the store, the
    models and the tools need."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    target = OPEN_FILES if hard == unlimited else min(OPEN_FILES, hard)
    if soft != unlimited and soft < target:
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
        soft = target
    files = OPEN_FILES if soft == unlimited else soft
    return files - min(RESERVED_FILES, files // 2)
