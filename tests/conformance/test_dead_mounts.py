"""A workspace on a mount that stopped answering affects no other workspace, and nothing of the server."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conformance.harness import WAIT_S, Endpoint, Peer, Server, open_http, results_of, unique
from tests.conformance.test_i_agent import call
from tests.hanging_mount import HangingMount, hanging_mount

#: A server with a shorter time limit for calls on a directory. It is long enough for a busy machine. Seconds.
LOOK_S = 3.0
IMPATIENT = (
    "-c",
    f"from kedge.tools import file_threads; file_threads.LOOK_S = {LOOK_S}; from kedge.cli.main import main; main()",
)
#: A Run with a thread that cannot be stopped ends after this time. Seconds.
CLEANUP = "[runs]\ncleanup_s = 1\n"


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[HangingMount]:
    with hanging_mount(tmp_path / "mount") as mounted:
        for number in range(8):
            (mounted.source / f"{number}.txt").write_text("content\n")
        yield mounted


async def prompt_completes(peer: Peer) -> None:
    """Check that the server answers, and that a Run with tools completes in this workspace."""
    assert (await peer.http.get("/v1/health", timeout=WAIT_S)).status_code == 200
    script = f"script: {call('bash', command='echo fine > made; cat made')} | {call('view', path='made')} | say done"
    run = await peer.submit(await peer.session(), script, mode="yolo")
    ended = await peer.wait(run["run_id"])
    assert (ended["outcome"], ended["text"], ended["cleanup"]) == ("completed", "done", "clean")
    assert (peer.directory / "made").read_text() == "fine\n"


@pytest.mark.found(
    "fault 2",
    "a submit, an open or a bash call on a mount that does not answer stopped the event loop of the server; each "
    "workspace has threads of its own, and such a call fails after ten seconds",
)
@pytest.mark.timeout(180)
async def test_a_dead_mount_fails_only_its_own_requests(
    own_server: Callable[..., Server], endpoint: Endpoint, mount: HangingMount, workspace: Path
) -> None:
    server, key = own_server(CLEANUP, program=IMPATIENT), unique()
    async with server.peer(mount.path) as bad, server.peer(workspace) as good:
        session, other = await bad.session(), await bad.session()
        script = (
            f"script: tag {key} | hold {key} | {call('bash', command='pwd')} {call('bash', command='ls')} | say done"
        )
        run = await bad.submit(session, script.replace("} tool", "} | tool"), mode="yolo")
        await endpoint.wait_requests(key, 1)
        mount.hang()
        client = {"path": str(mount.path), "client_id": str(uuid.uuid4())}
        attachments = [{"file_path": "0.txt"}]
        failing = [
            asyncio.ensure_future(request)
            for request in (
                bad.submit(other, "hello", expect=504),
                bad.submit(other, "hello", expect=504, attachments=attachments),
                bad.call("POST", "/workspaces", client, expect=504),
                bad.call("POST", "/workspaces", client | {"path": f"{mount.path}/sub"}, expect=504),
                bad.call("GET", f"{bad.at}/config", expect=504),
                bad.call("GET", f"{bad.at}/models", expect=504),
                bad.call("POST", f"{bad.at}/agent/sessions/{other}/shell", {"command": "pwd"}, expect=504),
            )
        ]
        endpoint.release(key)
        await prompt_completes(good)
        for error in await asyncio.gather(*failing):
            assert error["code"] == "directory_timeout", error
            assert f"{mount.path}" in error["message"]
            assert "does not answer" in error["message"]
        assert (await bad.wait(run["run_id"]))["outcome"] == "completed"
        results = results_of(await bad.messages(session))
        assert [result["is_error"] for result in results] == [True, True]
        assert all("does not answer; check the mount" in result["content"] for result in results)
        await prompt_completes(good)
        mount.answer()
        await prompt_completes(bad)


@pytest.mark.found(
    "fault 3",
    "eight calls of view on a mount that does not answer took the threads that all Runs shared, and no Run of any "
    "workspace started any more; each workspace has threads of its own, which do not delay the end of the server",
)
@pytest.mark.timeout(180)
async def test_stuck_threads_delay_no_other_run_and_no_stop(
    own_server: Callable[..., Server], endpoint: Endpoint, mount: HangingMount, workspace: Path
) -> None:
    server, key = own_server(CLEANUP, program=IMPATIENT), unique()
    views = " | ".join(call("view", path=f"{number}.txt") for number in range(8))
    async with server.peer(mount.path) as bad, server.peer(workspace) as good:
        sessions = [await bad.session() for _ in range(5)]
        runs = [
            await bad.submit(session, f"script: tag {key} | hold {key} | {views} | say done") for session in sessions
        ]
        await endpoint.wait_requests(key, len(runs))
        mount.hang()
        endpoint.release(key)
        async with bad.stream() as stream:
            await stream.until(lambda seen: len(seen.of("message")) >= len(runs))
            await prompt_completes(good)
            await bad.cancel(sessions[0])
            (complete,) = await stream.until_complete(runs[0]["run_id"])
            assert complete["outcome"] == "cancelled"
            # The others get an error for each call, and complete.
            for session, run in zip(sessions[1:], runs[1:], strict=True):
                (complete,) = await stream.until_complete(run["run_id"])
                assert (complete["outcome"], complete["text"]) == ("completed", "done")
                results = results_of(await bad.messages(session))
                assert len(results) == 8
                assert all("does not answer" in result["content"] for result in results)
        await prompt_completes(good)
        stopping = asyncio.to_thread(_kedge_stop, server)
        assert (await stopping).returncode == 0
        assert server.process is not None
        assert await asyncio.to_thread(server.process.wait, WAIT_S) == 0


@pytest.mark.found(
    "fault 2",
    "with a live Run on a mount that does not answer, the next server did not listen; it listens, serves the other "
    "workspaces, and resumes the Run when the mount answers",
)
@pytest.mark.timeout(180)
async def test_a_server_starts_with_a_live_run_on_a_dead_mount(
    own_server: Callable[..., Server], endpoint: Endpoint, mount: HangingMount, workspace: Path
) -> None:
    server, key = own_server(CLEANUP, program=IMPATIENT), unique()
    async with server.peer(mount.path) as bad:
        session = await bad.session()
        run = await bad.submit(session, f"script: tag {key} | hold {key} | say done")
        await endpoint.wait_requests(key, 1)
    mount.hang()
    server.kill()
    await asyncio.to_thread(server.start)
    endpoint.release(key)
    async with server.peer(workspace) as good, server.http() as http:
        await prompt_completes(good)
        bad = Peer(http, mount.path)
        error = await bad.call("POST", "/workspaces", {"path": str(mount.path), "client_id": bad.client_id}, expect=504)
        assert error["code"] == "directory_timeout", error
        mount.answer()
        await bad.open()
        ended = await bad.wait(run["run_id"])
        assert (ended["outcome"], ended["text"]) == ("completed", "done")


def _kedge_stop(server: Server) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kedge", "stop", "--force", "--host", f"unix://{server.socket}"]
    return subprocess.run(command, env=server.environment, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.found(
    "fault 2",
    "file system calls on the event loop; in ordinary use the first thread of a server makes none in a workspace",
)
@pytest.mark.timeout(180)
async def test_the_event_loop_makes_no_call_in_a_workspace(
    own_server: Callable[..., Server], mount: HangingMount
) -> None:
    (mount.source / "kedge.toml").write_text("[runs]\nmax_steps = 50\n")
    (mount.source / "AGENTS.md").write_text("Be brief.\n")
    server = own_server('[sandbox]\nmode = "workspace-write"\n')
    script = " | step | ".join(
        (
            call("view", path="0.txt"),
            call("edit", path="0.txt", old_string="content", new_string="changed"),
            call("write", path="new/file.txt", content="text\n"),
            call("ls"),
            call("glob", pattern="*.txt"),
            call("grep", pattern="cont"),
            call("grep", pattern="changed", path="0.txt"),
            call("bash", command="cat 0.txt"),
            call("bash", command="ls new", cwd="new"),
            call("agent", prompt="script: say found", description="x"),
            call("view", path="missing.txt"),
        )
    )
    async with server.peer(mount.path) as peer:
        session = await peer.session()
        run = await peer.submit(
            session, f"script: {script} | say done", mode="yolo", attachments=[{"file_path": "1.txt"}]
        )
        ended = await peer.wait(run["run_id"])
        assert ended["outcome"] == "completed", ended
        results = results_of(await peer.messages(session))
        assert [result["is_error"] for result in results] == [False] * 10 + [True], results
        assert (await peer.call("GET", f"{peer.at}/config"))["runs"]["max_steps"] == 50
        (mount.source / "kedge.toml").write_text("[runs]\nmax_steps = 51\n")
        assert (await peer.call("GET", f"{peer.at}/config"))["runs"]["max_steps"] == 51
        await peer.call("GET", f"{peer.at}/models")
        await peer.call("POST", f"{peer.at}/agent/sessions/{session}/shell", {"command": "ls"})
        await peer.call("POST", f"{peer.at}/sessions/{session}/undo", {})
        assert (mount.source / "0.txt").read_text() == "content\n"
        async with open_http(server.url, server.token) as http:
            await Peer(http, mount.path / "new").open()
        calls = mount.calls()
        assert len(calls) > 1, "no call was seen"
        assert calls.get(server.pid) is None
        assert server.terminate() == 0


@pytest.mark.found(
    "fault 6",
    "a live Run in a directory that did not answer kept the next server from listening; the other workspaces are "
    "recovered at once, and this one when its directory answers",
)
@pytest.mark.timeout(180)
async def test_a_dead_mount_delays_only_the_recovery_of_its_own_runs(
    own_server: Callable[..., Server], endpoint: Endpoint, mount: HangingMount, workspace: Path
) -> None:
    server, keys = own_server(program=IMPATIENT), {"bad": unique(), "good": unique()}
    runs: dict[str, str] = {}
    async with server.peer(mount.path) as bad, server.peer(workspace) as good:
        bad_workspace = bad.workspace
        for name, peer in (("bad", bad), ("good", good)):
            script = f"script: tag {keys[name]} | hold {keys[name]} | say resumed"
            runs[name] = (await peer.submit(await peer.session(), script, run_id=unique("run")))["run_id"]
            await endpoint.wait_requests(keys[name], 1)
    server.kill()
    mount.hang()
    server.start()
    async with server.peer(workspace) as good:
        await endpoint.wait_requests(keys["good"], 2)
        endpoint.release(keys["good"])
        assert (await good.wait(runs["good"]))["text"] == "resumed"
        while (state := (await good.call("GET", "/health"))["state"]) == "starting":
            refused = await good.reply("GET", f"/workspaces/{bad_workspace}/sessions")
            assert refused.json()["code"] in ("starting", "directory_timeout"), refused.text
        assert state == "ready"
        refused = await good.reply("GET", f"/workspaces/{bad_workspace}/sessions")
        assert (refused.status_code, refused.json()["code"]) == (504, "directory_timeout")
        assert [run["run_id"] for run in await good.call("GET", "/runs")] == [runs["bad"]]
        mount.answer()
        async with server.peer(mount.path) as bad:
            await endpoint.wait_requests(keys["bad"], 2)
            endpoint.release(keys["bad"])
            ended = await bad.wait(runs["bad"])
            assert (ended["text"], ended["outcome"]) == ("resumed", "completed")
