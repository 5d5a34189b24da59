"""The baseline for streaming: a minimal Python server in a separate process.

It calls the model and writes each word to each reader immediately, in the frame format of the server. It has no
session, store, flush interval, resume, HTTP library or checks. The ratio of the server's cost to the relay's, measured
in the same run, depends less on the machine than seconds do. (The server can be cheaper: it merges words.)
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Iterator

import msgspec
import uvloop

from bench.load import Body, request
from bench.server import Address, cpu_s, first_line, process

_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
_ACCEPTED = b'HTTP/1.1 202 Accepted\r\nContent-Type: application/json\r\nContent-Length: 15\r\n\r\n{"run_id":"r1"}'
_DELTA = (
    b'data: {"type":"delta","payload":{"type":"updated","payload":'
    b'{"message_id":"m23456789abcdef","part":0,"text":%b}}}\n\n'
)
_COMPLETE = b'id: 1\ndata: {"type":"run_complete","payload":{"type":"created","payload":{}}}\n\n'


class Relay:
    """The relay process."""

    def __init__(self, pid: int, address: Address) -> None:
        self._pid = pid
        self.address = address

    @classmethod
    @contextlib.contextmanager
    def open(cls, model: Address) -> Iterator[Relay]:
        with process("bench.relay", model.host, str(model.port)) as child:
            yield cls(child.pid, Address.of(first_line(child.stdout)))

    @property
    def cpu_s(self) -> float:
        return cpu_s(self._pid)


# --- the process -----------------------------------------------------------------------------------------------------


class _Delta(msgspec.Struct):
    content: msgspec.Raw = msgspec.Raw()


class _Choice(msgspec.Struct):
    delta: _Delta


class _Frame(msgspec.Struct):
    choices: list[_Choice]


_frames = msgspec.json.Decoder(_Frame)


class _Client(asyncio.Protocol):
    """A reader (GET) or a submitter (POST, with the request in one piece)."""

    transport: asyncio.Transport

    def __init__(self, model: Address, readers: list[asyncio.Transport]) -> None:
        self._model = model
        self._readers = readers
        self._call: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        if self.transport in self._readers:
            self._readers.remove(self.transport)

    def data_received(self, data: bytes) -> None:
        if data.startswith(b"GET "):
            self._readers.append(self.transport)
            return self.transport.write(_HEAD + _chunk(b": connected\n\n"))
        prompt = msgspec.json.decode(data.partition(b"\r\n\r\n")[2])["prompt"]
        self._call = asyncio.get_running_loop().create_task(self._call_model(prompt))
        return self.transport.write(_ACCEPTED)

    async def _call_model(self, prompt: str) -> None:
        connect = asyncio.get_running_loop().create_connection
        transport, _ = await connect(lambda: Body(self._receive, lambda: None), self._model.host, self._model.port)
        body = {"model": "fake-large", "stream": True, "messages": [{"role": "user", "content": prompt}]}
        transport.write(request(self._model, "POST", "/v1/chat/completions", body))

    def _receive(self, data: bytes) -> None:
        for event in data.split(b"\n\n"):
            if event.startswith(b"data: {"):
                choices = _frames.decode(event[6:]).choices
                if choices and (word := bytes(choices[0].delta.content)):
                    self._write(_DELTA % word)
            elif event == b"data: [DONE]":
                self._write(_COMPLETE)

    def _write(self, frame: bytes) -> None:
        chunk = _chunk(frame)
        for reader in self._readers:
            reader.write(chunk)


def _chunk(frame: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(frame), frame)


async def _main(model: Address) -> None:
    readers: list[asyncio.Transport] = []
    server = await asyncio.get_running_loop().create_server(lambda: _Client(model, readers), "127.0.0.1", 0)
    print(f"listening on http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_main(Address(sys.argv[1], int(sys.argv[2]), "")))
