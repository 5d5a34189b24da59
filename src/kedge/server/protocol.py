"""One connection: where it comes from, and what it may cost before and after anybody has shown a token.

The parser below knows HTTP and no bounds. So here: a head, a trailer or the frame of a chunk has so many bytes; a whole
request has so much time; requests sent ahead of their replies are read when it is their turn; and when the connection
is lost, each request under way on it is told, not only the last.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from pathlib import Path
from typing import Any

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from kedge.errors import Invalid
from kedge.wire.models import ErrorBody

#: Bytes that bring nothing: the request line and headers together, or what frames a body, or what trails it. Ours have
#: some hundred.
HEAD_BYTES_MAX = 64 * 1024
#: Given to the parser at once: some hundred requests at most, which is some ten milliseconds. Bytes.
SLICE_BYTES = 8 * 1024
#: From a connection's beginning, or a request's first byte, to the last of its head. Seconds.
HEAD_S_MAX = 20.0
#: From there to the last byte of its body: the largest one, over a line as slow as a telephone's. Seconds.
BODY_S_MAX = 300.0
#: After this the kernel gives up on a peer that does not acknowledge what we sent: half-open connections. Seconds.
TCP_SILENCE_S = 30


class Protocol(HttpToolsProtocol):
    local_socket = False
    #: Bytes received since the parser last made something of them.
    _idle_bytes = 0
    _is_in_request = True  # a connection on which nothing was said yet owes us a head
    _is_in_head = True
    _deadline: asyncio.TimerHandle | None = None
    _under_way: tuple[RequestResponseCycle, ...] = ()
    #: Received, and not looked at yet.
    _unread = b""

    # --- a connection ---

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        connection = transport.get_extra_info("socket")
        if connection.family == socket.AF_UNIX:
            self.local_socket = True
            pid, user = _peer(connection)
            if user not in (os.getuid(), 0) or _is_ours(pid):
                transport.abort()
        elif hasattr(socket, "TCP_USER_TIMEOUT"):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, TCP_SILENCE_S * 1000)
        self._set_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        for cycle in self._under_way:
            # The parent class tells the last of them only: one behind which others wait would wait for ever.
            cycle.disconnected = not cycle.response_complete
            cycle.message_event.set()
        self._forget_deadline()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """In slices, and none while requests wait for their turn: what is sent ahead of its reply stays unread."""
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
            is_idle = all(cycle.response_complete for cycle in self._under_way)
            if is_idle and self.timeout_keep_alive_task is None and not self.transport.is_closing():
                # The parent class has stopped this timer for bytes that began no request.
                late = self.timeout_keep_alive_handler
                self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, late)
            return
        if self._idle_bytes > HEAD_BYTES_MAX:
            what = "the head of the request" if self._is_in_head else "what frames or trails the body"
            self.send_400_response(f"{what} has more than {HEAD_BYTES_MAX} bytes")
        elif self._deadline is None:
            self._set_deadline()

    def _read_on(self) -> None:
        if not self.transport.is_closing():
            self.flow.resume_reading()
            self.data_received(b"")

    # --- what the parser finds ---

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_in_request, self._is_in_head, self._idle_bytes = True, True, 0
        self._forget_deadline()
        self.scope["kedge.local_socket"] = self.local_socket  # type: ignore[typeddict-unknown-key]
        self.scope["kedge.abort"] = self.transport.abort  # type: ignore[typeddict-unknown-key]

    def on_headers_complete(self) -> None:
        if not self.url.startswith(b"/"):
            # A proxy's form, with a host of its own beside the Host header: two names for one server are one too many.
            raise ValueError("the target of a request is a path")
        super().on_headers_complete()
        self._is_in_head, self._idle_bytes = False, 0
        self._forget_deadline()
        self.headers = []  # what trails a body is no header: whoever asks was judged by those above
        self._under_way = (*(cycle for cycle in self._under_way if not cycle.response_complete), self.cycle)

    def on_body(self, body: bytes) -> None:
        self._idle_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._is_in_request = False
        self._forget_deadline()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing() or not (self.pipeline or self._unread):
            return
        # The parent class reads on after each reply, and a client that sends ahead would have us do nothing else.
        self.flow.pause_reading()
        if not self.pipeline:
            self.loop.call_soon(self._read_on)

    def send_400_response(self, msg: str) -> None:
        """To what cannot be taken for a request; the same body as every error has. Then the connection is closed."""
        if self.transport.is_closing():
            return
        if any(cycle.response_started and not cycle.response_complete for cycle in self._under_way):
            self.transport.abort()  # in the middle of another reply nothing more can be said
            return
        body = msgspec.json.encode(ErrorBody(message=msg, code=Invalid.code))
        head = b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close\r\n"
        self.transport.write(head + b"content-length: %d\r\n\r\n%b" % (len(body), body))
        self.transport.close()

    # --- time ---

    def _set_deadline(self) -> None:
        self._deadline = self.loop.call_later(HEAD_S_MAX if self._is_in_head else BODY_S_MAX, self._on_deadline)

    def _forget_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _on_deadline(self) -> None:
        self.send_400_response("the request did not come whole in time")


def _peer(connection: Any) -> tuple[int, int]:
    """The process and the user at the other end."""
    if not hasattr(socket, "SO_PEERCRED"):
        return 0, os.getuid()  # no way to ask; the socket's mode keeps others out
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, user, _ = struct.unpack("3i", credentials)
    return pid, user


def _is_ours(pid: int) -> bool:
    """Whether a tool started it: what an agent runs shall not answer the agent's own approvals. One that is gone by now
    may have been."""
    while pid != os.getpid():
        if pid <= 1:
            return False
        try:
            about = Path(f"/proc/{pid}/stat").read_bytes()  # no text: its name is cut after 15 bytes
        except OSError:
            return not _is_of_another_user(pid)
        pid = int(about.rpartition(b")")[2].split()[1])
    return True


def _is_of_another_user(pid: int) -> bool:
    """Of those /proc may not tell; no tool is, and nobody above such a process is a tool."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except ProcessLookupError:
        pass
    return False
