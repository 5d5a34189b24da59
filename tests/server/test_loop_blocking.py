"""Large requests and replies do not block the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, MutableMapping
from typing import Any

import msgspec
import pytest

from kedge.errors import TooLarge
from kedge.server.asgi import _body, _encoded, route
from kedge.wire import models as m
from kedge.wire.limits import BODY_BYTES_MAX


@pytest.mark.found(
    "attack round 2: the event loop",
    "a prompt of 16 MB with five million empty attachments blocked the event loop for 0.6 s before they were counted; "
    "a body with so many commas is refused before it is decoded",
)
async def test_a_body_with_millions_of_values_is_refused() -> None:
    data = b'{"attachments": [' + b",".join([b"{}"] * 5_000_000) + b"]}"
    assert len(data) < BODY_BYTES_MAX

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request", "body": data}

    async def nothing(request: object) -> None: ...

    submit = route("POST", "/x", nothing, "x", body=m.SubmitPrompt, body_bytes_max=BODY_BYTES_MAX)
    with pytest.raises(TooLarge, match="commas"):
        await _body([(b"content-type", b"application/json")], receive, submit)


@pytest.mark.found(
    "attack round 2: the event loop",
    "a page of a thousand large messages was encoded without a pause, which blocked the event loop; lists are encoded "
    "item by item, with pauses",
)
async def test_other_tasks_run_while_a_list_is_encoded() -> None:
    made = 0

    def bodies() -> Iterator[str]:
        nonlocal made
        for _ in range(50):
            made += 1
            yield "x" * 300_000

    encoding = asyncio.ensure_future(_encoded(bodies()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert 0 < made < 10
    assert msgspec.json.decode(await encoding) == ["x" * 300_000] * 50
    assert await _encoded([]) == b"[]"
