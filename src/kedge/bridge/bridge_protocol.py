"""The messages between the server and a bridge, and their framing. Both sides may send requests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct

#: Size of a message. The results of tools are cut before they are sent; pictures are the largest. Bytes.
MESSAGE_BYTES_MAX = 24 * 1024 * 1024
#: The length of a message, before it. Bytes.
HEADER_BYTES = 4
#: Requests of one side that wait for their replies: more than the tool calls of all Runs of a workspace. Items.
REQUESTS_MAX = 1000
#: The notice of a bridge that cannot start; its parameter is the reason.
FAILED = "failed"


class BridgeRequest(Struct, tag="request"):
    """`id` is chosen by the sender."""

    id: int
    method: str
    params: msgspec.Raw = msgspec.Raw(b"null")


class BridgeReply(Struct, tag="reply", omit_defaults=True):
    id: int
    result: msgspec.Raw = msgspec.Raw(b"null")
    #: One line for users and models. Empty: it succeeded.
    error: str = ""


class BridgeCancel(Struct, tag="cancel"):
    """The sender of a request no longer waits for its reply."""

    id: int


class BridgeNotice(Struct, tag="notice"):
    """A message without a reply."""

    method: str
    params: msgspec.Raw = msgspec.Raw(b"null")


BridgeMessage = BridgeRequest | BridgeReply | BridgeCancel | BridgeNotice
_decoder = msgspec.json.Decoder(BridgeMessage)


class BadFrame(Exception):
    """The other side sent something else than messages."""


def raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))


def encode(message: BridgeMessage) -> bytes:
    """Return a message with its length. Raises BadFrame if it is too large."""
    data = msgspec.json.encode(message)
    if len(data) > MESSAGE_BYTES_MAX:
        raise BadFrame(f"a message of {len(data)} bytes is larger than the limit of {MESSAGE_BYTES_MAX}")
    return len(data).to_bytes(HEADER_BYTES, "big") + data


class Frames:
    """Splits received bytes into messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[BridgeMessage]:
        """Yield the complete messages. Raises BadFrame for anything else."""
        self._buffer += data
        while len(self._buffer) >= HEADER_BYTES:
            size = int.from_bytes(self._buffer[:HEADER_BYTES], "big")
            if size > MESSAGE_BYTES_MAX:
                text = bytes(self._buffer[:200]).decode("utf-8", "replace")
                raise BadFrame(f"not a message: {text!r}")
            end = HEADER_BYTES + size
            if len(self._buffer) < end:
                return
            body = bytes(self._buffer[HEADER_BYTES:end])
            del self._buffer[:end]
            try:
                yield _decoder.decode(body)
            except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
                raise BadFrame(f"not a valid message: {error}") from None
