"""SCENARIOS A: accept. The races between submits are in test_a_races.py."""

from __future__ import annotations

import asyncio
import base64
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conformance import raw
from tests.conformance.harness import Endpoint, Json, Peer, Server, open_http, outline, unique
from tests.conformance.rounds import Aim, Ends, fence, more_peers, no_trace


async def test_a1_a_submit_returns_before_the_model_replies(kedge: Peer, endpoint: Endpoint) -> None:
    tag, key = unique("tag"), unique("key")
    session = await kedge.session()
    receipt = await kedge.submit(session, f"script: tag {tag} | hold {key} | say hello")
    assert receipt["state"] == "active"
    assert receipt["seq"] == 1
    await endpoint.wait_open(tag)
    assert (await kedge.run(receipt["run_id"]))["state"] == "active"
    endpoint.release(key)
    run = await kedge.wait(receipt["run_id"])
    assert (run["outcome"], run["text"]) == ("completed", "hello")
    transcript = outline(await kedge.messages(session))
    assert transcript[1] == ("assistant", "hello", "end_turn")


async def test_a1_a_run_continues_when_its_submitter_disconnects(
    kedge: Peer, shared: tuple[str, str], endpoint: Endpoint
) -> None:
    tag, key = unique("tag"), unique("key")
    session = await kedge.session()
    async with open_http(*shared) as http:
        submitter = await Peer(http, kedge.directory).open()
        receipt = await submitter.submit(session, f"script: tag {tag} | say one | hold {key} | say two")
    await endpoint.wait_open(tag)
    endpoint.release(key)
    run = await kedge.wait(receipt["run_id"])
    assert (run["outcome"], run["text"]) == ("completed", "one two")


async def test_a1_a_run_continues_when_its_receipt_is_never_read(
    kedge: Peer, shared: tuple[str, str], endpoint: Endpoint
) -> None:
    url, token = shared
    key, run_id = unique("key"), unique("run")
    session = await kedge.session()
    fields = {"session_id": session, "prompt": f"script: hold {key} | say on", "run_id": run_id}
    async with kedge.stream() as stream, raw.connect(url) as line:
        await line.send(raw.submit(token, kedge.workspace, fields))
        await stream.until(lambda seen: any(frame.payload["run_id"] == run_id for frame in seen.of("run")))
        line.abort()
        endpoint.release(key)
        (end,) = await stream.until_complete(run_id)
    assert (end["outcome"], end["text"]) == ("completed", "on")


# --- A2 --------------------------------------------------------------------------------------------------------------

PICTURE = {"file_path": "a.png", "file_name": "a.png", "mime_type": "image/png", "content": "aGVsbG8="}
EMPTY_TEXT = {"file_path": "a.txt", "file_name": "a.txt", "mime_type": "text/plain", "content": ""}


@pytest.mark.parametrize(
    ("fields", "status", "code"),
    [
        pytest.param({"prompt": ""}, 400, "empty_prompt", id="empty"),
        pytest.param({"prompt": " \n\t"}, 400, "empty_prompt", id="blank"),
        pytest.param({}, 400, "empty_prompt", id="none"),
        pytest.param({"prompt": "", "attachments": [PICTURE]}, 400, "empty_prompt", id="only a picture"),
        pytest.param({"prompt": "", "attachments": [EMPTY_TEXT]}, 400, "empty_prompt", id="only an empty text"),
        pytest.param({"prompt": "hello", "session_id": ""}, 400, "invalid", id="empty session_id"),
        pytest.param({"prompt": "hello", "session_id": "nobody"}, 404, "session_not_found", id="unknown session"),
    ],
)
async def test_a2_a_refused_prompt_leaves_no_trace(kedge: Peer, fields: Json, status: int, code: str) -> None:
    session = await kedge.session()
    run_id = unique("run")
    (kedge.directory / "a.txt").touch()
    async with no_trace(kedge, session):
        body = {"session_id": session, "run_id": run_id, **fields}
        error = await kedge.call("POST", f"{kedge.at}/agent", body, expect=status)
        assert error["code"] == code
        await kedge.run(run_id, expect=404)


async def test_a2_a_prompt_without_a_session_leaves_no_trace(kedge: Peer) -> None:
    async with no_trace(kedge, await kedge.session()):
        error = await kedge.call("POST", f"{kedge.at}/agent", {"prompt": "hello"}, expect=400)
        assert "session_id" in error["message"]


