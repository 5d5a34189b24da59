"""TLS: the certificate of every https provider is verified."""

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
async def test_untrusted_certificate_receives_no_data(kind: ProviderType, tmp_path: Path) -> None:
    received: list[bytes] = []

    async def receive(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.append(await reader.read(1))
        writer.close()

    context, _ = with_certificate("localhost", tmp_path)
    server, models = await asyncio.start_server(receive, "127.0.0.1", 0, ssl=context), Models()
    port = server.sockets[0].getsockname()[1]
    # The provider without TLS is used first: the other must not share its pool, which has no certificates.
    config = Config(
        providers={
            "plain": ProviderConfig(type=kind, base_url="http://127.0.0.1:1", api_key="k"),
            "secure": ProviderConfig(type=kind, base_url=f"HTTPS://localhost:{port}", api_key="k"),
        }
    )
    async with server:
        for name in ("plain", "secure"):
            model = (await models.choose(config, f"{name}/m")).model
            error = str(await failed(model, asking("hello")))
            assert ("TLS" if name == "secure" else "refused the connection") in error
    await models.close()
    assert b"".join(received) == b""


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
def test_only_http_addresses_get_the_pool_without_tls(kind: ProviderType, base_url: str, tls: bool) -> None:
    assert needs_tls(ProviderConfig(type=kind, base_url=base_url)) is tls
