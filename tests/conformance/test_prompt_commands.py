"""Prompt commands: `/name arguments` is expanded when it is accepted, once, and with trusted permissions only."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from kedge.config.trust import TrustList
from tests.conformance.harness import Endpoint, Json, Peer, Server, unique


def command(root: Path, name: str, text: str, place: str = ".claude") -> Path:
    file = root / place / "commands" / f"{name}.md"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


async def states(peer: Peer) -> dict[tuple[str, str], Json]:
    return {(one["name"], one["path"]): one for one in await peer.call("GET", f"{peer.at}/extensions")}


async def test_command_is_expanded_for_the_model_and_shown_as_typed(kedge: Peer) -> None:
    settings = "---\nargument-hint: [who]\ndescription: Greets.\n---\n"
    command(kedge.directory, "git/greet", f"{settings}script: say $2 is not $1")
    (listed,) = await kedge.call("GET", f"{kedge.at}/commands")
    assert listed == {
        "name": "git:greet",
        "kind": "command",
        "origin": "repository",
        "description": "Greets.",
        "argument_hint": "[who]",
    }
    session = await kedge.session()
    typed = '/git:greet "Ann Lee" Bob'
    run = await kedge.wait((await kedge.submit(session, typed, expand=True))["run_id"])
    assert (run["outcome"], run["text"], run["prompt"]) == ("completed", "Bob is not Ann Lee", typed)
    part = (await kedge.messages(session))[0]["parts"][0]
    assert part == {"type": "text", "data": {"text": typed, "expanded": "script: say Bob is not Ann Lee"}}
    assert (await kedge.call("GET", f"{kedge.at}/sessions/{session}"))["title"] == typed


async def test_unknown_command_is_refused_with_similar_names(kedge: Peer) -> None:
    command(kedge.directory, "review", "script: say reviewed")
    session = await kedge.session()
    error = await kedge.submit(session, "/reveiw 12", expand=True, expect=404)
    assert error["code"] == "prompt_command_not_found"
    assert "/review" in error["message"]
    assert await kedge.runs(session) == []
    for text, sent in (("//review", "/review"), ("/usr/bin/x fails", "/usr/bin/x fails"), ("plain", "plain")):
        run = await kedge.wait((await kedge.submit(session, text, expand=True))["run_id"])
        assert run["prompt"] == sent
    run = await kedge.wait((await kedge.submit(session, "/review"))["run_id"])
    assert run["text"] != "reviewed"  # without `expand`, it is a text


async def test_repeated_submit_returns_the_run_after_a_change(kedge: Peer) -> None:
    file = command(kedge.directory, "once", "script: say first")
    session, run_id = await kedge.session(), unique("run")
    fields: Json = {"run_id": run_id, "expand": True}
    first = await kedge.submit(session, "/once", **fields)
    file.write_text("script: say second")
    assert await kedge.submit(session, "/once", **fields) == first
    file.unlink()
    assert await kedge.submit(session, "/once", **fields) == first
    assert (await kedge.wait(run_id))["text"] == "first"
    file.write_text("script: say third")
    await kedge.submit(session, "/once more", expect=409, **fields)
    await kedge.submit(session, "/once", run_id=run_id, expect=409)


async def test_queued_command_cannot_be_edited(kedge: Peer, endpoint: Endpoint) -> None:
    command(kedge.directory, "later", "script: say later")
    session, key = await kedge.session(), unique("hold")
    active = await kedge.submit(session, f"script: hold {key} | say done", run_id=unique("run"))
    queued = await kedge.submit(session, "/later", run_id=unique("run"), expand=True)
    path = f"{kedge.at}/agent/runs/{queued['run_id']}"
    await kedge.call("PATCH", path, {"prompt": "other"}, expect=400)
    endpoint.release(key)
    assert (await kedge.wait(active["run_id"]))["outcome"] == "completed"
    assert (await kedge.wait(queued["run_id"]))["text"] == "later"


async def test_permissions_of_a_repository_need_trust(own_server: Callable[..., Server], workspace: Path) -> None:
    server = own_server()
    text = "---\nallowed-tools: Bash(touch made:*), WebSearch\n---\nscript: tool bash {} | say done".replace(
        "{}", '{"command": "touch made"}'
    )
    file = command(workspace, "make", text)
    trust = TrustList(server.data_dir / "trusted.json")
    async with server.peer(workspace) as kedge:
        session = await kedge.session()
        state = (await states(kedge))[("make", str(file))]
        assert (state["condition"], state["error"]) == ("untrusted", "run: kedge config trust")
        error = await kedge.submit(session, "/make", expand=True, expect=404)
        assert "kedge config trust" in error["message"]
        trust.add(file, text.encode())
        state = (await states(kedge))[("make", str(file))]
        assert state["condition"] == "ready"
        assert "WebSearch" in state["error"]
        run = await kedge.wait((await kedge.submit(session, "/make", expand=True, on_approval="fail"))["run_id"])
        assert run["outcome"] == "completed"
        assert (workspace / "made").exists()
        # The rules belong to that Run alone, and a changed file is not trusted.
        (workspace / "made").unlink()
        plain = 'script: tool bash {"command": "touch made"} | say done'
        run = await kedge.wait((await kedge.submit(session, plain, on_approval="fail"))["run_id"])
        assert (run["outcome"], run["reason"]) == ("failed", "approval_needed")
        file.write_text(text.replace("touch made:*", "touch *"))
        await kedge.submit(session, "/make", expand=True, expect=404)


async def test_nearer_command_wins_and_the_other_is_listed(own_server: Callable[..., Server], workspace: Path) -> None:
    server = own_server()
    (workspace / ".git").mkdir()
    (workspace / "sub").mkdir()
    user = command(server.home, "go", "script: say user")
    own = command(server.home, "mine", "---\nallowed-tools: Bash\n---\nscript: say mine")
    root = command(workspace, "go", "script: say root")
    near = command(workspace / "sub", "go", "script: say near", ".kedge")
    bad = command(workspace, "bad", "---\nname: [x\n---\n")
    untrusted = command(workspace, "mine", "---\nallowed-tools: Bash\n---\nscript: say theirs")
    async with server.peer(workspace / "sub") as kedge:
        listed = await states(kedge)
        for path in (user, root):
            assert listed["go", str(path)]["condition"] == "disabled"
            assert str(near) in listed["go", str(path)]["error"]
        assert listed["go", str(near)]["condition"] == "ready"
        assert f"{bad}: line 2:" in listed["bad", str(bad)]["error"]
        assert listed["mine", str(untrusted)]["condition"] == "untrusted"
        assert listed["mine", str(own)]["condition"] == "ready"  # what does nothing hides nothing
        session = await kedge.session()
        for name, said in (("go", "near"), ("mine", "mine")):
            run = await kedge.wait((await kedge.submit(session, f"/{name}", expand=True))["run_id"])
            assert run["text"] == said
