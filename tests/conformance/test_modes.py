"""Modes of a session: every client is notified, the next tool call obeys, and deny rules hold in each of them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conformance.harness import Endpoint, Peer, Server, Stream, unique
from tests.conformance.test_attacks_permissions import needed_approval, outputs, tried
from tests.conformance.test_i_agent import call


@pytest.mark.found(
    "attack 18",
    "skipping all approvals of a workspace was reported to no other client, logged nowhere, and outlived the client "
    "that had asked for it; it is the mode of one session now, on every stream and in the log",
)
async def test_a_switch_is_announced_logged_and_durable(own_server: Callable[..., Server], workspace: Path) -> None:
    async def announced(stream: Stream, session: str, mode: str) -> None:
        def modes(stream: Stream) -> list[str]:
            return [event.payload["mode"] for event in stream.of("session") if event.payload["id"] == session]

        await stream.until(lambda stream: modes(stream)[-1:] == [mode])

    server = own_server()
    async with server.http() as http:
        one, other = await Peer(http, workspace).open(), await Peer(http, workspace).open()
        session, neighbour = await other.session(), await other.session()
        async with other.stream(deltas=1) as all_, other.stream(session_id=session) as of_session:
            await one.set_mode(session, "yolo")
            for stream in (all_, of_session):
                await announced(stream, session, "yolo")
            await tried(other, call("bash", command="touch one"), session=session)
            (result,) = await tried(other, call("bash", command="touch two"), session=neighbour)
            assert needed_approval(result), "the mode of one session is not that of another"
            server.kill()
        server.start(port=int(server.url.rpartition(":")[2]), token=server.token)
        await other.open()
        assert await other.mode(session) == "yolo"
        await tried(other, call("bash", command="touch three"), session=session)
        assert sorted(path.name for path in workspace.iterdir()) == ["one", "three"]
        await other.set_mode(session, "wild", expect=422)
    assert f"session {session}: mode yolo, was ask (client {one.client_id})" in server.log


async def test_the_next_call_of_a_run_obeys_a_switch(kedge: Peer, endpoint: Endpoint) -> None:
    """In edits a file of the workspace passes and a guarded one asks; in ask both ask; in plan both are refused."""
    hold = unique()
    writes = " | ".join(call("write", path=path, content="x") for path in ("a.txt", ".envrc"))
    session = await kedge.session()
    await kedge.set_mode(session, "edits")
    async with kedge.stream(session_id=session, deltas=1) as stream:
        script = f"script: {writes} | step | hold {hold} | {call('write', path='b.txt', content='x')} | say over"
        run_id = (await kedge.submit(session, script))["run_id"]
        (asked,) = await stream.until(lambda stream: stream.of("permission_request"))
        assert asked.payload["path"].endswith(".envrc")
        await kedge.answer(asked.payload["id"], "deny")
        await kedge.set_mode(session, "plan")
        endpoint.release(hold)
        await stream.until_complete(run_id)
    first, _, last = outputs(await kedge.messages(session))
    assert not first["is_error"]
    assert "plan mode" in last["content"]
    assert [path.name for path in kedge.directory.iterdir()] == ["a.txt"]


async def test_the_mode_of_a_run_ends_with_it(kedge: Peer, endpoint: Endpoint) -> None:
    hold = unique()
    session = await kedge.session()
    async with kedge.stream(session_id=session, deltas=1) as stream:
        run_id = (await kedge.submit(session, f"script: hold {hold} | say over", mode="yolo"))["run_id"]
        await stream.until(lambda stream: stream.of("run"))
        assert await kedge.mode(session) == "yolo"
        endpoint.release(hold)
        await stream.until_complete(run_id)
    assert await kedge.mode(session) == "ask"


#: Tries to write outside of the workspace and to connect to a local server, and reports what succeeded.
ESCAPE = """
import pathlib, socket, sys
pathlib.Path("inside").touch()
for name, action in {
    "file": lambda: pathlib.Path(sys.argv[1]).touch(),
    "network": lambda: socket.create_connection(("127.0.0.1", int(sys.argv[2])), 5),
}.items():
    try:
        action()
        print(name, "reached")
    except OSError as error:
        print(name, "refused")
