"""Pending approvals that a new grant or mode permits are settled, and no others."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conformance.harness import Json, Peer, Server, Stream
from tests.conformance.test_attacks_permissions import outputs
from tests.conformance.test_i_agent import call
from tests.conformance.test_modes import ESCAPE


def command(name: str, line: str, **options: object) -> str:
    return call("bash", command=line, description=f"<{name}>", **options)


async def asked(stream: Stream, count: int) -> dict[str, str]:
    """Return the ids of the approvals, by the name of the command or file, once there are so many."""
    frames = await stream.until(lambda stream: len(of := stream.of("permission_request")) == count and of)
    return {_name(frame.payload): frame.payload["id"] for frame in frames}


def _name(request: Json) -> str:
    _, has_name, rest = request["description"].partition("<")
    return rest.partition(">")[0] if has_name else Path(request["path"]).name


async def settled(stream: Stream, count: int) -> dict[str, str]:
    """Return by whom approvals were granted, by id, once so many are settled."""
    frames = await stream.until(lambda stream: len(of := stream.of("permission_notification")) == count and of)
    assert all(frame.payload["granted"] for frame in frames)
    return {frame.payload["id"]: frame.payload["answered_by"] for frame in frames}


async def pending(peer: Peer) -> set[str]:
    return {str(ask["id"]) for ask in await peer.call("GET", f"{peer.at}/permissions")}


async def test_grant_of_a_session_settles_its_other_approvals(kedge: Peer) -> None:
    """Not those of another session, of other commands, or of commands that leave the sandbox or outlive the Run."""
    session, neighbour = await kedge.session(), await kedge.session()
    other = await Peer(kedge.http, kedge.directory).open()
    calls = [
        command("first", "touch one"),
        command("same", "touch one"),
        command("longer", "touch one && ls"),
        command("different", "touch one; touch two"),
        command("unconfined", "touch one", unconfined="it needs the network"),
        command("kept", "touch one", background=True, keep=True),
    ]
    async with other.stream() as stream:
        await kedge.submit(neighbour, f"script: {command('elsewhere', 'touch one')} | say over")
        await kedge.submit(session, f"script: {' | '.join(calls)} | say over")
        ids = await asked(stream, 7)
        await kedge.answer(ids["first"], "allow_session")
        assert await settled(stream, 3) == {ids["first"]: kedge.client_id, ids["same"]: "rule", ids["longer"]: "rule"}
        denied = await kedge.answer(ids["same"], "deny")
        assert denied == {"resolved": False, "answered": "allow"}
        await kedge.answer(ids["different"], "allow")  # what is pending is not decided again by a single answer
        await settled(stream, 4)
    assert await pending(kedge) == {ids[name] for name in ("unconfined", "kept", "elsewhere")}


async def test_grant_for_always_settles_approvals_of_all_sessions(kedge: Peer, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    for path in (outside / "a", outside / "b", tmp_path / "c"):
        path.write_text(path.name)
    one, other = await kedge.session(), await kedge.session()
    async with kedge.stream() as stream:
        waiting = f"script: {call('view', path=str(outside / 'b'))} | say over"
        first = (await kedge.submit(one, waiting))["run_id"]
        views = " | ".join(call("view", path=str(path)) for path in (outside / "a", tmp_path / "c"))
        await kedge.submit(other, f"script: {views} | say over")
        ids = await asked(stream, 3)
        await kedge.answer(ids["a"], "allow_always")
        assert await settled(stream, 2) == {ids["a"]: kedge.client_id, ids["b"]: "rule"}
        await stream.until_complete(first)
    assert await pending(kedge) == {ids["c"]}


async def test_switch_of_the_mode_settles_what_it_permits(
    own_server: Callable[..., Server], workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command that mode auto settles is confined, as if it had been called in that mode."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    server = own_server()
    (workspace / "escape.py").write_text(ESCAPE)
    line = f"{sys.executable} -I escape.py {tmp_path / 'outside'} {server.url.rpartition(':')[2]}"
    calls = [command("escape", line), *(call("write", path=path, content="x") for path in ("a.txt", ".envrc"))]
    async with server.peer(workspace) as kedge:
        session = await kedge.session()
        async with kedge.stream(session_id=session) as stream:
            run_id = (await kedge.submit(session, f"script: {' | '.join(calls)} | say over"))["run_id"]
            ids = await asked(stream, 3)
            await kedge.set_mode(session, "edits")
            assert await settled(stream, 1) == {ids["a.txt"]: "rule"}
            if (await kedge.reply("PUT", f"{kedge.at}/sessions/{session}", {"mode": "auto"})).status_code == 409:
                pytest.skip("this machine has no sandbox that isolates from the network")
            assert (await settled(stream, 2))[ids["escape"]] == "rule"
            assert await pending(kedge) == {ids[".envrc"]}
            await kedge.answer(ids[".envrc"], "deny")
            await stream.until_complete(run_id)
        escaped, _, _ = outputs(await kedge.messages(session))
    assert "file refused\nnetwork refused" in escaped["content"]
    assert (workspace / "a.txt").exists()
