"""Hooks: real scripts that block, change and observe tool calls, prompts and ends of Runs."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kedge.config.plugins import PluginFile, PluginStore, plugin_of
from tests.conformance.harness import Endpoint, Json, Peer, Server, finish_of, results_of, text_of, unique
from tests.conformance.test_attacks_permissions import asked_and_answered, needed_approval, tried
from tests.conformance.test_b_tools import processes_with
from tests.conformance.test_i_agent import call
from tests.polling import block_until, until

Start = Callable[..., Server]


def hook(event: str, command: str, matcher: str = "", timeout_s: float = 20) -> str:
    """Return the configuration of a hook."""
    lines = [f"[[hooks.{event}]]", f"command = {json.dumps(command)}", f"timeout_s = {timeout_s}"]
    return "\n".join([*lines, *([f"matcher = {json.dumps(matcher)}"] if matcher else []), ""])


def answering(event: str = "PreToolUse", **specific: object) -> str:
    """Return the command of a hook that answers with this JSON."""
    return f"cat > /dev/null; echo '{json.dumps({'hookSpecificOutput': {'hookEventName': event, **specific}})}'"


async def extensions(kedge: Peer) -> dict[str, Json]:
    listed: list[Json] = await kedge.call("GET", f"{kedge.at}/extensions")
    return {entry["name"]: entry for entry in listed if entry["kind"] == "hook"}


async def test_a_hook_blocks_a_call_with_its_reason(own_server: Start, workspace: Path, tmp_path: Path) -> None:
    """By exit code 2 and by JSON; the event has the documented fields, and no secret of kedge is in the environment."""
    log = tmp_path / "event.json"
    exit_2 = f"cat > {log}; env > {log}.env; echo 'not on a Friday' >&2; exit 2"
    config = hook("PreToolUse", exit_2, "Bash") + hook("PreToolUse", answering(permissionDecision="deny"), "Write|Edit")
    async with own_server(config).peer(workspace) as kedge:
        session = await kedge.session()
        calls = (call("bash", command="touch one"), call("write", path="two", content="x"), call("ls"))
        denied, other, listed = await tried(kedge, *calls, session=session, mode="yolo")
        assert (denied["is_error"], denied["end"], denied["summary"]) == (True, "not_run", "not run: denied by a hook")
        assert "not on a Friday" in denied["content"]
        assert other["end"] == "not_run"
        assert not listed["is_error"]
        assert list(workspace.iterdir()) == []
    event = json.loads(log.read_text())
    assert event.pop("tool_use_id")
    assert event.pop("run_id")
    assert event == {
        "hook_event_name": "PreToolUse",
        "session_id": session,
        "cwd": str(workspace),
        "permission_mode": "bypassPermissions",
        "tool_name": "Bash",
        "tool_input": {"command": "touch one"},
    }
    variables = Path(f"{log}.env").read_text()
    assert f"CLAUDE_PROJECT_DIR={workspace}\n" in variables
    assert f"KEDGE_PROJECT_DIR={workspace}\n" in variables
    assert "KEDGE_DATA_DIR" not in variables


async def test_an_approval_shows_the_input_of_a_hook(own_server: Start, workspace: Path) -> None:
    """The hook may name a file as other agents do, and its allow then counts for that file."""
    change = answering(updatedInput={"command": "touch changed"})
    rename = answering(updatedInput={"file_path": f"{workspace}/renamed", "content": "x"}, permissionDecision="allow")
    async with own_server(hook("PreToolUse", change, "bash") + hook("PreToolUse", rename, "Write")).peer(
        workspace
    ) as kedge:
        shown: list[Json] = []
        result = await asked_and_answered(kedge, call("bash", command="touch original"), shown.append)
        assert shown[0]["params"]["command"] == "touch changed"
        assert 'changed the input of this call to: {"command":"touch changed"}' in result["content"]
        (written,) = await tried(kedge, call("write", path="original", content="y"))
        assert not written["is_error"], written
    assert sorted(path.name for path in workspace.iterdir()) == ["changed", "renamed"]


@pytest.mark.parametrize("of", ["user", "plugin"])
async def test_allow_of_a_hook_is_only_a_rule(own_server: Start, workspace: Path, of: str) -> None:
    """It skips the question, but no deny rule, no plan mode, no guarded file, no escalation and no other hook's ask."""
    allow, deny = (
        hook("PreToolUse", answering(permissionDecision="allow")),
        '[permissions]\ndeny = ["bash(touch secret)"]\n',
    )
    server = own_server(deny if of == "plugin" else allow + deny)
    if of == "plugin":
        tree = {"kedge.toml": PluginFile(allow.encode())}
        PluginStore(server.home, server.data_dir).add(plugin_of(tree, "wide", "wide"), tree)
    async with server.peer(workspace) as kedge:
        (result,) = await tried(kedge, call("bash", command="touch plain"))
        assert not result["is_error"], result
        (result,) = await tried(kedge, call("bash", command="touch secret"))
        assert "the rule bash(touch secret) denies it" in result["content"]
        (result,) = await tried(kedge, call("bash", command="touch planned"), mode="plan")
        assert "plan mode" in result["content"]
        for asking in (
            call("write", path=".envrc", content="x"),
            call("bash", command="touch out", unconfined="it must"),
            call("bash", command="sleep 1", background=True, keep=True),
            call("bash", command="echo x > .git/hooks/pre-commit"),
        ):
            (result,) = await tried(kedge, asking)
            assert needed_approval(result), asking
    assert [path.name for path in workspace.iterdir()] == ["plain"]


