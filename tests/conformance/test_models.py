"""The models that can be chosen, and how full the context of the chosen one is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.conformance.harness import Json, Peer, Server, unique


async def models(kedge: Peer) -> dict[str, Json]:
    found = await kedge.call("GET", f"{kedge.at}/models")
    return {model["model"]: model for model in found}


async def test_the_models_are_told_with_their_limits_and_prices(kedge: Peer) -> None:
    found = await models(kedge)
    narrow = found["local/fake-narrow"]
    assert (narrow["provider"], narrow["context_window"], narrow["images"]) == ("local", 4000, False)
    assert (narrow["input_price"], narrow["output_price"]) == (1, 2)
    assert "context_window" not in found["local/fake-small"], "what is not known is left out"
    assert [name for name, model in found.items() if model["is_default"]] == ["local/fake-large"]
    assert [name for name, model in found.items() if model["is_small"]] == ["local/fake-large"]
    assert found["kedge/offline"]["description"]


async def test_the_models_of_a_workspace_are_those_of_its_configuration(
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
        found = await models(kedge)  # as it is now, without opening anything again
        assert found["mine/a"]["is_default"]
        assert found["local/fake-small"]["is_small"]
        told = (await kedge.reply("GET", f"{kedge.at}/models")).text
        assert key not in told
        assert password not in told


async def test_the_models_of_a_workspace_that_is_not_open_are_not_told(kedge: Peer) -> None:
    assert (await kedge.reply("GET", "/workspaces/nowhere/models")).status_code == 404


async def test_a_server_without_a_provider_tells_of_the_built_in_models(
    own_server: Callable[..., Server], workspace: Path
) -> None:
    server = own_server()
    server.stop()
    (server.home / "config.toml").write_text("")
    server.start()
    async with server.peer(workspace) as kedge:
        found = await models(kedge)
    assert found["kedge/offline"]["is_default"]


async def test_a_run_tells_how_much_its_last_request_held(kedge: Peer) -> None:
    session = await kedge.session()
    async with kedge.stream() as stream:
        script = 'script: usage 1000 20 | tool ls {"path": "."} | usage 1500 30 | say done'
        first = await kedge.submit(session, script)
        await stream.until_complete(first["run_id"])
        told = [frame.payload["context_tokens"] for frame in stream.of("run")]
    ended = await kedge.run(first["run_id"])
    assert ended["context_tokens"] == 1530, "and not what all requests held together"
    assert told[0] == 0, "nothing was asked yet"
    assert told == sorted(told)
    assert ended["usage"]["input_tokens"] > 1500


async def test_how_much_the_last_request_held_is_known_after_a_restart(
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
