"""The stream's first words."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

from kedge.server.asgi import HttpRequest
from kedge.server.stream import EventRoutes, EventsQuery
from kedge.testing.scripted import ScriptedModel
from tests.engine.rig import CLIENT, rig


async def test_a_client_never_learns_a_position_beyond_a_gap_it_was_not_told_of(tmp_path: Path) -> None:
    """The connection is lost after the first write: that one must hold the gap, ahead of the Position."""
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
        request = HttpRequest({"id": r.workspace.id}, query, None, [], {"kedge.abort": lambda: None}, receive, send)
        await EventRoutes(r.engine).events(request)
        assert 0 <= sent[0].find(b'"type":"gap"') < sent[0].find(b"\nid: ")