async def test_ask_of_a_hook_asks_in_every_mode(own_server: Start, workspace: Path) -> None:
    config = hook("PreToolUse", answering(permissionDecision="allow")) + hook(
        "PreToolUse", answering(permissionDecision="ask", permissionDecisionReason="look first")
    )
    async with own_server(config).peer(workspace) as kedge:
        for tool in (call("ls"), call("bash", command="touch one")):
            (result,) = await tried(kedge, tool, mode="yolo")
            assert needed_approval(result), result
        result = await asked_and_answered(kedge, call("ls"))
        assert not result["is_error"], result


async def test_a_call_that_a_hook_asks_for_stays_confined(own_server: Start, workspace: Path) -> None:
    """In mode auto, where the command would have run in the sandbox: the user was not asked to lift it."""
    config = hook("PreToolUse", answering(permissionDecision="ask"), "bash")
    (workspace / "AGENTS.md").write_text("mine")
    async with own_server(config).peer(workspace) as kedge:
        session = await kedge.session()
        if (await kedge.reply("PUT", f"{kedge.at}/sessions/{session}", {"mode": "auto"})).status_code == 409:
            pytest.skip("this machine has no sandbox that isolates from the network")
        async with kedge.stream(session_id=session) as stream:
            command = call("bash", command="echo evil > AGENTS.md; touch done")
            run_id = (await kedge.submit(session, f"script: {command} | say over"))["run_id"]
            (asked,) = await stream.until(lambda stream: stream.of("permission_request"))
            await kedge.answer(asked.payload["id"], "allow")
            await stream.until_complete(run_id)
    assert (workspace / "done").exists()
    assert (workspace / "AGENTS.md").read_text() == "mine"


async def test_a_failed_hook_is_reported_and_decides_nothing(own_server: Start, workspace: Path) -> None:
    """A crash, invalid JSON, a flood and the time limit: the call asks as without a hook, and the user sees why."""
    config = hook("PreToolUse", "echo broken >&2; exit 3") + hook("PreToolUse", "echo '{oops'")
    config += hook("PreToolUse", "echo '{'; yes | head -c 5000000") + hook(
        "PreToolUse", "sleep 600 & sleep 600", "", 0.3
    )
    async with own_server(config).peer(workspace) as kedge:
        session = await kedge.session()
        async with kedge.stream() as stream:
            (result,) = await tried(kedge, call("bash", command="touch one"), session=session)
            await stream.until(lambda stream: len(stream.of("extension")) == 4)
        assert needed_approval(result)
        (result,) = await tried(kedge, call("ls"), session=session)
        lines = json.loads(result["metadata"])["hooks"]
        for line, part in zip(
            lines,
            ("exited with code 3: broken", "not valid JSON", "more than the 262144 bytes", "more than 0.3 s"),
            strict=True,
        ):
            assert part in line
        states = await extensions(kedge)
        assert [state["condition"] for state in states.values()] == ["failed"] * 4
        assert states["PreToolUse: echo broken >&2; exit 3"]["error"] == "exited with code 3: broken"