async def test_a2_a_prompt_to_a_foreign_session_leaves_no_trace(kedge: Peer, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    elsewhere = await Peer(kedge.http, tmp_path / "elsewhere").open()
    session = await elsewhere.session()
    async with no_trace(elsewhere, session), no_trace(kedge, await kedge.session()):
        assert (await kedge.submit(session, "hello", expect=404))["code"] == "session_not_found"


@pytest.mark.found(
    "issue 20",
    "an empty prompt with a text file attached by path was refused, since the file was not read yet; the check follows "
    "the read",
)
async def test_a2_an_empty_prompt_with_an_attached_text_is_accepted(kedge: Peer, endpoint: Endpoint) -> None:
    (kedge.directory / "a.txt").write_text("what to do")
    content = base64.b64encode(b"what to do").decode()
    for text in ({**EMPTY_TEXT, "content": content}, EMPTY_TEXT, {"file_path": "a.txt"}):
        receipt = await kedge.submit(await kedge.session(), "", attachments=[text])
        assert (await kedge.wait(receipt["run_id"]))["outcome"] == "completed"


async def test_a2_a_prompt_to_a_closed_workspace_leaves_no_trace(kedge: Peer) -> None:
    unknown = {"session_id": await kedge.session(), "prompt": "hello"}
    error = await kedge.call("POST", "/workspaces/nowhere/agent", unknown, expect=404)
    assert error["code"] == "workspace_not_found"

    session = await kedge.session()
    await kedge.call("DELETE", kedge.at, client_id=kedge.client_id)
    assert (await kedge.submit(session, "hello", expect=404))["code"] == "workspace_not_found"
    await kedge.open()
    async with no_trace(kedge, session):
        pass
    assert await kedge.runs(session) == []


async def test_a2_a_prompt_to_a_closing_workspace_runs_or_is_refused(kedge: Peer) -> None:
    """A closing workspace is hard to hit from outside; any reply is valid if it is true."""
    session = await kedge.session()
    leaving = Aim()
    for number in range(40):
        chance, run_id = random.Random(number), unique("run")

        async def leave(chance: random.Random = chance) -> None:
            await leaving.lag(chance)
            await kedge.call("DELETE", kedge.at, client_id=kedge.client_id)

        body = {"session_id": session, "prompt": "script: say hello", "run_id": run_id}
        _, reply = await asyncio.gather(leave(), kedge.reply("POST", f"{kedge.at}/agent", body))
        await kedge.open()
        leaving.saw(was_first=reply.status_code != 202)
        if reply.status_code == 202:
            assert (await kedge.wait(run_id))["outcome"] == "completed"
        else:
            reported = (reply.status_code, reply.json()["code"])
            assert reported in ((404, "workspace_not_found"), (409, "workspace_closing"))
            await kedge.run(run_id, expect=404)
    leaving.check()


# --- A3 --------------------------------------------------------------------------------------------------------------


async def test_a3_concurrent_releases_of_a_claim_count_once(kedge: Peer, shared: tuple[str, str]) -> None:
    """Repeated releases by one client do not affect the claim of another; the last release closes the workspace."""
    async with more_peers(kedge, shared, 1) as (other,):
        assert other.workspace == kedge.workspace
        for _ in range(2):
            letting_go = (kedge.call("DELETE", kedge.at, client_id=kedge.client_id) for _ in range(30))
            await asyncio.gather(*letting_go)
        receipt = await other.submit(await other.session(), "script: say still here")
        assert (await other.wait(receipt["run_id"]))["text"] == "still here"

        replies = [other.reply("DELETE", other.at, client_id=other.client_id) for _ in range(30)]
        statuses = [reply.status_code for reply in await asyncio.gather(*replies)]
        assert set(statuses) == {200, 404}
        assert statuses.count(200) == 1
        await other.call("GET", other.at, expect=404)
        await other.open()
        assert (await other.call("GET", other.at))["id"] == kedge.workspace


async def test_a3_a_release_without_a_claim_affects_no_client(kedge: Peer) -> None:
    strangers = [Peer(kedge.http, kedge.directory).client_id for _ in range(20)]
    async with kedge.stream() as stream:
        await asyncio.gather(*(kedge.call("DELETE", kedge.at, client_id=stranger) for stranger in strangers))
        await kedge.call("DELETE", kedge.at, client_id=kedge.client_id)
        await fence(kedge, stream)  # a client with an open stream keeps its claim
        assert not stream.ended


async def test_a3_concurrent_removals_of_a_queued_run_count_once(kedge: Peer, endpoint: Endpoint) -> None:
    key = unique("key")
    session = await kedge.session()
    async with kedge.stream() as stream:
        prompts = [f"script: hold {key} | say {number}" for number in range(4)]
        active, second, third, fourth = [
            (await kedge.submit(session, prompt, run_id=unique("run")))["run_id"] for prompt in prompts
        ]
        replies = await asyncio.gather(*(kedge.cancel_run(run_id) for run_id in [second, third] * 10))
        assert sorted(run["run_id"] for reply in replies for run in reply["covered"]) == sorted([second, third])
        assert [run["state"] for run in await kedge.runs(session)].count("queued") == 1
        endpoint.release(key)
        ends = await stream.until_complete(active, second, third, fourth)
        assert [end["outcome"] for end in ends] == ["completed", "cancelled", "cancelled", "completed"]
        await fence(kedge, stream)
        assert all(len(completes) == 1 for completes in Ends(stream).all().values())


# --- A4 --------------------------------------------------------------------------------------------------------------


async def test_a4_the_same_run_id_and_content_is_one_run(kedge: Peer, endpoint: Endpoint) -> None:
    key, run_id = unique("key"), unique("run")
    session = await kedge.session()
    async with kedge.stream() as stream:
        prompt = f"script: hold {key} | say once"
        first = await kedge.submit(session, prompt, run_id=run_id)
        assert await kedge.submit(session, prompt, run_id=run_id) == first
        # `when_busy` is not part of the content of a Run.
        for when_busy in ("queue", "fold", "reject", "interrupt"):
            assert await kedge.submit(session, prompt, run_id=run_id, when_busy=when_busy) == first
        endpoint.release(key)
        await stream.until_complete(run_id)
        assert await kedge.submit(session, prompt, run_id=run_id) == first, "also after its end"
        await fence(kedge, stream)
        assert len(stream.completes(run_id)) == 1
    assert [run["run_id"] for run in await kedge.runs(session)] == [run_id]
    assert outline(await kedge.messages(session)) == [("user", prompt, None), ("assistant", "once", "end_turn")]


@pytest.mark.parametrize(
    "other", [{"prompt": "script: say another"}, {"max_steps": 3}, {"timeout_s": 30}, {"model": "local/fake-small"}]
)
async def test_a4_the_same_run_id_with_other_content_is_a_conflict(kedge: Peer, other: Json) -> None:
    run_id = unique("run")
    session = await kedge.session()
    content: Json = {"prompt": "script: say this", "run_id": run_id}
    first = await kedge.submit(session, **content)
    for _ in range(2):
        assert (await kedge.submit(session, **{**content, **other}, expect=409))["code"] == "run_id_reused"
        await kedge.wait(run_id)
    assert await kedge.submit(session, **content) == first
    second_session = await kedge.session()
    async with no_trace(kedge, second_session):
        assert (await kedge.submit(second_session, **content, expect=409))["code"] == "run_id_reused"
    assert len(await kedge.runs(session)) == 1


async def test_a4_the_same_run_id_after_a_restart_is_the_same_run(
    own_server: Callable[..., Server], workspace: Path, endpoint: Endpoint
) -> None:
    key, tag = unique("key"), unique("tag")
    server = own_server()
    prompts = [(unique("run"), f"script: say {number} | tag {tag} | hold {key}") for number in range(3)]
    ended = unique("run")
    async with server.peer(workspace) as peer:
        session = await peer.session()
        receipts = [await peer.submit(session, "script: say done", run_id=ended)]
        await peer.wait(ended)
        receipts += [await peer.submit(session, prompt, run_id=run_id) for run_id, prompt in prompts]
    server.kill()
    server.start()
    async with server.peer(workspace) as peer:
        again = [await peer.submit(session, "script: say done", run_id=ended)]
        again += [await peer.submit(session, prompt, run_id=run_id) for run_id, prompt in prompts]
        assert again == receipts
        error = await peer.submit(session, "script: say other", run_id=ended, expect=409)
        assert error["code"] == "run_id_reused"
        endpoint.release(key)
        for run_id, _ in prompts:
            assert (await peer.wait(run_id))["outcome"] == "completed"
        assert len(await peer.runs(session)) == 4


# --- A5 --------------------------------------------------------------------------------------------------------------


async def test_a5_an_accepted_run_survives_a_kill_after_the_reply(
    own_server: Callable[..., Server], workspace: Path, endpoint: Endpoint
) -> None:
    server = own_server()
    receipts: list[Json] = []
    session = ""
    for number in range(4):
        async with server.peer(workspace) as peer:
            session = session or await peer.session()
            count = 1 + number % 3
            for _ in range(count):
                receipts.append(await peer.submit(session, "script: say safe", run_id=unique("run")))
            server.kill()
        server.start()
        async with server.peer(workspace) as peer:
            found = {run["run_id"]: run for run in await peer.runs(session)}
            assert len(found) == len(receipts)
            assert [found[receipt["run_id"]]["seq"] for receipt in receipts] == list(range(1, len(receipts) + 1))
            for receipt in receipts[-count:]:
                run = await peer.wait(receipt["run_id"])
                assert (run["outcome"], run["text"]) == ("completed", "safe")