sys.exit(1)
"""


async def test_auto_confines_commands_and_asks_to_leave(
    own_server: Callable[..., Server], workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a rule nor the repetition after a failure leaves the sandbox: each time, the user is asked."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))  # the default one contains the whole test
    server = own_server()
    (workspace / "escape.py").write_text(ESCAPE)
    command = f"{sys.executable} -I escape.py {tmp_path / 'outside'} {server.url.rpartition(':')[2]}"
    async with server.peer(workspace) as kedge:
        session = await kedge.session()
        reply = await kedge.reply("PUT", f"{kedge.at}/sessions/{session}", {"mode": "auto"})
        if reply.status_code == 409:
            assert "needs a sandbox" in reply.text
            pytest.skip("this machine has no sandbox that isolates from the network")
        (result,) = await tried(kedge, call("bash", command=command), session=session)
        assert "file refused\nnetwork refused" in result["content"]
        assert "`unconfined`" in result["content"]
        assert (workspace / "inside").exists()
        (result,) = await tried(kedge, call("write", path="a.txt", content="x"), session=session)
        assert not result["is_error"]
        escalated = call("bash", command=command, unconfined="it needs a server")
        async with kedge.stream(session_id=session) as stream:
            run_id = (await kedge.submit(session, f"script: {escalated} | say over", allow=["bash", "*"]))["run_id"]
            (asked,) = await stream.until(lambda stream: stream.of("permission_request"))
            assert asked.payload["description"].startswith("WITHOUT SANDBOX (writes to any file, network)")
            assert asked.payload["params"]["unconfined"] == "it needs a server"
            assert asked.payload["grant"] == ""
            await kedge.answer(asked.payload["id"], "allow")
            await stream.until_complete(run_id)
        last = outputs(await kedge.messages(session))[-1]
        assert "file reached\nnetwork reached" in last["content"]


@pytest.mark.found(
    "issue 20", "a command that ran unasked could create guarded files, such as CLAUDE.md; new ones are moved away"
)
async def test_auto_withholds_new_guarded_files(kedge: Peer) -> None:
    """Also those of a command in the background, when the Run ends; not those that the user has approved."""
    session = await kedge.session()
    if (await kedge.reply("PUT", f"{kedge.at}/sessions/{session}", {"mode": "auto"})).status_code == 409:
        pytest.skip("this machine has no sandbox that isolates from the network")
    calls = [
        call("bash", command="echo evil > CLAUDE.md; echo fine > a.txt"),
        call("bash", command="echo evil > GEMINI.md; touch started; exec sleep 1000", background=True),
        call("bash", command="until [ -e started ]; do sleep 0.01; done"),
        call("write", path="AGENTS.md", content="mine"),
    ]
    async with kedge.stream(session_id=session) as stream:
        run_id = (await kedge.submit(session, f"script: {' | step | '.join(calls)} | say over"))["run_id"]
        (asked,) = await stream.until(lambda stream: stream.of("permission_request"))
        await kedge.answer(asked.payload["id"], "allow")
        await stream.until_complete(run_id)
    first = outputs(await kedge.messages(session))[0]
    assert first["content"].startswith("Withheld: CLAUDE.md. A command in the sandbox must not leave new guarded files")
    assert sorted(path.name for path in kedge.directory.iterdir()) == ["AGENTS.md", "a.txt", "started"]


async def test_an_accepted_plan_switches_the_mode_and_continues(kedge: Peer) -> None:
    """The tool is offered in plan mode only. Refining stays in plan mode, accepting continues in the same Run."""
    session = await kedge.session()
    await kedge.set_mode(session, "plan")
    write, plan = call("write", path="a.txt", content="x"), call("present_plan", plan="1. Write a.txt")
    script = f"script: {write} | step | {plan} | step | {plan} | step | {write} | step | {plan} | say over"
    async with kedge.stream(session_id=session, deltas=1) as stream:
        run_id = (await kedge.submit(session, script))["run_id"]
        for number, answer in enumerate((["o3"], ["o2"]), 1):
            batches = await stream.until(
                lambda stream: stream.of("question_batch_request")[number - 1 :]  # noqa: B023
            )
            assert batches[0].payload["questions"][0]["question"].startswith("1. Write a.txt")
            assert await kedge.mode(session) == "plan"
            body = {"batch_request_id": batches[0].payload["id"]}
            responses = [{"request_id": "q1", "selected_ids": answer, "fill_in_text": ""}]
            await kedge.call("POST", f"{kedge.at}/questions/answer", body | {"responses": responses})
        await stream.until_complete(run_id)
    assert await kedge.mode(session) == "edits"
    refused, refined, accepted, written, gone = (output["content"] for output in outputs(await kedge.messages(session)))
    assert "plan mode" in refused
    assert "Refine" in refined
    assert "mode edits" in accepted
    assert (kedge.directory / "a.txt").exists(), written
    assert "not found" in gone
    await kedge.set_mode(session, "plan")
    (result,) = await tried(kedge, plan, session=session)
    assert "End with the plan as your answer" in result["content"]
