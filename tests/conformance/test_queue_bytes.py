"""Large prompts in the queue: bounds in bytes, and attachments that stay on disk until their Run starts."""

from __future__ import annotations

import base64
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conformance.harness import Endpoint, Json, Peer, Server, unique
from tests.conformance.test_c_queue import held_run, memory_kb, queued

MIB = 1024 * 1024


def picture(size: int) -> list[Json]:
    """An attachment whose content no other has. The model does not repeat it, as it would a text."""
    content = random.randbytes(16).ljust(size, b".")
    return [{"file_name": "a.png", "mime_type": "image/png", "content": base64.b64encode(content).decode()}]


async def refused(peer: Peer, method: str, path: str, body: Json) -> str:
    reply = await peer.reply(method, path, body)
    assert (reply.status_code, reply.json()["code"]) == (429, "queue_full")
    return str(reply.json()["message"])


@pytest.mark.found(
    "fault 5",
    "the queue was bounded by Runs, not by bytes: 60 prompts of 11.5 MB cost 1 GB of memory; beyond a limit of bytes "
    "per session or server, a prompt is refused as queue_full",
)
async def test_queue_is_bounded_in_bytes(
    own_server: Callable[..., Server], workspace: Path, endpoint: Endpoint
) -> None:
    server = own_server("[runs]\nqueue_mib_max = 3\n[server]\nqueue_mib_max = 5")
    async with server.peer(workspace) as peer:
        session, other = await peer.session(), await peer.session()
        await held_run(peer, endpoint, session)
        _, _, other_key = await held_run(peer, endpoint, other)
        for run_id in ("first", "second"):
            await peer.submit(session, "script: say x", run_id=run_id, attachments=picture(MIB))
        body: Json = {"session_id": session, "prompt": "x", "run_id": unique("r"), "attachments": picture(MIB + 1)}
        message = await refused(peer, "POST", f"{peer.at}/agent", body)
        assert "of this session would have 3.0 MiB" in message
        assert "at most 3 MiB" in message
        await peer.run(body["run_id"], expect=404)
        edit = {"prompt": "x", "attachments": picture(2 * MIB)}
        assert "session" in await refused(peer, "PATCH", f"{peer.at}/agent/runs/second", edit)
        # A repeated submit is not a new prompt, and a small one still fits.
        small: Json = {"run_id": "small", "attachments": picture(MIB // 10)}
        assert await peer.submit(session, "x", **small) == await peer.submit(session, "x", **small)
        await peer.submit(other, "script: say x", run_id="third", attachments=picture(2 * MIB))
        body = {"session_id": other, "prompt": "script: say y", "run_id": "fourth", "attachments": picture(MIB - 1000)}
        assert "of this server would have 5.1 MiB" in await refused(peer, "POST", f"{peer.at}/agent", body)
        await peer.cancel(session)
        await peer.call("POST", f"{peer.at}/agent", body, expect=202)
        endpoint.release(other_key)
        assert (await peer.wait("fourth"))["outcome"] == "completed"


@pytest.mark.found(
    "fault 5",
    "queued prompts were in memory with their attachments, and each listing, move and start decoded them; attachments "
    "are stored once, and loaded when their Run starts",
)
async def test_queued_attachments_stay_on_disk(
    own_server: Callable[..., Server], workspace: Path, endpoint: Endpoint
) -> None:
    server = own_server("[runs]\nqueue_mib_max = 1000")
    size, count = 4 * MIB, 20
    async with server.peer(workspace) as peer:
        session, tag = await peer.session(), unique("tag")
        _, _, key = await held_run(peer, endpoint, session)
        before_kb = memory_kb(server)
        contents = picture(size)
        await peer.submit(session, f"script: tag {tag} | say read", run_id="first", attachments=contents)
        for number in range(count - 1):
            await peer.submit(session, "script: say x", run_id=f"r{number}", attachments=picture(size))
        await peer.submit(session, "script: say x", run_id="again", attachments=contents)
        await peer.call("POST", f"{peer.at}/agent/runs/again/move", {"before": "first"})
        assert len(await queued(peer, session)) == count + 1
        assert (memory_kb(server) - before_kb) * 1024 < size * count // 2
    server.kill()
    server.start()
    async with server.peer(workspace) as peer:
        assert (memory_kb(server) - before_kb) * 1024 < size * count // 2
        endpoint.release(key)
        assert (await peer.wait("first"))["text"] == "read"
        assert contents[0]["content"] in str(endpoint.requests(tag)[0].body)
        (shown,) = [
            part["data"]
            for m in await peer.messages(session)
            if m["run_id"] == "first"
            for part in m["parts"]
            if part["type"] == "file"
        ]
        assert (shown["size"], set(shown)) == (size, {"path", "mime_type", "size", "digest"})
