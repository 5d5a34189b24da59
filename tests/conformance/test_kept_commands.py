"""Kept commands as any client sees them: they outlive their Run, and nothing outlives the server."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

from tests.conformance.harness import Json, Peer, Server, results_of, unique
from tests.conformance.test_b_tools import marked, processes_with, until_gone, until_seen
from tests.conformance.test_i_agent import call

SERVE = "echo listening; while :; do if [ -e next ]; then rm next; echo request; fi; sleep 0.02; done"


async def keep(peer: Peer, mark: str) -> tuple[str, Json]:
    """Return a session whose ended Run kept a command, and the job."""
    session = await peer.session()
    command = call("bash", command=marked(mark, SERVE), background=True, keep=True)
    async with peer.stream(session_id=session) as stream:
        run_id = (await peer.submit(session, f"script: {command} | say started"))["run_id"]
        ask = (await stream.until(lambda seen: seen.of("permission_request")))[0].payload
    assert ask["description"].startswith("stays after the run: $ ")
    assert (ask["grant"], "continues after the run" in ask["params"]["keep"]) == ("", True)
    await peer.call("POST", f"{peer.at}/permissions/grant", {"id": ask["id"], "action": "allow"})
    assert (await peer.wait(run_id))["outcome"] == "completed"
    await until_seen(mark)
    (job,) = (await peer.call("GET", f"{peer.at}/sessions/{session}"))["jobs"]
    assert job["state"] == "running"
    return session, job


async def test_kept_command_lives_until_it_or_its_session_is_ended(kedge: Peer) -> None:
    mark, other_mark = unique("mark"), unique("mark")
    peer, other = kedge, await Peer(kedge.http, kedge.directory).open()
    session, job = await keep(peer, mark)
    at = f"{other.at}/sessions/{session}/jobs"
    assert await other.call("GET", at) == [job]
    async with other.stream(session_id=session, deltas=1) as stream:
        (peer.directory / "next").touch()
        await stream.until(lambda seen: any("request" in frame.payload["text"] for frame in seen.of("job_output")))
        shown = await other.call("GET", f"{at}/{job['id']}")
        assert (shown["output"], shown["is_cut"]) == ("listening\nrequest\n", False)
        # It is not a part of the Run any more: a cancel does not end it, and the reply names it.
        run_id = (await peer.submit(session, "script: hold never"))["run_id"]
        assert [left["id"] for left in (await peer.cancel(session))["jobs"]] == [job["id"]]
        await peer.wait(run_id)
        assert processes_with(mark)
        assert (await other.call("POST", f"{at}/{job['id']}/end"))["state"] == "ended"
        assert processes_with(mark) == []
        await stream.until(lambda seen: seen.of("session")[-1].payload["jobs"][0]["state"] == "ended")
    await other.call("GET", f"{at}/unknown", expect=404)

    session, _ = await keep(peer, other_mark)
    await peer.call("DELETE", f"{peer.at}/sessions/{session}")
    assert processes_with(other_mark) == []


async def test_kept_command_ends_with_a_stopped_or_killed_server(
    own_server: Callable[..., Server], workspace: Path
) -> None:
    own, sessions = own_server(), []
    for number in (signal.SIGTERM, signal.SIGKILL):
        mark = unique("mark")
        async with own.peer(workspace) as peer:
            session, _ = await keep(peer, mark)
            sessions.append(session)
            await peer.call("POST", "/control", {"command": "shutdown"}, expect=409)
        own.signal(number)
        await until_gone(mark)
        own.start()
    async with own.peer(workspace) as peer:
        for session in sessions:
            (job,) = await peer.call("GET", f"{peer.at}/sessions/{session}/jobs")
            assert job["state"] == "server_stopped"
        listing = call("jobs", action="list")
        await peer.wait((await peer.submit(sessions[-1], f"script: {listing} | say listed"))["run_id"])
        assert "kept, ended with its server" in results_of(await peer.messages(sessions[-1]))[-1]["content"]
