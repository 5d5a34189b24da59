"""The start of an event stream."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

from kedge.server.asgi import HttpRequest
from kedge.server.stream import EventRoutes, EventsQuery
from kedge.testing.scripted import ScriptedModel
from tests.engine.rig import CLIENT, rig


async def test_a_stream_reports_a_gap_before_its_position(tmp_path: Path) -> None:
    """If the connection is lost after the first write, the client still has the gap."""
    async with rig(tmp_path, ScriptedModel("x")) as r:
        await r.end(await r.submit())
        sent: list[bytes] = []
        gone = asyncio.Event()

        async def send(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.body":
                sent.append(message["body"])
                gone.set()

        async def receive() -> MutableMapping[str, Any]:
            await gone.wait()
            return {"type": "http.disconnect"}

        query = EventsQuery(client_id=CLIENT, after="7")
        scope = {"kedge.abort": lambda: None, "kedge.drain": gone.wait}
        request = HttpRequest({"id": r.workspace.id}, query, None, [], scope, receive, send)
        await EventRoutes(r.engine).events(request)
        assert 0 <= sent[0].find(b'"type":"gap"') < sent[0].find(b"\nid: ")
