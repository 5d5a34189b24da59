"""The offline model over HTTP, on a server without a provider: tools, approvals, undo and cancel need no key."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.conformance.harness import Json, Peer, Server, Stream, unique


@pytest.fixture(scope="module")
def offline(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    if "KEDGE_URL" in os.environ:
        pytest.skip("needs its own server process")
    server = Server(tmp_path_factory.mktemp("offline"), "")
    (server.home / "config.toml").write_text("")
    yield server.start()
    server.stop()


@pytest.fixture
async def peer(offline: Server, workspace: Path) -> AsyncIterator[Peer]:
    (workspace / "src").mkdir()
    (workspace / "src" / "app.py").write_text("print('hello')\n")
    (workspace / "README.md").write_text("# A small project\n\nIt says hello.\n")
    (workspace / "pyproject.toml").write_text('[project]\nname = "small"\n')
    async with offline.peer(workspace) as peer:
        yield peer


async def approval_of(stream: Stream, run_id: str) -> Json:
    """Wait for the approval request of this Run."""
    request: Json = await stream.until(
        lambda stream: next(
            (frame.payload for frame in stream.of("permission_request") if frame.payload["run_id"] == run_id), None
        )
    )
    return request


async def answer(peer: Peer, approval: Json, action: str) -> None:
    reply = await peer.call("POST", f"{peer.at}/permissions/grant", {"id": approval["id"], "action": action})
    assert reply == {"resolved": True}


async def results(peer: Peer, session: str) -> list[Json]:
    return [
        part["data"]
        for message in await peer.messages(session)
        for part in message["parts"]
        if part["type"] == "tool_result"
    ]


async def ask(peer: Peer, prompt: str) -> str:
    """Return the answer to a prompt that needs no approval."""
    receipt = await peer.submit(await peer.session(), prompt)
    run = await peer.wait(receipt["run_id"])
    assert run["outcome"] == "completed", run
    return str(run["text"])


def commands() -> set[str]:
    """Return the command line of each process on this machine."""
    result = set()
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            result.add(
                Path("/proc", name, "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()
            )
        except OSError:
            continue  # it ended meanwhile
    return result


async def test_list_directory(peer: Peer) -> None:
    text = await ask(peer, "What is in this directory?")
    assert text.startswith("This directory contains 2 files and 1 folder.\n\n```\n  src/")
    assert text.splitlines()[-1].startswith("This is kedge's built-in offline model")


async def test_read_file(peer: Peer) -> None:
    assert (await ask(peer, "read README.md")).startswith(
        "README.md contains:\n\n```\n# A small project\n\nIt says hello.\n"
    )


async def test_find_text(peer: Peer) -> None:
    text = await ask(peer, "find HELLO in src")
    assert text.startswith('"HELLO" occurs on 1 line in 1 file:\n\n```\nsrc/app.py\n')


async def test_other_prompt_is_answered_with_abilities(peer: Peer) -> None:
    assert (await ask(peer, "Write me a poem")).startswith("No language model is configured.")


async def test_allowed_command_runs(peer: Peer, workspace: Path) -> None:
    session = await peer.session()
    async with peer.stream() as stream:
        receipt = await peer.submit(session, "run `touch made && echo done`")
        approval = await approval_of(stream, receipt["run_id"])
        assert approval["tool_name"] == "bash"
        assert approval["params"]["command"] == "touch made && echo done"
        assert not (workspace / "made").exists()
        await answer(peer, approval, "allow")
        run = await peer.wait(receipt["run_id"])
    assert run["outcome"] == "completed"
    assert run["text"].startswith("`touch made && echo done` ended with exit code 0:\n\n```\ndone\n")
    assert (workspace / "made").exists()


async def test_denied_command_does_not_run(peer: Peer, workspace: Path) -> None:
    session = await peer.session()
    async with peer.stream() as stream:
        receipt = await peer.submit(session, "run touch made")
        await answer(peer, await approval_of(stream, receipt["run_id"]), "deny")
        run = await peer.wait(receipt["run_id"])
    assert run["text"].startswith("You denied the request, so nothing was done.")
    assert [result["is_error"] for result in await results(peer, session)] == [True]
    assert not (workspace / "made").exists()


async def test_replacement_is_approved_and_undone(peer: Peer, workspace: Path) -> None:
    file, session = workspace / "src" / "app.py", await peer.session()
    async with peer.stream() as stream:
        receipt = await peer.submit(session, "replace hello with good-bye in src/app.py")
        approval = await approval_of(stream, receipt["run_id"])
        assert (approval["tool_name"], approval["action"]) == ("edit", "write")
        assert "-print('hello')\n+print('good-bye')" in approval["params"]["diff"]
        assert file.read_text() == "print('hello')\n"
        await answer(peer, approval, "allow")
        run = await peer.wait(receipt["run_id"])
    assert file.read_text() == "print('good-bye')\n"
    assert run["text"].startswith("Edited src/app.py: 1 replacement.\n")
    assert f"kedge sessions undo {session}\n" in run["text"]
    viewed, edited = await results(peer, session)
    assert (viewed["name"], edited["name"]) == ("view", "edit")
    assert "-print('hello')\n+print('good-bye')" in json.loads(edited["metadata"])["diff"]

    undone = await peer.call("POST", f"{peer.at}/sessions/{session}/undo", {})
    assert undone["run_id"] == receipt["run_id"]
    assert len(undone["files"]) == 1
    assert file.read_text() == "print('hello')\n"


async def test_denied_replacement_changes_nothing(peer: Peer, workspace: Path) -> None:
    async with peer.stream() as stream:
        receipt = await peer.submit(await peer.session(), "replace hello with good-bye in src/app.py")
        await answer(peer, await approval_of(stream, receipt["run_id"]), "deny")
        run = await peer.wait(receipt["run_id"])
    assert run["text"].startswith("You denied the request, so nothing was done.")
    assert (workspace / "src" / "app.py").read_text() == "print('hello')\n"


async def test_cancel_kills_the_running_command(peer: Peer) -> None:
    # The duration identifies the process of this test run.
    sleeping = f"sleep 1000.{int(unique().partition('-')[2], 16)}"
    session = await peer.session()
    async with peer.stream(deltas=1) as stream:
        receipt = await peer.submit(session, f"run echo begun; {sleeping}")
        await answer(peer, await approval_of(stream, receipt["run_id"]), "allow")
        await stream.until(
            lambda stream: any(frame.payload["text"].strip() == "begun" for frame in stream.of("progress"))
        )
        await peer.cancel(session)
        run = await peer.wait(receipt["run_id"])
    assert (run["outcome"], run["cleanup"]) == ("cancelled", "clean")
    assert not any(sleeping in command for command in commands())


async def test_cancel_withdraws_a_pending_approval(peer: Peer, workspace: Path) -> None:
    session = await peer.session()
    async with peer.stream() as stream:
        receipt = await peer.submit(session, "run touch made")
        approval = await approval_of(stream, receipt["run_id"])
        await peer.cancel(session)
        assert (await peer.wait(receipt["run_id"]))["outcome"] == "cancelled"
    late = {"id": approval["id"], "action": "allow"}
    reply = await peer.reply("POST", f"{peer.at}/permissions/grant", late)
    assert reply.status_code >= 400, reply.text
    assert not (workspace / "made").exists()
