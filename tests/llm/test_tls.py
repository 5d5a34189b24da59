"""Whatever address a provider has: where TLS is spoken, its certificate is checked."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kedge.agent.model_choice import Models, needs_tls
from kedge.config.schema import Config, ProviderConfig
from kedge.llm.provider_types import ProviderType
from tests.certificates import with_certificate
from tests.llm.support import asking, failed


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
async def test_a_provider_that_nobody_vouches_for_is_told_nothing(kind: ProviderType, tmp_path: Path) -> None:
    heard: list[bytes] = []

    async def listens(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.read(1))
        writer.close()

    context, _ = with_certificate("localhost", tmp_path)
    server, models = await asyncio.start_server(listens, "127.0.0.1", 0, ssl=context), Models()
    port = server.sockets[0].getsockname()[1]
    # One without TLS is asked first: its pool knows no certificates, and must not be that of the other.
    config = Config(
        providers={
            "plain": ProviderConfig(type=kind, base_url="http://127.0.0.1:1", api_key="k"),
            "secure": ProviderConfig(type=kind, base_url=f"HTTPS://localhost:{port}", api_key="k"),
        }
    )
    async with server:
        for name in ("plain", "secure"):
            model = (await models.choose(config, f"{name}/m")).model
            said = str(await failed(model, asking("hello")))
            assert ("TLS" if name == "secure" else "refused the connection") in said
    await models.close()
    assert b"".join(heard) == b""


@pytest.mark.parametrize(
    ("kind", "base_url", "tls"),
    [
        ("openai", "http://localhost:1/v1", False),
        ("anthropic", "HTTP://10.0.0.1", False),
        ("openai", "https://api.example/v1", True),
        ("openai", "", True),
        ("openai", "http", True),
        ("mistral", "http://localhost:1", True),
    ],
)
def test_only_addresses_in_the_clear_get_the_pool_without_certificates(
    kind: ProviderType, base_url: str, tls: bool
) -> None:
    assert needs_tls(ProviderConfig(type=kind, base_url=base_url)) is tls
