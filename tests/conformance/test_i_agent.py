"""SCENARIOS I: the agent loop with the real tools and a scripted model in two provider formats."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conformance.harness import Endpoint, Json, Peer, Server, finish_of, open_http, results_of, text_of, unique

MODELS = ("local/fake-large", "claude/fake-large")


def call(name: str, /, **given: object) -> str:
    """Return a script directive for a tool call. A bar in the input is escaped, since it would end the directive."""
    return f"tool {name} {json.dumps(given)}".replace("|", "\\u007c")


@pytest.mark.parametrize("model", MODELS)
async def test_i1_steps_continue_until_the_model_stops(kedge: Peer, model: str) -> None:
    (kedge.directory / "notes.txt").write_text("the answer is 42\n")
    session = await kedge.session()
    steps = f"{call('grep', pattern='answer')} | step | {call('view', path='notes.txt')}"
    script = f"script: say looking | {steps} | say it is 42"
    run = await kedge.wait((await kedge.submit(session, script, model=model))["run_id"])
    assert (run["outcome"], run["text"], run["steps"]) == ("completed", "it is 42", 3)
    grep, view = results_of(await kedge.messages(session))
    assert "notes.txt" in grep["content"]
    assert "the answer is 42" in view["content"]
    assert not grep["is_error"]


@pytest.mark.parametrize("model", MODELS)
async def test_i1_parallel_calls_run_concurrently(kedge: Peer, model: str) -> None:
    """Each call waits for the other: in sequence they would never end."""
    session = await kedge.session()
    meet = "touch {mine}; while [ ! -e {other} ]; do sleep 0.01; done; echo met {other}"
    first, second = (call("bash", command=meet.format(mine=a, other=b)) for a, b in (("a", "b"), ("b", "a")))
    run = await kedge.wait(
        (await kedge.submit(session, f"script: {first} | {second} | say both", model=model, mode="yolo"))["run_id"]
    )
    assert (run["outcome"], run["text"]) == ("completed", "both")
    assert {result["content"].split("\n")[0] for result in results_of(await kedge.messages(session))} == {
        "met a",
        "met b",
    }


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("broken", ['{"path": ', "[1, 2]", '{"path": 17}', "{}", '{"path": "\\ud800"}'])
async def test_i1_malformed_input_becomes_an_error_result(kedge: Peer, model: str, broken: str) -> None:
    session = await kedge.session()
    run = await kedge.wait(
        (await kedge.submit(session, f"script: tool view {broken} | say sorry", model=model))["run_id"]
    )
    assert (run["outcome"], run["text"]) == ("completed", "sorry")
    (result,) = results_of(await kedge.messages(session))
    assert result["is_error"]


async def test_i1_a_call_of_an_unknown_tool_is_an_error_result(kedge: Peer) -> None:
    session = await kedge.session()
    run = await kedge.wait((await kedge.submit(session, "script: tool teleport {} | say well"))["run_id"])
    assert run["outcome"] == "completed"
    assert "Tool teleport not found" in results_of(await kedge.messages(session))[0]["content"]


async def test_i2_a_denial_becomes_an_error_result(kedge: Peer) -> None:
    session = await kedge.session()
    async with kedge.stream(session_id=session) as stream:
        command = call("bash", command="touch made")
        run_id = (await kedge.submit(session, f"script: {command} | say as you wish"))["run_id"]
        (asked,) = await stream.until(lambda stream: stream.of("permission_request"))
        assert asked.payload["params"]["command"] == "touch made"
        assert asked.payload["path"] == str(kedge.directory)
        assert await kedge.answer(asked.payload["id"], "deny", message="not in this house") == {"resolved": True}
        await stream.until_complete(run_id)
        (closed,) = stream.of("permission_notification")
        assert (closed.payload["granted"], closed.payload["answer"]) == (False, "deny")
    (result,) = results_of(await kedge.messages(session))
    assert result["is_error"]
    assert "denied" in result["content"]
    assert "not in this house" in result["content"]
    assert not (kedge.directory / "made").exists()


async def test_i3_a_failed_request_is_retried_and_its_text_replaced(kedge: Peer) -> None:
    session = await kedge.session()
    async with kedge.stream(session_id=session, deltas=1) as stream:
        script = "script: say half an ans | cut times=1 | say the whole answer"
        run_id = (await kedge.submit(session, script))["run_id"]
        (complete,) = await stream.until_complete(run_id)
        assert (complete["outcome"], complete["text"]) == ("completed", "half an ans the whole answer")
        (retry,) = [frame.payload for frame in stream.of("agent_event")]
        assert (retry["type"], retry["run_id"], retry["attempt"]) == ("retry", run_id, 2)
        assert "closed the connection" in retry["error"] or "ended its reply" in retry["error"]
        assert stream.text(complete["message_id"]) == complete["text"]
    assert [text_of(message) for message in await kedge.messages(session)][1:] == [complete["text"]]


async def test_i3_repeated_failures_end_the_run_with_the_last_error(kedge: Peer, endpoint: Endpoint) -> None:
    session, tag = await kedge.session(), unique()
    run = await kedge.wait((await kedge.submit(session, f"script: tag {tag} | fail 503 out of order"))["run_id"])
    assert (run["outcome"], run["reason"]) == ("failed", "model_failed")
    assert "out of order" in run["error"]
    assert len(endpoint.requests(tag)) == 2


async def test_i3_a_permanent_failure_is_not_retried(kedge: Peer, endpoint: Endpoint) -> None:
    session, tag = await kedge.session(), unique()
    run = await kedge.wait((await kedge.submit(session, f"script: tag {tag} | fail 401 no such key"))["run_id"])
    assert run["outcome"] == "failed"
    assert "key" in run["error"]
    assert len(endpoint.requests(tag)) == 1


async def test_i4_a_new_session_gets_a_title_during_the_run(
    own_server: Callable[..., Server], endpoint: Endpoint, workspace: Path
) -> None:
    server = own_server(titles=True)
    key = unique()
    async with open_http(server.url, server.token) as http:
        kedge = await Peer(http, workspace).open()
        session = await kedge.session()
        async with kedge.stream(session_id=session) as stream:
            run_id = (await kedge.submit(session, f"script: say a | hold {key} | say b"))["run_id"]

            await stream.until(
                lambda stream: any(frame.payload["title"] == "A scripted title" for frame in stream.of("session"))
            )
            endpoint.release(key)
            await stream.until_complete(run_id)
        assert (await kedge.call("GET", f"{kedge.at}/sessions/{session}"))["title"] == "A scripted title"


async def test_i4_a_title_that_never_comes_delays_nothing(own_server: Callable[..., Server], workspace: Path) -> None:
    server = own_server(titles=True)
    async with open_http(server.url, server.token) as http:
        kedge = await Peer(http, workspace).open()
        session = await kedge.session()
        run = await kedge.wait((await kedge.submit(session, "script: say done | title hang"))["run_id"])
        assert (run["outcome"], run["text"]) == ("completed", "done")
        assert (await kedge.call("GET", f"{kedge.at}/sessions/{session}"))["title"].startswith("script: say done")


async def test_i5_c10_compaction_is_part_of_the_same_run(kedge: Peer, endpoint: Endpoint) -> None:
    """4,000 tokens of context: the second Step reports 3,900 of them, so the history is summarised before the third."""
    session, tag = await kedge.session(), unique()
    async with kedge.stream(session_id=session) as stream:
        script = f"script: tag {tag} | usage 3900 10 | {call('ls')} | say never said, the script was summarised"
        first = (await kedge.submit(session, script, model="local/fake-narrow", run_id=unique("r")))["run_id"]
        second = (await kedge.submit(session, "script: say behind it", run_id=unique("r")))["run_id"]
        one, two = await stream.until_complete(first, second)
        assert one["outcome"] == two["outcome"] == "completed"
        assert stream.positions == sorted(stream.positions)
        ends = [frame.payload["run_id"] for frame in stream.of("run_complete")]
        assert ends == [first, second]
    info = await kedge.call("GET", f"{kedge.at}/sessions/{session}")
    summary = next(m for m in await kedge.messages(session) if m["id"] == info["summary_message_id"])
    assert "A scripted summary." in text_of(summary)
    assert "The request you are working on" in text_of(summary)
    assert summary["run_id"] == first


async def test_i5_a_requested_summary_is_a_run(kedge: Peer) -> None:
    session = await kedge.session()
    await kedge.wait((await kedge.submit(session, "script: say a long story"))["run_id"])
    receipt = await kedge.call("POST", f"{kedge.at}/agent/sessions/{session}/summarize")
    run = await kedge.wait(receipt["run_id"])
    assert (run["outcome"], run["text"]) == ("completed", "A scripted summary.")
    summary = (await kedge.call("GET", f"{kedge.at}/sessions/{session}"))["summary_message_id"]
    assert (await kedge.messages(session))[-1]["id"] == summary == run["message_id"]
    again = await kedge.wait((await kedge.submit(session, "script: say goes on"))["run_id"])
    assert again["text"] == "goes on"


async def test_i5_a_too_long_request_is_repeated_with_a_summary(kedge: Peer) -> None:
    session = await kedge.session()
    await kedge.wait((await kedge.submit(session, "script: say a long story"))["run_id"])
    script = "script: fail 400 code=context_length_exceeded times=1 maximum context length | say fits now"
    run = await kedge.wait((await kedge.submit(session, script))["run_id"])
    assert run["outcome"] == "completed"
    assert (await kedge.call("GET", f"{kedge.at}/sessions/{session}"))["summary_message_id"]


async def test_i6_a_model_that_loops_is_stopped(kedge: Peer) -> None:
    session = await kedge.session()
    steps = " | step | ".join([call("ls")] * 12)
    run = await kedge.wait((await kedge.submit(session, f"script: {steps} | say never"))["run_id"])
    assert (run["outcome"], run["reason"], run["steps"]) == ("failed", "loop", 6)


async def test_i6_steps_and_budget_are_terminal_reasons(kedge: Peer) -> None:
    session = await kedge.session()
    steps = " | step | ".join(call("view", path=f"f{number}") for number in range(5))
    run = await kedge.wait((await kedge.submit(session, f"script: {steps}", max_steps=3))["run_id"])
    assert (run["outcome"], run["reason"], run["steps"]) == ("failed", "max_steps", 3)
    script = f"script: usage 1000 500 | {call('ls')} | say never"
    run = await kedge.wait(
        (await kedge.submit(session, script, model="local/fake-narrow", budget_usd=0.0019))["run_id"]
    )
    assert (run["outcome"], run["reason"]) == ("failed", "budget")
    assert run["usage"] == {"input_tokens": 1000, "output_tokens": 500, "cost_usd": 0.002}
    run = await kedge.wait((await kedge.submit(session, "script: say x", budget_usd=1))["run_id"])
    assert (run["outcome"], run["reason"]) == ("failed", "bad_config")
    assert "price" in run["error"]


async def test_i8_an_image_is_sent_or_refused_for_a_text_model(kedge: Peer, endpoint: Endpoint) -> None:
    picture = base64.b64encode(b"\x89PNG\r\n\x1a\n").decode()
    given = [{"file_path": "a.png", "file_name": "a.png", "mime_type": "image/png", "content": picture}]
    session, tag = await kedge.session(), unique()
    run = await kedge.wait((await kedge.submit(session, f"script: tag {tag} | say seen", attachments=given))["run_id"])
    assert run["outcome"] == "completed"
    assert picture in json.dumps(endpoint.requests(tag)[0].body)
    refused = await kedge.submit(session, "script: say x", attachments=given, model="local/fake-narrow")
    run = await kedge.wait(refused["run_id"])
    assert run["outcome"] == "failed"
    assert "a.png" in run["error"]
    assert "image" in run["error"]
    later = await kedge.wait((await kedge.submit(session, "script: say fine", model="local/fake-narrow"))["run_id"])
    assert later["outcome"] == "completed"


async def test_i8_an_attached_path_is_read_at_acceptance(kedge: Peer, endpoint: Endpoint) -> None:
    session, tag = await kedge.session(), unique()
    (kedge.directory / "notes.md").write_text("remember the milk")
    await kedge.submit(
        session,
        f"script: tag {tag} | say read",
        attachments=[{"file_path": "notes.md"}],
        run_id=(run_id := unique("r")),
    )
    (kedge.directory / "notes.md").write_text("forget it")
    assert (await kedge.wait(run_id))["outcome"] == "completed"
    assert "remember the milk" in json.dumps(endpoint.requests(tag)[0].body)
    error = await kedge.submit(session, "x", attachments=[{"file_path": "nowhere.md"}], expect=400)
    assert "nowhere.md" in error["message"]


async def test_i9_a_child_agent_is_cancelled_with_its_parent(kedge: Peer, endpoint: Endpoint) -> None:
    session, tag = await kedge.session(), unique()
    one = call("agent", prompt="script: say first finding", description="one")
    two = call("agent", prompt="script: say second finding", description="two")
    run = await kedge.wait((await kedge.submit(session, f"script: {one} | {two} | say both"))["run_id"])
    assert run["outcome"] == "completed"
    found = {result["content"] for result in results_of(await kedge.messages(session))}
    assert found == {"first finding", "second finding"}
    children = [s for s in await kedge.call("GET", f"{kedge.at}/sessions") if s["parent_session_id"] == session]
    assert len(children) == 2

    child = call("agent", prompt=f"script: tag {tag} | say x | hang", description="three")
    run_id = (await kedge.submit(session, f"script: {child} | say never"))["run_id"]
    await endpoint.wait_open(tag)
    await kedge.cancel_run(run_id)
    assert (await kedge.wait(run_id))["outcome"] == "cancelled"
    await endpoint.wait_open(tag, 0)  # its end is reported a moment later
    live = await kedge.call("GET", "/runs")
    assert not [found for found in live if found["workspace_id"] == kedge.workspace]


async def test_i9_a_child_agent_is_read_only(kedge: Peer) -> None:
    session = await kedge.session()
    child = call("agent", prompt=f"script: {call('bash', command='touch made')} | say tried", description="x")
    run = await kedge.wait((await kedge.submit(session, f"script: {child} | say ok", mode="yolo"))["run_id"])
    assert run["outcome"] == "completed"
    assert not (kedge.directory / "made").exists()


async def test_todos_are_sent_to_all_clients(kedge: Peer) -> None:
    session = await kedge.session()
    todos = [{"content": "look", "status": "completed"}, {"content": "leap", "status": "in_progress"}]
    async with kedge.stream(session_id=session) as stream:
        run_id = (await kedge.submit(session, f"script: {call('todos', todos=todos)} | say noted"))["run_id"]
        await stream.until_complete(run_id)
        assert [todo["content"] for todo in stream.of("session")[-1].payload["todos"]] == ["look", "leap"]


async def test_a_question_is_answered_by_the_user(kedge: Peer) -> None:
    session = await kedge.session()
    asked = [{"question": "Which?", "options": [{"label": "red"}, {"label": "blue"}]}, {"question": "Why?"}]
    async with kedge.stream(session_id=session) as stream:
        run_id = (await kedge.submit(session, f"script: {call('question', questions=asked)} | say thanks"))["run_id"]
        (batch,) = await stream.until(lambda stream: stream.of("question_batch_request"))
        first, second = batch.payload["questions"]
        responses: list[Json] = [
            {"request_id": first["request_id"], "selected_ids": [first["options"][1]["id"]]},
            {"request_id": second["request_id"], "fill_in_text": "because"},
        ]
        body = {"batch_request_id": batch.payload["id"], "responses": responses}
        assert await kedge.call("POST", f"{kedge.at}/questions/answer", body) == {"resolved": True}
        await stream.until_complete(run_id)
        assert stream.of("question_batch_notification")[0].payload["answered"]
    (result,) = results_of(await kedge.messages(session))
    assert "blue" in result["content"]
    assert "because" in result["content"]


async def test_a_command_of_the_user_joins_the_transcript(kedge: Peer, endpoint: Endpoint) -> None:
    session, tag = await kedge.session(), unique()
    path = f"{kedge.at}/agent/sessions/{session}/shell"
    assert await kedge.call("POST", path, {"command": "echo hi; exit 3"}) == {"exit_code": 3, "output": "hi\n"}
    await kedge.wait((await kedge.submit(session, f"script: tag {tag} | say ok"))["run_id"])
    assert "echo hi" in json.dumps(endpoint.requests(tag)[0].body)
    assert finish_of((await kedge.messages(session))[0]) is None
