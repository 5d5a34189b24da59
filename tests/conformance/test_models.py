"""The available models, the context size of a Run, and its effort."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.conformance.harness import Endpoint, Json, Peer, Server, unique


async def models(kedge: Peer) -> dict[str, Json]:
    listed = await kedge.call("GET", f"{kedge.at}/models")
    return {model["model"]: model for model in listed}


async def test_models_are_listed_with_limits_and_prices(kedge: Peer) -> None:
    listed = await models(kedge)
    narrow = listed["local/fake-narrow"]
    assert (narrow["provider"], narrow["context_window"], narrow["images"]) == ("local", 4000, False)
    assert (narrow["input_price"], narrow["output_price"]) == (1, 2)
    assert "context_window" not in listed["local/fake-small"], "unknown values are omitted"
    assert [name for name, model in listed.items() if model["is_default"]] == ["local/fake-large"]
    assert [name for name, model in listed.items() if model["is_small"]] == ["local/fake-large"]
    assert listed["kedge/offline"]["description"]


async def test_models_follow_the_configuration_of_the_workspace(
    own_server: Callable[..., Server], workspace: Path
) -> None:
    key, password = unique("canary"), unique("canary")
    server = own_server(
        f'[providers.mine]\nbase_url = "http://me:{password}@127.0.0.1:1/v1"\napi_key = "{key}"\n'
        'models = [{ id = "a" }]\n'
    )
    async with server.peer(workspace) as kedge:
        assert (await models(kedge))["local/fake-large"]["is_default"]
        (workspace / "kedge.toml").write_text('model = "mine/a"\nsmall_model = "local/fake-small"\n')
        listed = await models(kedge)  # the current file, without reopening the workspace
        assert listed["mine/a"]["is_default"]
        assert listed["local/fake-small"]["is_small"]
        text = (await kedge.reply("GET", f"{kedge.at}/models")).text
        assert key not in text
        assert password not in text


async def test_models_of_a_closed_workspace_are_not_found(kedge: Peer) -> None:
    assert (await kedge.reply("GET", "/workspaces/nowhere/models")).status_code == 404


async def test_server_without_a_provider_lists_built_in_models(
    own_server: Callable[..., Server], workspace: Path
) -> None:
    server = own_server()
    server.stop()
    (server.home / "config.toml").write_text("")
    server.start()
    async with server.peer(workspace) as kedge:
        listed = await models(kedge)
    assert listed["kedge/offline"]["is_default"]


async def test_run_reports_the_context_of_its_last_request(kedge: Peer) -> None:
    session = await kedge.session()
    async with kedge.stream() as stream:
        script = 'script: usage 1000 20 | tool ls {"path": "."} | usage 1500 30 | say done'
        first = await kedge.submit(session, script)
        await stream.until_complete(first["run_id"])
        sizes = [frame.payload["context_tokens"] for frame in stream.of("run")]
    ended = await kedge.run(first["run_id"])
    assert ended["context_tokens"] == 1530, "not the sum of all requests"
    assert sizes[0] == 0, "no request was sent yet"
    assert sizes == sorted(sizes)
    assert ended["usage"]["input_tokens"] > 1500


async def test_context_of_the_last_request_survives_a_restart(
    own_server: Callable[..., Server], workspace: Path
) -> None:
    server = own_server()
    async with server.peer(workspace) as kedge:
        session = await kedge.session()
        run = await kedge.submit(session, "script: usage 700 7 | say hello")
        await kedge.wait(run["run_id"])
    server.kill()
    server.start()
    async with server.peer(workspace) as kedge:
        assert (await kedge.run(run["run_id"]))["context_tokens"] == 707


async def sent_effort(kedge: Peer, endpoint: Endpoint, session: str, **fields: Any) -> Json:
    """Return what the request of a Run with these options says about its effort."""
    tag = unique()
    await kedge.wait((await kedge.submit(session, f"script: tag {tag} | say done", **fields))["run_id"])
    (request,) = endpoint.requests(tag)
    return {field: request.body[field] for field in ("reasoning_effort", "thinking") if field in request.body}


async def test_effort_is_sent_per_run_per_session_or_not_at_all(kedge: Peer, endpoint: Endpoint) -> None:
    session = await kedge.session()
    at = f"{kedge.at}/sessions/{session}"
    assert await sent_effort(kedge, endpoint, session) == {}
    assert await sent_effort(kedge, endpoint, session, effort="high") == {"reasoning_effort": "high"}
    assert (await kedge.call("GET", at))["effort"] == "", "the effort of a Run is not that of its session"
    assert (await kedge.call("PUT", at, {"effort": "low"}))["effort"] == "low"
    assert await sent_effort(kedge, endpoint, session) == {"reasoning_effort": "low"}
    assert await sent_effort(kedge, endpoint, session, effort="") == {}
    other: Json = {"model": "claude/fake-large"}
    assert await sent_effort(kedge, endpoint, session, **other) == {}, "the session's effort is for its own model"
    thinking = {"type": "enabled", "budget_tokens": 4096}
    assert await sent_effort(kedge, endpoint, session, effort="medium", **other) == {"thinking": thinking}
    assert (await kedge.call("PUT", at, other))["effort"] == "low"
    thinking = {"type": "enabled", "budget_tokens": 1024}
    assert await sent_effort(kedge, endpoint, session) == {"thinking": thinking}
    last = (await kedge.messages(session))[-1]["id"]
    fork = await kedge.call("POST", f"{at}/fork", {"message_id": last})
    assert (fork["model"], fork["effort"]) == ("claude/fake-large", "low")


async def test_folded_prompt_keeps_the_effort_of_its_host(kedge: Peer, endpoint: Endpoint) -> None:
    session, tag = await kedge.session(), unique()
    script = f"script: tag {tag} | hold {tag} | tool nothing {{}} | say done"
    host = await kedge.submit(session, script, effort="low")
    await endpoint.wait_open(tag)
    await kedge.submit(session, "also this", effort="high", when_busy="fold")
    await kedge.call("PUT", f"{kedge.at}/sessions/{session}", {"effort": "high"})
    endpoint.release(tag)
    assert (await kedge.wait(host["run_id"]))["outcome"] == "completed"
    first, second = endpoint.requests(tag)
    assert second.text == "also this"
    assert (first.body["reasoning_effort"], second.body["reasoning_effort"]) == ("low", "low")


async def test_invalid_effort_changes_nothing(kedge: Peer) -> None:
    session = await kedge.session()
    await kedge.submit(session, "hello", effort="most", expect=422)
    await kedge.call("PUT", f"{kedge.at}/sessions/{session}", {"effort": "most"}, expect=422)
    assert await kedge.runs(session) == []
    assert (await kedge.call("GET", f"{kedge.at}/sessions/{session}"))["effort"] == ""
