"""Models for Runs: from a name such as "local/fake-large" to a model with its limits and price."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct
from msgspec.structs import replace

from kedge.config.model_names import ResolvedModel, resolve_model
from kedge.config.schema import Config, ProviderConfig
from kedge.config.secrets import KEYRING
from kedge.core.records import OFFLINE, Usage
from kedge.errors import BadConfig
from kedge.llm.base import Model
from kedge.llm.catalogue import Price, cost_usd
from kedge.llm.offline import OfflineModel
from kedge.llm.provider_types import PROVIDERS

if TYPE_CHECKING:
    import httpx2

FREE = Price(0.0, 0.0)


class RunModel(Struct, frozen=True):
    """A model with the facts that a Run needs. None: unknown."""

    model: Model
    context_window: int | None = None
    output_tokens_max: int | None = None
    thinking_tokens: int | None = None
    takes_images: bool = True
    price: Price | None = None
    #: The built-in model is not asked for titles: the start of the prompt is as good.
    writes_titles: bool = True

    def priced(self, usage: Usage) -> Usage:
        return usage if self.price is None else replace(usage, cost_usd=cost_usd(self.price, usage))


class ModelChooser(Protocol):
    """The source of models."""

    async def choose(self, config: Config, name: str) -> RunModel:
        """Return the named model, or the configured one, or the built-in one; BadConfig if it cannot be used."""
        ...

    async def choose_small(self, config: Config, name: str) -> RunModel:
        """Return the model for small tasks such as titles; the named one if none is configured."""
        ...

    async def close(self) -> None: ...


class Models:
    """Models with two shared HTTP connection pools, with and without TLS, created on first use."""

    def __init__(self) -> None:
        #: By use of TLS.
        self._pools: dict[bool, httpx2.AsyncClient] = {}
        self._loaded: set[str] = set()
        self._opening = asyncio.Lock()

    async def choose(self, config: Config, name: str) -> RunModel:
        name = name or config.model or OFFLINE
        if name == OFFLINE:
            return RunModel(OfflineModel(), price=FREE, takes_images=False, writes_titles=False)
        resolved = resolve_model(config, name)
        known = resolved.facts
        return RunModel(
            await self._model(resolved),
            known.context_window,
            known.output_tokens_max,
            resolved.entry.thinking_tokens if resolved.entry else None,
            known.takes_images is not False,
            known.price,
        )

    async def choose_small(self, config: Config, name: str) -> RunModel:
        return await self.choose(config, config.small_model or name)

    async def _model(self, resolved: ResolvedModel) -> Model:
        provider, name = resolved.provider, resolved.provider_name
        # In a thread: a locked keyring waits for the user.
        key = await asyncio.to_thread(resolved.key) if provider.api_key.startswith(KEYRING) else resolved.key()
        spec = PROVIDERS[provider.type]
        pool = await self.pool(tls=needs_tls(provider))
        # In a thread: the first import takes long.
        constructor = await asyncio.to_thread(spec.load) if provider.type not in self._loaded else spec.load()
        self._loaded.add(provider.type)
        return constructor(name, resolved.model, provider.base_url, key, pool)

    async def pool(self, *, tls: bool) -> httpx2.AsyncClient:
        """Return the connection pool, created in a thread on first use: loading the library takes 0.1 s."""
        if tls not in self._pools:
            async with self._opening:
                if tls not in self._pools:
                    self._pools[tls] = await asyncio.to_thread(new_client, tls)
        return self._pools[tls]

    async def close(self) -> None:
        for pool in self._pools.values():
            await pool.aclose()


def needs_tls(provider: ProviderConfig) -> bool:
    return PROVIDERS[provider.type].needs_tls(provider.base_url)


def new_client(tls: bool) -> httpx2.AsyncClient:
    """Return a connection pool. Without TLS it takes half the memory and time: it loads no certificates."""
    import httpx2

    from kedge.llm import transport

    try:
        return transport.new_client(tls=tls)
    except (
        ImportError,
        ValueError,
        OSError,
        httpx2.InvalidURL,
    ) as error:  # the text may contain a password
        raise BadConfig(
            f"Connections to providers are not possible ({type(error).__name__}); check ALL_PROXY, HTTP_PROXY, "
            "HTTPS_PROXY and SSL_CERT_FILE in the environment of the server."
        ) from None
