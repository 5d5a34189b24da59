"""The built-in model over HTTP, on a server without any provider: tools, approvals, undo and cancel need no key."""

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
        pytest.skip("needs a server process of its own")
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


async def asked(stream: Stream, run_id: str) -> Json:
    """The approval that this Run waits for."""
    found: Json = await stream.until(
        lambda stream: next(
            (frame.payload for frame in stream.of("permission_request") if frame.payload["run_id"] == run_id), None
        )
    )
    return found


async def answer(peer: Peer, approval: Json, action: str) -> None:
    reply = await peer.call("POST", f"{peer.at}/permissions/grant", {"permission": approval, "action": action})
    assert reply == {"resolved": True}


async def results(peer: Peer, session: str) -> list[Json]:
    return [
        part["data"]
        for message in await peer.messages(session)
        for part in message["parts"]
        if part["type"] == "tool_result"
    ]


async def said(peer: Peer, prompt: str) -> str:
    """What comes of a prompt for which nobody need be asked."""
    receipt = await peer.submit(await peer.session(), prompt)
    run = await peer.wait(receipt["run_id"])
    assert run["outcome"] == "completed", run
    return str(run["text"])


def commands() -> set[str]:
    """The command line of each process on this machine."""
    found = set()
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            found.add(
                Path("/proc", name, "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()
            )
        except OSError:
            continue  # it ended in between
    return found


async def test_a_directory_is_listed_and_told(peer: Peer) -> None:
    text = await said(peer, "What is in this directory?")
    assert text.startswith(
        "This directory holds 2 files and 1 folder.\n"
        "It looks like Python code (pyproject.toml, named small).\n"
        "README.md is headed: A small project\n\n  src/"
    )
    assert text.splitlines()[-1].startswith("This is kedge's built-in offline model")


async def test_a_file_is_read(peer: Peer) -> None:
    assert (await said(peer, "read README.md")).startswith("README.md says:\n\n# A small project\n\nIt says hello.\n")


async def test_a_text_and_a_file_are_found(peer: Peer) -> None:
    assert (await said(peer, "find HELLO in src")).startswith("HELLO was found 1 time in 1 file:\n\nsrc/app.py\n")
    assert (await said(peer, "find *.py")).startswith("1 file named *.py:\n\nsrc/app.py\n")


async def test_anything_else_is_answered_with_what_it_can(peer: Peer) -> None:
    assert (await said(peer, "Write me a poem")).startswith("I cannot answer that: no language model is configured")


async def test_a_command_runs_when_it_is_allowed(peer: Peer, workspace: Path) -> None:
    session = await peer.session()
    async with peer.stream() as stream:
        receipt = await peer.submit(session, "run `touch made && echo done`")
        approval = await asked(stream, receipt["run_id"])
        assert approval["tool_name"] == "bash"
        assert approval["params"]["command"] == "touch made && echo done"
        assert not (workspace / "made").exists()
        await answer(peer, approval, "allow")
        run = await peer.wait(receipt["run_id"])
    assert run["outcome"] == "completed"
    assert run["text"].startswith("`touch made && echo done` ended with exit code 0 and wrote:\n\ndone\n")
    assert (workspace / "made").exists()


async def test_a_denied_command_does_not_run(peer: Peer, workspace: Path) -> None:
    session = await peer.session()
    async with peer.stream() as stream:
        receipt = await peer.submit(session, "run touch made")
        await answer(peer, await asked(stream, receipt["run_id"]), "deny")
        run = await peer.wait(receipt["run_id"])
    assert run["text"].startswith("You denied it, so nothing was run.")
    assert [result["is_error"] for result in await results(peer, session)] == [True]
    assert not (workspace / "made").exists()


async def test_a_replacement_is_approved_shown_as_a_diff_and_undone(peer: Peer, workspace: Path) -> None:
    file, session = workspace / "src" / "app.py", await peer.session()
    async with peer.stream() as stream:
        receipt = await peer.submit(session, "replace hello with good-bye in src/app.py")
        approval = await asked(stream, receipt["run_id"])
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


async def test_a_denied_replacement_changes_nothing(peer: Peer, workspace: Path) -> None:
    async with peer.stream() as stream:
        receipt = await peer.submit(await peer.session(), "replace hello with good-bye in src/app.py")
        await answer(peer, await asked(stream, receipt["run_id"]), "deny")
        run = await peer.wait(receipt["run_id"])
    assert run["text"].startswith("You denied it, so nothing was changed.")
    assert (workspace / "src" / "app.py").read_text() == "print('hello')\n"


async def test_a_written_file_is_gone_after_undo(peer: Peer, workspace: Path) -> None:
    session = await peer.session()
    async with peer.stream() as stream:
        receipt = await peer.submit(session, "write notes.txt with buy milk")
        await answer(peer, await asked(stream, receipt["run_id"]), "allow")
        await peer.wait(receipt["run_id"])
    assert (workspace / "notes.txt").read_text() == "buy milk\n"
    await peer.call("POST", f"{peer.at}/sessions/{session}/undo", {})
    assert not (workspace / "notes.txt").exists()


async def test_a_cancel_kills_the_command_at_work(peer: Peer) -> None:
    # Each run of this test sleeps for a time of its own, by which its process is known.
    sleeping = f"sleep 1000.{int(unique().partition('-')[2], 16)}"
    session = await peer.session()
    async with peer.stream(deltas=1) as stream:
        receipt = await peer.submit(session, f"run echo begun; {sleeping}")
        await answer(peer, await asked(stream, receipt["run_id"]), "allow")
        await stream.until(
            lambda stream: any(frame.payload["text"].strip() == "begun" for frame in stream.of("progress"))
        )
        await peer.cancel(session)
        run = await peer.wait(receipt["run_id"])
    assert (run["outcome"], run["cleanup"]) == ("cancelled", "clean")
    assert not any(sleeping in command for command in commands())


async def test_a_cancel_while_people_think_it_over_withdraws_the_question(peer: Peer, workspace: Path) -> None:
    session = await peer.session()
    async with peer.stream() as stream:
        receipt = await peer.submit(session, "run touch made")
        approval = await asked(stream, receipt["run_id"])
        await peer.cancel(session)
        assert (await peer.wait(receipt["run_id"]))["outcome"] == "cancelled"
    late = {"permission": approval, "action": "allow"}
    reply = await peer.reply("POST", f"{peer.at}/permissions/grant", late)
    assert reply.status_code >= 400, reply.text
    assert not (workspace / "made").exists()
