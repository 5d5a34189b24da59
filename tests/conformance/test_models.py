"""The available models, and the context size of a Run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.conformance.harness import Json, Peer, Server, unique


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
