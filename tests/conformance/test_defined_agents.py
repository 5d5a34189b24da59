"""Agents defined in files: their tools, and never more rights than their parent."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.conformance.harness import Endpoint, Json, Peer, Server, results_of, unique
from tests.conformance.test_i_agent import call
from tests.conformance.test_prompt_commands import states

TOUCH = call("bash", command="touch made")


def agent(root: Path, name: str, settings: str = "", text: str = "You are careful.") -> Path:
    file = root / ".claude" / "agents" / f"{name}.md"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"---\nname: {name}\ndescription: Does {name}.\n{settings}---\n{text}")
    return file


def gives(name: str, *steps: str) -> str:
    """Return the script of a Run that gives a task to an agent, which is a script, too."""
    task = f"script: {' ;; step ;; '.join(steps)} ;; say done"
    return f"script: {call('agent', prompt=task, agent=name)} | say over".replace(" ;; ", " \\u007c ")


async def given(kedge: Peer, name: str, *steps: str, **fields: Any) -> tuple[Json, Json, list[Json]]:
    """Run an agent. Return the Run, the result of its call and the results of the agent's own calls."""
    session = await kedge.session()
    run = await kedge.wait((await kedge.submit(session, gives(name, *steps), **fields))["run_id"])
    (result,) = results_of(await kedge.messages(session))
    return run, result, await child_results(kedge, session)


async def child_results(kedge: Peer, session: str) -> list[Json]:
    every = await kedge.call("GET", f"{kedge.at}/sessions")
    children = [one["id"] for one in every if one["parent_session_id"] == session]
    return [result for one in children for result in results_of(await kedge.messages(one))]


async def test_agent_has_its_tools_and_no_more_rights_than_its_parent(
    own_server: Callable[..., Server], workspace: Path, endpoint: Endpoint
) -> None:
    server = own_server()
    agent(server.home, "worker", "tools: Read, Bash\n")
    agent(server.home, "planner", "tools: Bash\nmode: plan\n")
    agent(server.home, "reader")
    made = workspace / "made"
    async with server.peer(workspace) as kedge:
        tag = unique("tag")
        _, result, (ran,) = await given(kedge, "worker", f"tag {tag}", TOUCH, mode="yolo")
        assert (result["content"], ran["is_error"], made.exists()) == ("done", False, True)
        made.unlink()
        request = str(endpoint.requests(tag)[0].body)
        assert "You are careful." in request
        assert '"edit"' not in request

        # The narrower mode of both, an allow rule of the parent's Run does not widen, its deny rule holds.
        for name, fields, end in (
            ("planner", {"mode": "yolo"}, "this session is in plan mode"),
            ("worker", {"mode": "plan"}, "this session is in plan mode"),
            ("worker", {"allow": ["bash(touch made)"], "on_approval": "fail"}, "needs an approval"),
            ("worker", {"mode": "yolo", "deny": ["bash(touch *)"]}, "denies it"),
            ("reader", {"mode": "yolo"}, "Tool bash not found"),
            ("worker", {"mode": "yolo", "deny": ["agent(worker)"]}, "denies it"),
        ):
            _, result, own = await given(kedge, name, TOUCH, **fields)
            assert end in [*own, result][0]["content"], (name, fields)
            assert not made.exists()
        _, result, _ = await given(kedge, "nobody", TOUCH)
        assert "Agent nobody not found. Agents: planner, reader, worker." in result["content"]


async def test_agent_has_the_effort_of_its_parent_with_the_same_model(
    own_server: Callable[..., Server], workspace: Path, endpoint: Endpoint
) -> None:
    server = own_server()
    agent(server.home, "same")
    agent(server.home, "other", "model: local/fake-small\n")
    async with server.peer(workspace) as kedge:
        for name, effort in (("same", "high"), ("other", None)):
            tag = unique("tag")
            await given(kedge, name, f"tag {tag}", effort="high")
            assert endpoint.requests(tag)[0].body.get("reasoning_effort") == effort


async def test_agent_of_a_repository_needs_trust_for_tools_or_a_model(kedge: Peer) -> None:
    writer = agent(kedge.directory, "writer", "tools: Write\n")
    costly = agent(kedge.directory, "costly", "model: local/fake-small\n")
    reader = agent(kedge.directory, "reader", "tools: Read, Grep\nmodel: sonnet\n")
    listed = await states(kedge)
    assert [listed[file.stem, str(file)]["condition"] for file in (writer, costly, reader)] == [
        "untrusted",
        "untrusted",
        "ready",
    ]
    assert "sonnet is not used" in listed["reader", str(reader)]["error"]
    _, result, _ = await given(kedge, "writer", call("write", path="x", content="y"), mode="yolo")
    assert "Agents: reader." in result["content"]


async def test_cancel_of_the_parent_withdraws_the_ask_of_its_agent(
    own_server: Callable[..., Server], workspace: Path
) -> None:
    server = own_server()
    agent(server.home, "worker", "tools: Bash\n")
    async with server.peer(workspace) as kedge, kedge.stream() as stream:
        session = await kedge.session()
        run = await kedge.submit(session, gives("worker", TOUCH))
        asked = (await stream.until(lambda one: one.of("permission_request")))[0].payload
        assert asked["session_id"] != session
        await kedge.cancel(session)
        assert (await kedge.wait(run["run_id"]))["outcome"] == "cancelled"
        child = (await kedge.runs(asked["session_id"]))[0]
        assert (child["outcome"], child["parent_run_id"]) == ("cancelled", run["run_id"])
        await kedge.answer(asked["id"], "allow", expect=409)
        assert not (workspace / "made").exists()


async def test_agent_ends_after_a_crash_and_its_parent_continues(
    own_server: Callable[..., Server], workspace: Path
) -> None:
    server = own_server()
    agent(server.home, "worker", "tools: Bash\n")
    async with server.peer(workspace) as kedge, kedge.stream() as stream:
        session = await kedge.session()
        run = await kedge.submit(session, gives("worker", TOUCH))
        asked = (await stream.until(lambda one: one.of("permission_request")))[0].payload
    server.kill()
    server.start()
    async with server.peer(workspace) as kedge:
        assert (await kedge.wait(run["run_id"]))["text"] == "over"
        (child,) = await kedge.runs(asked["session_id"])
        assert (child["state"], child["outcome"] != "completed") == ("ended", True)
        await kedge.answer(asked["id"], "allow", expect=409)
        assert not (workspace / "made").exists()


async def test_user_approves_a_call_of_an_agent(own_server: Callable[..., Server], workspace: Path) -> None:
    server = own_server()
    agent(server.home, "worker", "tools: Bash\n")
    async with server.peer(workspace) as kedge, kedge.stream() as stream:
        session = await kedge.session()
        run = await kedge.submit(session, gives("worker", TOUCH))
        asked = (await stream.until(lambda one: one.of("permission_request")))[0].payload
        await kedge.answer(asked["id"], "allow")
        assert (await kedge.wait(run["run_id"]))["outcome"] == "completed"
        assert (workspace / "made").exists()