async def test_a_cancel_ends_a_hook_with_its_processes(own_server: Start, workspace: Path, tmp_path: Path) -> None:
    mark, begun = unique("mark"), tmp_path / "begun"
    endless = f"trap '' TERM; export M={mark}; sleep 600 & touch {begun}; wait; sleep 600"
    async with own_server(hook("PreToolUse", endless, "", 600)).peer(workspace) as kedge:
        session = await kedge.session()
        async with kedge.stream(session_id=session) as stream:
            run_id = (await kedge.submit(session, f"script: {call('ls')} | say over"))["run_id"]
            await until(begun.exists)
            assert processes_with(mark)
            await kedge.cancel(session)
            (complete,) = await stream.until_complete(run_id)
        assert (complete["outcome"], complete["cleanup"]) == ("cancelled", "clean")
        assert processes_with(mark) == []
        (result,) = results_of(await kedge.messages(session))
        assert result["end"] == "not_run"


async def test_hooks_add_context_to_results(own_server: Start, workspace: Path, tmp_path: Path) -> None:
    """In the order of the configuration, before and after the call; a block after it is feedback. Failed calls have no
    hook after them."""
    log = tmp_path / "event.json"
    config = hook("PreToolUse", f"sleep 0.2; {answering(additionalContext='first')}")
    config += hook("PreToolUse", answering(additionalContext="second"))
    config += hook("PostToolUse", f"cat > {log}; echo 'lint: x' >&2; exit 2", "Write|Read")
    config += hook("PostToolUse", answering("PostToolUse", additionalContext="last"))
    async with own_server(config).peer(workspace) as kedge:
        failed, written = await tried(
            kedge, call("view", path="missing"), call("write", path="a", content="x"), mode="yolo"
        )
    assert failed["content"].endswith("\n\nfirst\n\nsecond")
    texts = ["first", "second", "A hook of the user objects to this result: lint: x", "last"]
    assert written["content"].split("\n\n")[-4:] == texts
    event = json.loads(log.read_text())
    assert (event["hook_event_name"], event["tool_name"]) == ("PostToolUse", "Write")
    assert event["tool_input"] == {"path": "a", "file_path": f"{workspace}/a", "content": "x"}
    assert event["tool_response"]["is_error"] is False


async def test_a_prompt_is_blocked_before_it_is_accepted(
    own_server: Start, workspace: Path, endpoint: Endpoint, tmp_path: Path
) -> None:
    """Or gets a context; an accepted prompt that is sent again does not run the hook a second time."""
    log = tmp_path / "log"
    script = f"""
prompt=$(cat); echo run >> {log}
case "$prompt" in *password*) echo 'it has a secret' >&2; exit 2;; esac
echo 'the branch is main'"""
    async with own_server(hook("UserPromptSubmit", script)).peer(workspace) as kedge:
        session = await kedge.session()
        refused = await kedge.submit(session, "my password is x", expect=403)
        assert refused == {"code": "prompt_blocked", "message": "A hook refused the prompt: it has a secret"}
        assert await kedge.runs(session) == []
        tag, run_id = unique("tag"), unique("run")
        for _ in range(2):
            await kedge.submit(session, f"script: tag {tag} | say hi", run_id=run_id)
        await kedge.wait(run_id)
        (request,) = endpoint.requests(tag)
        assert "the branch is main" in json.dumps(request.body["messages"][-1])
        hold = unique()
        active = (await kedge.submit(session, f"script: hold {hold} | say hi", run_id=unique("run")))["run_id"]
        queued = (await kedge.submit(session, "later", run_id=unique("run")))["run_id"]
        await kedge.call("PATCH", f"{kedge.at}/agent/runs/{queued}", {"prompt": "the password"}, expect=403)
        endpoint.release(hold)
        await kedge.wait(active)
        await kedge.wait(queued)
    assert log.read_text().count("run") == 5


