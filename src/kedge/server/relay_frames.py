"""The frames of the serving node, applied to a Mirror."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct, field

from kedge.core.transcript import Message, Reasoning, Text
from kedge.engine.feed import Frame
from kedge.engine.mirror import Mirror, is_streaming
from kedge.server.relay_routes import SESSIONS
from kedge.wire import models as m
from kedge.wire.event_models import GapBody
from kedge.wire.relay_models import RelaySession


class _Change(Struct):
    type: str
    payload: msgspec.Raw


class _Envelope(Struct):
    type: str
    payload: _Change


class _Job(Struct):
    id: str
    state: str


class _Part(Struct):
    type: str


class _Routing(Struct):
    """The fields of a payload that select its readers."""

    id: str = ""
    session_id: str = ""
    role: str = ""
    parts: list[_Part] = field(default_factory=list)


class _Session(Struct):
    id: str
    attached_clients: int
    jobs: list[_Job] = field(default_factory=list)


_envelope = msgspec.json.Decoder(_Envelope)
_routing = msgspec.json.Decoder(_Routing)
_delta = msgspec.json.Decoder(m.DeltaBody)
_session = msgspec.json.Decoder(_Session)
_sessions = msgspec.json.Decoder(list[RelaySession])
_presence = msgspec.json.Decoder(m.PresenceBody)
_message = msgspec.json.Decoder(m.MessageBody)
_gap = msgspec.json.Decoder(GapBody)


class LogReplaced(Exception):
    """The log of the serving node ends before the Position of the mirror: the database was restored."""


class FrameBuffer:
    """A stream split into frames, each with the empty line at its end.

    It holds one incomplete frame. The largest is a complete message, which the serving node has limited."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._searched = 0

    def add(self, data: bytes) -> Iterator[bytes]:
        self._data += data
        start = 0
        while (end := self._data.find(b"\n\n", max(start, self._searched))) >= 0:
            yield bytes(self._data[start : end + 2])
            start = end + 2
        del self._data[:start]
        self._searched = max(len(self._data) - 1, 0)


def take_frame(mirror: Mirror, data: bytes) -> None:
    """Apply one frame of a stream with Deltas, of all sessions."""
    if data.startswith(b":"):
        if data.startswith(SESSIONS):
            _take_sessions(mirror, data.removeprefix(SESSIONS))
        return
    head, _, body = data.partition(b"data: ")
    if not body:
        return  # the start Position
    envelope = _envelope.decode(body)
    position = int(head.removeprefix(b"id: ")) if head else None
    if position is None:
        _take_transient(mirror, envelope, data)
    elif position > mirror.head:
        _take_durable(mirror, envelope, data, position)


def _take_durable(mirror: Mirror, envelope: _Envelope, data: bytes, position: int) -> None:
    kind, payload = envelope.type, envelope.payload.payload
    routing = _routing.decode(payload)
    session_id = routing.id if kind == "session" else routing.session_id
    if kind == "session" and envelope.payload.type != "deleted":
        _take_session(mirror, payload)
    message: Message | None = None
    if kind == "message":
        mirror.end_message(routing.id)
        message = _streaming(routing, payload)
    if session_id:
        mirror.publish(position, [Frame(position, session_id, "all", data)])
    else:
        mirror.skip(position)  # its record was deleted: readers receive it from the log
    if message is not None:
        mirror.begin_message(message)


def _take_transient(mirror: Mirror, envelope: _Envelope, data: bytes) -> None:
    payload = envelope.payload.payload
    match envelope.type:
        case "delta":
            delta = _delta.decode(payload)
            mirror.add(delta.message_id, (delta.part, delta.kind, delta.text))
        case "message":
            if (message := _streaming(_routing.decode(payload), payload)) is not None:
                mirror.show(message)
        case "config_problem":
            mirror.announce(data)
        case "extension":
            mirror.announce(data, to_later=False)
        case "permission_request" | "question_batch_request":
            pass  # readers receive pending Asks from the store
        case "gap":
            if (position := _gap.decode(payload).position) < mirror.head:
                raise LogReplaced
            mirror.skip(position)
        case "presence":
            presence = _presence.decode(payload)
            mirror.attendance.clients[presence.session_id] = presence.attached_clients
            mirror.send_transient(presence.session_id, data)
        case _:
            mirror.send_transient(_routing.decode(payload).session_id, data)


def _take_sessions(mirror: Mirror, data: bytes) -> None:
    sessions = _sessions.decode(data)
    mirror.attendance.clients = {one.id: one.attached_clients for one in sessions}
    mirror.attendance.jobs = {one.id: frozenset(one.jobs) for one in sessions}


def _take_session(mirror: Mirror, payload: msgspec.Raw) -> None:
    session = _session.decode(payload)
    mirror.attendance.clients[session.id] = session.attached_clients
    mirror.attendance.jobs[session.id] = frozenset(job.id for job in session.jobs if job.state == "running")


def _streaming(routing: _Routing, payload: msgspec.Raw) -> Message | None:
    """Return the message if it is still streaming."""
    if routing.role != "assistant" or any(part.type not in ("text", "reasoning") for part in routing.parts):
        return None
    body = _message.decode(payload)
    parts = tuple(_part(part.type, part.data) for part in body.parts)
    message = Message(
        body.id,
        body.session_id,
        body.role,
        parts,
        body.created_at,
        body.updated_at,
        body.run_id,
        body.model,
        body.provider,
        body.is_summary,
    )
    return message if is_streaming(message) else None


def _part(kind: str, data: dict[str, Any]) -> Text | Reasoning:
    return Text(data["text"]) if kind == "text" else msgspec.convert(data, Reasoning)
