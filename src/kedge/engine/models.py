"""From a name such as "local/fake-large" to a model that can be asked, with what is known of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from msgspec import Struct
from msgspec.structs import replace

from kedge.core.records import Usage
from kedge.engine.choice import Choice
from kedge.engine.choice import chosen as choice_of
from kedge.engine.schema import DEMO, OFFLINE, Config, Provider
from kedge.errors import BadConfig
from kedge.llm.base import Model
from kedge.llm.catalogue import Price, cost_usd
from kedge.llm.offline import OfflineModel

if TYPE_CHECKING:
    import httpx2

    from kedge.llm.demo import DemoModel

FREE = Price(0.0, 0.0)


class Chosen(Struct, frozen=True):
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

    def choose(self, config: Config, wanted: str) -> Chosen:
        """The model of this name, or the configured one, or the built-in one; BadConfig says why there is none."""
        ...

    def choose_small(self, config: Config, wanted: str) -> Chosen:
        """The one for small things, such as titles; where none is configured, the one of this name."""
        ...

    async def close(self) -> None: ...


class Models:
    """One HTTP connection pool for the providers with TLS and one for those without, made when the first is asked."""

    def __init__(self) -> None:
        #: By whether TLS is spoken.
        self._pools: dict[bool, httpx2.AsyncClient] = {}
        self._demo: DemoModel | None = None

    def choose(self, config: Config, wanted: str) -> Chosen:
        name = wanted or config.model or OFFLINE
        if name == OFFLINE:
            return Chosen(OfflineModel(), price=FREE, takes_images=False, writes_titles=False)
        if name == DEMO:
            from kedge.llm.demo import DemoModel

            self._demo = self._demo or DemoModel(lambda: self._pool(False))
            return Chosen(self._demo, price=FREE, takes_images=False, writes_titles=False)
        choice = choice_of(config, name)
        known = choice.facts
        return Chosen(
            self._model(choice),
            known.context_window,
            known.output_tokens_max,
            choice.entry.thinking_tokens if choice.entry else None,
            known.takes_images is not False,
            known.price,
        )

    def choose_small(self, config: Config, wanted: str) -> Chosen:
        return self.choose(config, config.small_model or wanted)

    def _model(self, choice: Choice) -> Model:
        provider, name, key = choice.provider, choice.provider_name, choice.key()
        pool = self._pool(speaks_tls(provider))
        match provider.type:
            case "openai":
                from kedge.llm.openai import OpenAIModel

                return OpenAIModel(name, choice.model, provider.base_url, key, pool)
            case "anthropic":
                from kedge.llm.anthropic import AnthropicModel

                return AnthropicModel(name, choice.model, provider.base_url, key, pool)
            case _:
                from kedge.llm.pydantic_ai import PydanticAIModel

                return PydanticAIModel(name, choice.model, provider.type, provider.base_url, key, pool)

    def _pool(self, tls: bool) -> httpx2.AsyncClient:
        if tls not in self._pools:
            self._pools[tls] = new_client(tls)
        return self._pools[tls]

    async def adopt(self, tls: bool, client: httpx2.AsyncClient) -> None:
        """Use this pool: made by `new_client` in a thread, before a first prompt has to wait for it."""
        if self._pools.setdefault(tls, client) is not client:
            await client.aclose()

    async def close(self) -> None:
        if self._demo is not None:
            await self._demo.close()
        for pool in self._pools.values():
            await pool.aclose()


def speaks_tls(provider: Provider) -> bool:
    """Of the libraries of others it is not known where they go: they always get the pool that checks certificates."""
    return provider.type not in ("openai", "anthropic") or not provider.base_url.lower().startswith("http://")


def new_client(tls: bool) -> httpx2.AsyncClient:
    """A connection pool. It takes a tenth of a second and some memory to load, which a server without a provider does
    not need; half of that are the certificates, which one without TLS does not need."""
    import httpx2

    from kedge.llm import transport

    try:
        return transport.new_client(tls=tls)
    except (ImportError, ValueError, OSError, httpx2.InvalidURL) as error:  # their text may hold a part of a password
        raise BadConfig(
            f"No connection to a provider can be made ({type(error).__name__}); check ALL_PROXY, HTTP_PROXY, "
            "HTTPS_PROXY and SSL_CERT_FILE in the environment of the server."
        ) from None
