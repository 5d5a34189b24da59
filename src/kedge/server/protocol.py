"""One HTTP connection, with limits that hold before and after authentication.

uvicorn's parser has no limits of its own. This class bounds the bytes of a head, of trailers and of chunk framing, the
time of a request, the time for which a client may leave a reply unread, and the number of connections. It does not read
pipelined requests before their turn. When the connection is lost, it notifies every request in progress, not only the
last one.

A deadline never applies to a request that has arrived. The process may have been paused (SIGSTOP, a suspended machine),
and the loop calls overdue timers before it reads from sockets. So a deadline ends with GRACE_S, which begins when the
loop runs: what the kernel has received is read in that time.

uvicorn does not document the class this one extends; pyproject.toml therefore pins uvicorn to a minor version, and
`tests/server/test_protocol.py` checks the names used here.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
import termios
from contextlib import suppress
from fcntl import ioctl
from http import HTTPStatus

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from kedge.errors import Invalid, KedgeError, TooSlow
from kedge.server.peer import is_allowed
from kedge.wire.models import ErrorBody

log = logging.getLogger("kedge.server")

#: Maximum overhead: the request line and headers, or chunk framing, or trailers. kedge's clients send a few hundred
#: bytes. Bytes.
HEAD_BYTES_MAX = 64 * 1024
#: Bytes parsed at once: at most a few hundred requests, which take about 10 ms.
SLICE_BYTES = 8 * 1024
#: From the first byte of a request, or from the connect, to the end of its head. Seconds.
HEAD_S_MAX = 20.0
#: From the end of the head to the end of the body: the largest body over a very slow link. Seconds.
BODY_S_MAX = 300.0
#: The end of a deadline, in which requests that arrived during a pause of the process are read. Seconds.
GRACE_S = 1.0
#: Checks within `stall_s` whether the client has read something. Items.
STALL_CHECKS = 10
#: The kernel drops a peer that acknowledges nothing for this time, such as a half-open connection. Seconds.
TCP_SILENCE_S = 30
#: Data that the kernel keeps for a TCP client beyond what the network carries: it would take megabytes. Bytes.
KERNEL_BYTES = 128 * 1024
#: Further connections that only the Unix socket accepts: TCP clients must not be able to lock out the user. Items.
LOCAL_EXTRA = 32


class HttpProtocol(HttpToolsProtocol):
    #: Connections of the whole process. The server sets it when it starts. Items.
    connections_max = 256
    #: The time after which a client that reads nothing of a reply is dropped. The server sets it. Seconds.
    stall_s = 60.0
    _limit_was_logged = False
    local_socket = False
    #: Bytes received since the parser last reported something.
    _idle_bytes = 0
    _is_in_request = True  # a new connection must send a head
    _is_in_head = True
    _deadline: asyncio.TimerHandle | None = None
    _stall_timer: asyncio.TimerHandle | None = None
    #: Bytes that the client had not received at the last check, and the time when it last received any.
    _unreceived = 0
    _received_at = 0.0
    _is_event_stream = False
    _active_cycles: tuple[RequestResponseCycle, ...] = ()
    #: Received and not parsed yet.
    _unread = b""

    # --- a connection ---

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        connection = transport.get_extra_info("socket")
        if connection.family == socket.AF_UNIX:
            self.local_socket = True
            if not is_allowed(connection):
                transport.abort()
        elif hasattr(socket, "TCP_USER_TIMEOUT"):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, TCP_SILENCE_S * 1000)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, KERNEL_BYTES)
        # `connections` includes this one.
        if len(self.connections) > self.connections_max + (LOCAL_EXTRA if self.local_socket else 0):
            if not HttpProtocol._limit_was_logged:
                HttpProtocol._limit_was_logged = True
                log.warning("connection limit of %d reached; dropping further connections", self.connections_max)
            transport.abort()
        self._set_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        for cycle in self._active_cycles:
            # The parent class notifies only the last request: one with pipelined requests after it would never end.
            cycle.disconnected = not cycle.response_complete
            cycle.message_event.set()
        self._clear_deadline()
        if self._stall_timer is not None:
            self._stall_timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse the data in slices. While requests are pipelined, further data stays unread."""
        self._unread += data
        while self._unread and not self.pipeline and not self.transport.is_closing():
            part, self._unread = self._unread[:SLICE_BYTES], self._unread[SLICE_BYTES:]
            self._idle_bytes += len(part)
            super().data_received(part)
            self._check_request()
        if self._unread:
            self.flow.pause_reading()

    def _check_request(self) -> None:
        if not self._is_in_request:
            is_idle = all(cycle.response_complete for cycle in self._active_cycles)
            if is_idle and self.timeout_keep_alive_task is None and not self.transport.is_closing():
                # The parent class cancelled this timer for bytes that did not begin a request.
                self.timeout_keep_alive_task = self.loop.call_later(
                    self.timeout_keep_alive, self.timeout_keep_alive_handler
                )
            return
        if self._idle_bytes > HEAD_BYTES_MAX:
            what = "The head of the request" if self._is_in_head else "The chunk framing or the trailer of the body"
            self.send_400_response(f"{what} has more than {HEAD_BYTES_MAX} bytes.")
        elif self._deadline is None:
            self._set_deadline()

    def _resume_reading(self) -> None:
        if not self.transport.is_closing():
            self.flow.resume_reading()
            self.data_received(b"")

    # --- parser callbacks ---

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_in_request, self._is_in_head, self._idle_bytes = True, True, 0
        self._clear_deadline()
        self.scope["kedge.local_socket"] = self.local_socket  # type: ignore[typeddict-unknown-key]
        self.scope["kedge.abort"] = self.transport.abort  # type: ignore[typeddict-unknown-key]
        self.scope["kedge.drain"] = self._drain  # type: ignore[typeddict-unknown-key]

    def on_headers_complete(self) -> None:
        if not self.url.startswith(b"/"):
            # The absolute form, for proxies: its host may differ from the Host header that is checked.
            raise ValueError("the target of a request must be a path")
        super().on_headers_complete()
        self._is_in_head, self._idle_bytes = False, 0
        self._clear_deadline()
        self.headers = []  # trailers must not join the headers: authentication has used those already
        self._active_cycles = (*(cycle for cycle in self._active_cycles if not cycle.response_complete), self.cycle)

    def on_body(self, body: bytes) -> None:
        self._idle_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._is_in_request = False
        self._clear_deadline()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing() or not (self.pipeline or self._unread):
            return
        # The parent class continues with the next request at once; a client that pipelines would starve all others.
        self.flow.pause_reading()
        if not self.pipeline:
            self.loop.call_soon(self._resume_reading)

    def send_400_response(self, msg: str) -> None:
        """Answer malformed input with the usual error body, and close the connection."""
        self._refuse(Invalid(msg))

    def _refuse(self, error: KedgeError) -> None:
        if self.transport.is_closing():
            return
        if any(cycle.response_started and not cycle.response_complete for cycle in self._active_cycles):
            self.transport.abort()  # another reply is incomplete: nothing can be sent after it
            return
        body = msgspec.json.encode(ErrorBody(message=error.message, code=error.code))
        head = f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\nconnection: close\r\n"
        more = f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        self.transport.write(f"{head}{more}".encode() + body)
        self.transport.close()

    # --- deadlines ---

    def _set_deadline(self) -> None:
        limit_s = HEAD_S_MAX if self._is_in_head else BODY_S_MAX
        self._deadline = self.loop.call_later(limit_s - GRACE_S, self._begin_grace)

    def _clear_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _begin_grace(self) -> None:
        self._deadline = self.loop.call_later(GRACE_S, self._on_deadline)

    def _on_deadline(self) -> None:
        self._refuse(TooSlow("The request was not complete in time; send it again."))

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection, after GRACE_S: a request that has arrived cancels the timer."""
        self.timeout_keep_alive_task = self.loop.call_later(GRACE_S, super().timeout_keep_alive_handler)

    # --- clients that do not read ---

    async def _drain(self) -> None:
        """Wait until the kernel has taken all data.

        uvicorn waits before a write, not after it: the sender would have made the next slice already."""
        if not self._is_event_stream and not self.transport.is_closing():
            self._is_event_stream = True
            self.transport.set_write_buffer_limits(high=0)
        if self.flow.write_paused:
            await self.flow.drain()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unreceived, self._received_at = self._unreceived_bytes(), self.loop.time()
        if self._stall_timer is None:
            self._stall_timer = self.loop.call_later(self.stall_s / STALL_CHECKS, self._check_stall)

    def _check_stall(self) -> None:
        """Drop a client that has received nothing for `stall_s`. A slow client is kept.

        Closing the connection would wait for the client again. One timer is armed while there is something to send: a
        timer per pause would cost more than the write."""
        self._stall_timer = None
        if not self.flow.write_paused:
            return
        unreceived = self._unreceived_bytes()
        if unreceived < self._unreceived:
            self._received_at = self.loop.time()
        self._unreceived = unreceived
        rest_s = self._received_at + self.stall_s - self.loop.time()
        if rest_s > 0:
            self._stall_timer = self.loop.call_later(min(rest_s, self.stall_s / STALL_CHECKS), self._check_stall)
        else:
            self.transport.abort()

    def _unreceived_bytes(self) -> int:
        """Return the bytes in the transport and in the kernel's buffer of this connection.

        The kernel takes more only when a large part of its buffer is free, which takes a slow client minutes."""
        queued = bytearray(4)
        with suppress(OSError):
            ioctl(self.transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, queued)
        return self.transport.get_write_buffer_size() + int.from_bytes(queued, sys.byteorder)
