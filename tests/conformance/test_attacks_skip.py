"""Skipping the approvals of a workspace: every client is notified, and it ends with the client that requested it."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conformance.harness import Json, Peer, Server, Stream
from tests.conformance.test_attacks_permissions import needed_approval, tried
from tests.conformance.test_i_agent import call


@pytest.mark.found(
    "attack 18",
    "skipping all approvals of a workspace was reported to no other client, logged nowhere, and outlived the client "
    "that had asked for it; it is on every stream and in the log, and ends with that client's claim",
)
@pytest.mark.parametrize("leave", ["release", "retire"])
async def test_skipping_is_announced_and_ends_with_its_client(
    own_server: Callable[..., Server], workspace: Path, leave: str
) -> None:
    async def announced(stream: Stream, state: Json) -> None:
        await stream.until(lambda stream: [one.payload for one in stream.of("permission_skip")[-1:]] == [state])

    server = own_server()
    touch = call("bash", command="touch made")
    async with server.http() as http:
        one, other = await Peer(http, workspace).open(), await Peer(http, workspace).open()
        session_id = await other.session()
        async with other.stream(deltas=1) as all_, other.stream(session_id=session_id) as of_session:
            await one.skip_approvals()
            skipped = {"skip": True, "given_by": one.client_id}
            for stream in (all_, of_session):
                await announced(stream, skipped)
            async with other.stream() as later:
                await announced(later, skipped)
            assert (await other.call("GET", other.at))["skip_approvals"]
            if leave == "release":
                await one.call("DELETE", one.at, client_id=one.client_id)
            else:
                await one.call("DELETE", f"/clients/{one.client_id}")
            for stream in (all_, of_session):
                await announced(stream, {"skip": False})
            (result,) = await tried(other, touch)
            assert needed_approval(result)
        # A client without a claim cannot request it, nor can a request without a client.
        path, body = f"{other.at}/permissions/skip", {"skip": True}
        await one.call("POST", path, body, client_id=str(uuid.uuid4()), expect=409)
        await one.call("POST", path, body, expect=400)
        assert await other.call("GET", path) == {"skip": False}
    logged = server.log
    assert f"approvals are skipped in workspace {other.workspace}" in logged
    assert one.client_id in logged
    assert "approvals are required again" in logged
