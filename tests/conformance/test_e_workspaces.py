"""SCENARIOS E: workspaces, and the clients and Runs that keep them open. Servers are in test_e_servers.py.

No test sleeps. To wait for the end of a hold or a grace, a test opens a second workspace and waits until that one is
closed: it was opened later, so earlier timers have expired.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from tests.conformance.harness import WAIT_S, Endpoint, Json, Peer, Server, outline, unique
from tests.conformance.rounds import Aim
from tests.conformance.watching import another, is_open, until_closed

#: Heartbeats, as a clock for polling.
BEATS = "[server]\nheartbeat_s = 0.1"
#: Long enough for the next request on a busy machine, short enough to wait for. Seconds.
SHORT = f"{BEATS}\nhold_s = 3\ngrace_s = 2.5"
#: So long that no timer expires in a test.
LONG = "[server]\nhold_s = 3600\ngrace_s = 3600"


@pytest.fixture(scope="module")
def short(endpoint: Endpoint, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    yield from started(Server(tmp_path_factory.mktemp("short"), endpoint.hosted.url, SHORT))


@pytest.fixture(scope="module")
def long(endpoint: Endpoint, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    yield from started(Server(tmp_path_factory.mktemp("long"), endpoint.hosted.url, LONG))


def started(server: Server) -> Iterator[Server]:
    """One server for all tests with the same configuration; each test has its own directories."""
    if "KEDGE_URL" in os.environ:
        pytest.skip("needs a server process of its own")
    yield server.start()
    server.stop()


async def outwait(peer: Peer) -> None:
    """Wait until all timers that were started before have expired."""
    directory = peer.directory.parent / unique("yardstick")
    directory.mkdir()
    yardstick = await Peer(peer.http, directory).open()
    await until_released(yardstick)


async def until_released(peer: Peer) -> None:
    await beat_by_beat(peer, lambda: is_open(peer, peer.workspace))


async def until_all_runs_ended(peer: Peer) -> None:
    async def is_live() -> bool:
        return bool(await peer.call("GET", "/runs"))

    await beat_by_beat(peer, is_live)


async def beat_by_beat(peer: Peer, goes_on: Callable[[], Awaitable[bool]]) -> None:
    """Wait until the condition is false, checked at each heartbeat of another stream. Polling without a pause would
    slow down concurrent tests."""
    directory = peer.directory.parent / unique("elsewhere")
    directory.mkdir()
    async with asyncio.timeout(WAIT_S), (await Peer(peer.http, directory).open()).stream() as beating:
        while await goes_on():
            beats = len(beating.comments)
            await beating.until(lambda stream, beats=beats: len(stream.comments) > beats)  # type: ignore[misc]


# --- E1 --------------------------------------------------------------------------------------------------------------


async def test_e1_one_directory_is_one_workspace_in_any_spelling(kedge: Peer, tmp_path: Path) -> None:
    link, inner = tmp_path / "link", kedge.directory / "inner"
    link.symlink_to(kedge.directory)
    (tmp_path / "chain").symlink_to(link)
    inner.mkdir()
    for spelling in (link, tmp_path / "chain", f"{kedge.directory}/", f"{inner}/..", f"{link}/inner/../."):
        body = {"path": str(spelling), "client_id": kedge.client_id}
        opened = await kedge.call("POST", "/workspaces", body)
        assert opened["id"] == kedge.workspace, spelling
        assert opened["path"] == str(kedge.directory.resolve())
    body = {"path": str(inner), "client_id": kedge.client_id}
    assert (await kedge.call("POST", "/workspaces", body))["id"] != kedge.workspace


async def test_e1_concurrent_opens_of_a_directory_get_one_workspace(kedge: Peer, tmp_path: Path) -> None:
    directory, link = tmp_path / "new", tmp_path / "link"
    directory.mkdir()
    link.symlink_to(directory)
    peers = await asyncio.gather(*(Peer(kedge.http, (directory, link)[number % 2]).open() for number in range(16)))
    assert len({peer.workspace for peer in peers}) == 1
    listed = [workspace["id"] for workspace in await kedge.call("GET", "/workspaces")]
    assert listed.count(peers[0].workspace) == 1


@pytest.mark.parametrize("path", ["relative", "", "/does/not/exist", "/dev/null", "/tmp\0", "loop"])
async def test_e1_a_path_that_is_not_a_directory_is_refused(kedge: Peer, tmp_path: Path, path: str) -> None:
    if path == "loop":
        (tmp_path / "loop").symlink_to(tmp_path / "loop")
        path = str(tmp_path / "loop")
    error = await kedge.call(
        "POST", "/workspaces", {"path": path, "client_id": kedge.client_id}, expect=422 if "\0" in path else 400
    )
    assert "path" in error["message"] or path in error["message"]


# --- E2 to E4 --------------------------------------------------------------------------------------------------------


async def test_e2_a_workspace_without_a_stream_ends_after_the_hold(short: Server, workspace: Path) -> None:
    async with short.peer(workspace) as peer:
        assert await is_open(peer, peer.workspace)
        session = await peer.session("kept")
        await until_released(peer)
        assert peer.workspace not in {found["id"] for found in await peer.call("GET", "/workspaces")}
        error = await peer.call("POST", f"{peer.at}/sessions", {"title": "late"}, expect=404)
        assert error["code"] == "workspace_not_found"
        # Nothing is lost: reopened, it is the same workspace.
        before = peer.workspace
        await peer.open()
        assert peer.workspace == before
        assert [found["id"] for found in await peer.call("GET", f"{peer.at}/sessions")] == [session]


async def test_e2_the_first_stream_takes_over_from_the_hold(short: Server, workspace: Path) -> None:
    async with short.peer(workspace) as peer, peer.stream() as stream:
        await outwait(peer)
        assert await is_open(peer, peer.workspace)
        assert not stream.ended


async def test_e2_a_create_holds_a_workspace_and_other_requests_do_not(short: Server, workspace: Path) -> None:
    async with short.peer(workspace) as peer:
        held = another(peer)
        waiting = asyncio.create_task(outwait(peer))
        while not waiting.done():
            await held.open()
            await peer.call("GET", peer.at)
        await waiting
        assert await is_open(peer, peer.workspace)
        await until_released(peer)


async def test_e3_a_reconnect_within_the_grace_keeps_the_workspace(short: Server, workspace: Path) -> None:
    async with short.peer(workspace) as peer:
        session = await peer.session()
        async with peer.stream(after=0) as stream:
            await stream.until(lambda stream: stream.positions)
            await peer.call("POST", f"{peer.at}/current-session", {"session_id": session}, client_id=peer.client_id)
        async with peer.stream(last_event_id=stream.positions[-1]) as back:
            await outwait(peer)
            assert await is_open(peer, peer.workspace)
            receipt = await peer.submit(session, "script: say hello")
            assert (await back.until_complete(receipt["run_id"]))[0]["text"] == "hello"
            # It was never closed in between: state that is only in memory still exists.
            assert (await peer.call("GET", f"{peer.at}/sessions/{session}"))["attached_clients"] == 1
        await until_released(peer)


async def test_e4_a_released_workspace_closes_with_its_last_stream(long: Server, workspace: Path) -> None:
    async with long.peer(workspace) as peer:
        async with peer.stream() as one:
            async with peer.stream():
                await peer.call("DELETE", peer.at, client_id=peer.client_id)
                assert await is_open(peer, peer.workspace)
            session = await peer.session()
            await one.until(lambda stream: stream.of("session"))
            assert (await peer.call("GET", f"{peer.at}/sessions/{session}"))["id"] == session
        await until_closed(peer, peer.workspace)


async def test_e4_a_release_without_a_stream_is_immediate(long: Server, workspace: Path) -> None:
    async with long.peer(workspace) as peer:
        friend = await another(peer).open()
        await peer.call("DELETE", peer.at, client_id=peer.client_id)
        await peer.call("DELETE", peer.at, client_id=peer.client_id)
        assert await is_open(peer, peer.workspace)  # the other client has its own claim
        await friend.call("DELETE", friend.at, client_id=friend.client_id)
        assert not await is_open(peer, peer.workspace)
        await friend.call("DELETE", friend.at, client_id=friend.client_id, expect=404)


async def test_e4_a_lost_client_has_a_grace_and_a_released_one_none(
    own_server: Callable[..., Server], workspace: Path
) -> None:
    server = own_server(f"{BEATS}\nhold_s = 3\ngrace_s = 3600")
    async with server.peer(workspace) as peer:
        async with peer.stream():
            pass
        await outwait(peer)
        assert await is_open(peer, peer.workspace)
        await peer.call("DELETE", peer.at, client_id=peer.client_id)
        assert not await is_open(peer, peer.workspace)


# --- E5 --------------------------------------------------------------------------------------------------------------


async def test_e5_a_live_run_keeps_the_workspace_open(short: Server, workspace: Path, endpoint: Endpoint) -> None:
    key, tag = unique("key"), unique("tag")
    async with short.peer(workspace) as peer:
        session = await peer.session()
        async with peer.stream():
            first = await peer.submit(session, f"script: tag {tag} | say working | hold {key} | say done")
            second = await peer.submit(session, "script: say and more", run_id=unique("run"))
            await endpoint.wait_open(tag)
        await outwait(peer)
        assert await is_open(peer, peer.workspace)
        assert endpoint.open(tag) == 1
        assert (await peer.run(first["run_id"]))["state"] == "active"
        endpoint.release(key)
        # Both end without a client; then the workspace closes.
        await until_released(peer)
        await peer.open()
        runs = [await peer.run(receipt["run_id"]) for receipt in (first, second)]
        assert [(run["outcome"], run["text"]) for run in runs] == [
            ("completed", "working done"),
            ("completed", "and more"),
        ]


async def test_e5_on_disconnect_cancel_ends_an_abandoned_run(
    short: Server, workspace: Path, endpoint: Endpoint
) -> None:
    tags, key = [unique("tag"), unique("tag")], unique("key")
    async with short.peer(workspace) as peer:
        sessions = [await peer.session(), await peer.session()]
        async with peer.stream():
            leaving: Json = {"on_disconnect": "cancel"}
            stops = await peer.submit(sessions[0], f"script: tag {tags[0]} | say working | hang", **leaving)
            stays = await peer.submit(sessions[1], f"script: tag {tags[1]} | hold {key} | say stays")
            queued = await peer.submit(sessions[1], "script: say never", run_id=unique("run"), **leaving)
            for tag in tags:
                await endpoint.wait_open(tag)
        await endpoint.wait_open(tags[0], 0)  # the model request ends, too
        await peer.open()
        run = await peer.wait(stops["run_id"])
        assert (run["outcome"], run["text"]) == ("cancelled", "working")
        assert (await peer.wait(queued["run_id"]))["outcome"] == "cancelled"
        assert outline(await peer.messages(sessions[0]))[1] == ("assistant", "working", "canceled")
        assert (await peer.run(stays["run_id"]))["state"] == "active"
        endpoint.release(key)
        assert (await peer.wait(stays["run_id"]))["text"] == "stays"


async def test_e5_a_reconnect_within_the_grace_keeps_the_run(
    short: Server, workspace: Path, endpoint: Endpoint
) -> None:
    tag, key = unique("tag"), unique("key")
    async with short.peer(workspace) as peer:
        session = await peer.session()
        async with peer.stream():
            prompt = f"script: tag {tag} | hold {key} | say here"
            receipt = await peer.submit(session, prompt, on_disconnect="cancel")
            await endpoint.wait_open(tag)
        async with peer.stream() as back:
            await outwait(peer)
            endpoint.release(key)
            assert (await back.until_complete(receipt["run_id"]))[0]["outcome"] == "completed"


async def test_e5_on_disconnect_cancel_considers_all_clients(
    short: Server, workspace: Path, endpoint: Endpoint
) -> None:
    tag = unique("tag")
    async with short.peer(workspace) as peer:
        friend = await another(peer).open()
        session = await peer.session()
        async with friend.stream() as stays:
            async with peer.stream():
                receipt = await peer.submit(session, f"script: tag {tag} | hang", on_disconnect="cancel")
                await endpoint.wait_open(tag)
            await outwait(peer)
            assert (await peer.run(receipt["run_id"]))["state"] == "active"
            assert not stays.completes(receipt["run_id"])
        await until_all_runs_ended(peer)
        await peer.open()
        assert (await peer.run(receipt["run_id"]))["outcome"] == "cancelled"


# --- E7, E8, E12 -----------------------------------------------------------------------------------------------------


async def test_e7_a_create_during_the_last_release_succeeds(long: Server, workspace: Path) -> None:
    async with long.peer(workspace) as peer:
        leaving = peer
        for number in range(40):
            coming = Peer(peer.http, workspace)
            release = leaving.call("DELETE", leaving.at, client_id=leaving.client_id)
            both = [coming.open(), release] if number % 2 else [release, coming.open()]
            await asyncio.gather(*both)
            session = await coming.session(f"session {number}")
            async with coming.stream() as stream:
                receipt = await coming.submit(session, "script: say alive")
                assert (await stream.until_complete(receipt["run_id"]))[0]["text"] == "alive"
            leaving = coming
        assert len(await leaving.call("GET", f"{leaving.at}/sessions")) == 40


async def test_e7_a_request_to_a_closed_workspace_is_not_found(long: Server, workspace: Path) -> None:
    async with long.peer(workspace) as peer:
        session = await peer.session()
        releasing = Aim()
        for number in range(40):
            chance = random.Random(number)

            async def release(chance: random.Random = chance) -> None:
                await releasing.lag(chance)
                await peer.call("DELETE", peer.at, client_id=peer.client_id)

            prompt = {"session_id": session, "prompt": "script: say x", "run_id": f"race-{number}"}
            _, accepted = await asyncio.gather(release(), peer.reply("POST", f"{peer.at}/agent", prompt))
            assert accepted.status_code in (202, 404, 409), accepted.text
            releasing.saw(was_first=accepted.status_code != 202)
            await peer.open()
            if accepted.status_code == 202:
                assert (await peer.wait(f"race-{number}"))["outcome"] == "completed"
            else:
                await peer.run(f"race-{number}", expect=404)
        releasing.check()


async def test_e8_a_retired_client_has_no_claims_and_is_refused(long: Server, workspace: Path) -> None:
    async with long.peer(workspace) as peer, peer.stream() as stream:
        await peer.call("DELETE", f"/clients/{peer.client_id}")
        await stream.until_end()
        assert not await is_open(peer, peer.workspace)
        create = {"path": str(workspace), "client_id": peer.client_id}
        error = await peer.call("POST", "/workspaces", create, expect=409)
        assert error["code"] == "client_retired"
        assert peer.workspace not in {found["id"] for found in await peer.call("GET", "/workspaces")}
        # Other clients are not affected.
        friend = await another(peer).open()
        error = await peer.call("GET", f"{friend.at}/events", client_id=peer.client_id, expect=409)
        assert error["code"] == "client_retired"
        async with friend.stream():
            await peer.call("DELETE", f"/clients/{peer.client_id}")
            assert await is_open(friend, friend.workspace)


async def test_e12_closing_a_workspace_spares_the_runs_of_another(
    long: Server, tmp_path: Path, endpoint: Endpoint
) -> None:
    tag, key = unique("tag"), unique("key")
    for name in ("stays", "goes"):
        (tmp_path / name).mkdir()
    async with long.peer(tmp_path / "stays") as peer, peer.stream(deltas=1) as stream:
        receipt = await peer.submit(await peer.session(), f"script: tag {tag} | say on and | hold {key} | say on")
        await endpoint.wait_open(tag)
        other = await Peer(peer.http, tmp_path / "goes").open()
        done = await other.submit(await other.session(), "script: say bye")
        await other.wait(done["run_id"])
        await other.call("DELETE", other.at, client_id=other.client_id)
        assert not await is_open(other, other.workspace)
        assert endpoint.open(tag) == 1
        assert (await peer.run(receipt["run_id"]))["state"] == "active"
        endpoint.release(key)
        assert (await stream.until_complete(receipt["run_id"]))[0]["text"] == "on and on"
        assert not any(frame.payload.get("run_id") == done["run_id"] for frame in stream.frames)
