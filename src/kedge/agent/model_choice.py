"""From a name such as "local/fake-large" to a model that can be asked, with what is known of it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct
from msgspec.structs import replace

from kedge.config.model_names import ResolvedModel, resolve_model
from kedge.config.schema import DEMO, Config, ProviderConfig
from kedge.config.secrets import KEYRING
from kedge.core.records import OFFLINE, Usage
from kedge.errors import BadConfig
from kedge.llm.base import Model
from kedge.llm.catalogue import Price, cost_usd
from kedge.llm.offline import OfflineModel
from kedge.llm.provider_types import PROVIDERS

if TYPE_CHECKING:
    import httpx2

    from kedge.llm.demo import DemoModel

FREE = Price(0.0, 0.0)


class RunModel(Struct, frozen=True):
    """A model, and what a Run must know of it. None: not known."""

    model: Model
    context_window: int | None = None
    output_tokens_max: int | None = None
    thinking_tokens: int | None = None
    takes_images: bool = True
    price: Price | None = None
    #: The built-in ones are not asked for a title: theirs would be no better than the prompt's beginning.
    writes_titles: bool = True

    def priced(self, usage: Usage) -> Usage:
        return usage if self.price is None else replace(usage, cost_usd=cost_usd(self.price, usage))


class ModelChooser(Protocol):
    """The port: where the engine gets its models from."""

    async def choose(self, config: Config, wanted: str) -> RunModel:
        """The model of this name, or the configured one, or the built-in one; BadConfig says why there is none."""
        ...

    async def choose_small(self, config: Config, wanted: str) -> RunModel:
        """The one for small things, such as titles; where none is configured, the one of this name."""
        ...

    async def close(self) -> None: ...


class Models:
    """One HTTP connection pool for the providers with TLS and one for those without, made when the first is asked."""

    def __init__(self) -> None:
        #: By whether TLS is spoken.
        self._pools: dict[bool, httpx2.AsyncClient] = {}
        self._loaded: set[str] = set()
        self._opening = asyncio.Lock()
        self._demo: DemoModel | None = None

    async def choose(self, config: Config, wanted: str) -> RunModel:
        name = wanted or config.model or OFFLINE
        if name == OFFLINE:
            return RunModel(OfflineModel(), price=FREE, takes_images=False, writes_titles=False)
        if name == DEMO:
            from kedge.llm.demo import DemoModel

            pool = await self.pool(tls=False)
            self._demo = self._demo or DemoModel(lambda: pool)
            return RunModel(self._demo, price=FREE, takes_images=False, writes_titles=False)
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

    async def choose_small(self, config: Config, wanted: str) -> RunModel:
        return await self.choose(config, config.small_model or wanted)

    async def _model(self, resolved: ResolvedModel) -> Model:
        provider, name = resolved.provider, resolved.provider_name
        # A locked keyring waits for its user: not on the event loop.
        key = await asyncio.to_thread(resolved.key) if provider.api_key.startswith(KEYRING) else resolved.key()
        spec = PROVIDERS[provider.type]
        pool = await self.pool(tls=needs_tls(provider))
        # Only the first import takes long: not on the event loop.
        constructor = await asyncio.to_thread(spec.load) if provider.type not in self._loaded else spec.load()
        self._loaded.add(provider.type)
        return constructor(name, resolved.model, provider.base_url, key, pool)

    async def pool(self, *, tls: bool) -> httpx2.AsyncClient:
        """The connection pool, made on first use, in a thread: loading the library takes a tenth of a second."""
        if tls not in self._pools:
            async with self._opening:
                if tls not in self._pools:
                    self._pools[tls] = await asyncio.to_thread(new_client, tls)
        return self._pools[tls]

    async def close(self) -> None:
        if self._demo is not None:
            await self._demo.close()
        for pool in self._pools.values():
            await pool.aclose()


def needs_tls(provider: ProviderConfig) -> bool:
    return PROVIDERS[provider.type].needs_tls(provider.base_url)


def new_client(tls: bool) -> httpx2.AsyncClient:
    """A connection pool. Half of its memory and time are the certificates, which one without TLS does not need."""
    import httpx2

    from kedge.llm import transport

    try:
        return transport.new_client(tls=tls)
    except (ImportError, ValueError, OSError, httpx2.InvalidURL) as error:  # their text may hold a part of a password
        raise BadConfig(
            f"No connection to a provider can be made ({type(error).__name__}); check ALL_PROXY, HTTP_PROXY, "
            "HTTPS_PROXY and SSL_CERT_FILE in the environment of the server."
        ) from None