async def test_a_stop_hook_continues_a_run_a_few_times(own_server: Start, workspace: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    block = f'cat >> {log}; echo >> {log}; echo \'{{"decision": "block", "reason": "run the tests"}}\''
    async with own_server(hook("Stop", block)).peer(workspace) as kedge:
        session = await kedge.session()
        run = await kedge.wait((await kedge.submit(session, "script: say done"))["run_id"])
        assert (run["outcome"], run["steps"]) == ("completed", 4)
        messages = await kedge.messages(session)
        assert [message["role"] for message in messages] == ["user", "assistant"] * 4
        assert "Its reason: run the tests" in text_of(messages[2])
        assert [finish_of(message) for message in messages[1::2]] == ["end_turn"] * 4
    events = [json.loads(line) for line in log.read_text().splitlines()]
    assert [event["stop_hook_active"] for event in events] == [False, True, True, True]
    assert events[0]["last_assistant_message"] == "done"


async def test_a_cancel_ends_a_stop_hook(own_server: Start, workspace: Path, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    async with own_server(hook("Stop", f"touch {begun}; sleep 600", "", 600)).peer(workspace) as kedge:
        session = await kedge.session()
        async with kedge.stream(session_id=session) as stream:
            run_id = (await kedge.submit(session, "script: say done"))["run_id"]
            await until(begun.exists)
            await kedge.cancel(session)
            (complete,) = await stream.until_complete(run_id)
        assert (complete["outcome"], complete["cleanup"]) == ("cancelled", "clean")


async def test_a_hook_reports_an_approval_and_ends_with_the_run(
    own_server: Start, workspace: Path, tmp_path: Path
) -> None:
    log, mark = tmp_path / "event", unique("mark")
    command = f"export M={mark}; cat > {log}.new; mv {log}.new {log}; sleep 600 & wait"
    async with own_server(hook("Notification", command, "", 600)).peer(workspace) as kedge:
        await asked_and_answered(kedge, call("bash", command="touch one"), lambda asked: block_until(log.exists, 20))
        assert processes_with(mark) == []
    event = json.loads(log.read_text())
    assert event["hook_event_name"] == "Notification"
    assert "touch one" in event["message"]


async def test_hooks_of_a_repository_need_trust(own_server: Start, workspace: Path, tmp_path: Path) -> None:
    """The exact content: a changed file no longer runs."""
    canary, settings = tmp_path / "canary", workspace / ".claude" / "settings.json"
    settings.parent.mkdir()

    def write(command: str) -> None:
        groups = [{"matcher": "LS", "hooks": [{"type": "command", "command": command, "timeout": 9}]}]
        settings.write_text(json.dumps({"hooks": {"PreToolUse": groups, "SessionStart": groups}}))

    write(f"touch {canary}")
    (workspace / "kedge.toml").write_text(hook("PreToolUse", f"touch {canary}"))
    server = own_server()
    async with server.peer(workspace) as kedge:
        await tried(kedge, call("ls"))
        states = await extensions(kedge)
        assert [state["condition"] for state in states.values()] == ["untrusted", "disabled"]
        assert next(iter(states.values()))["error"] == "run: kedge config trust"
        assert not canary.exists()
        (workspace / "kedge.toml").unlink()
        trust = [sys.executable, "-m", "kedge", "config", "trust", "--yes", "--cwd", str(workspace)]
        done = await asyncio.to_thread(
            subprocess.run, trust, env=server.environment, capture_output=True, text=True, check=True
        )
        assert f"PreToolUse LS = touch {canary}" in done.stdout
        await tried(kedge, call("ls"))
        assert canary.exists()
        (state, _) = (await extensions(kedge)).values()
        assert (state["condition"], state["origin"], state["path"]) == ("ready", "repository", str(settings))
        canary.unlink()
        write(f"touch -- {canary}")
        await tried(kedge, call("ls"))
        assert not canary.exists()
