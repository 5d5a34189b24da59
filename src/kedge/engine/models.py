"""From a name such as "local/fake-large" to a model that can be asked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from kedge.engine.config import OFFLINE, Config, secret
from kedge.errors import BadConfig
from kedge.llm.base import Model
from kedge.llm.offline import OfflineModel

if TYPE_CHECKING:
    import httpx2


class ModelChooser(Protocol):
    """The port: where the engine gets its models from."""

    def choose(self, config: Config, wanted: str | None) -> Model:
        """The model a Run wishes, or the configured one, or the built-in one; BadConfig says why there is none."""
        ...

    async def close(self) -> None: ...


class Models:
    """One HTTP connection pool for all providers, made when the first of them is asked."""

    def __init__(self) -> None:
        self._client: httpx2.AsyncClient | None = None

    def choose(self, config: Config, wanted: str | None) -> Model:
        name = wanted or config.model or OFFLINE
        if name == OFFLINE:
            return OfflineModel()
        provider_name, _, model = name.partition("/")
        provider = config.providers.get(provider_name)
        if provider is None:
            known = ", ".join(sorted(config.providers)) or "none"
            raise BadConfig(f"Model {name}: there is no provider {provider_name} (configured: {known}).")
        if not model:
            raise BadConfig(f"Model {name}: write it as provider/model.")
        known_models = [entry.id for entry in provider.models]
        if known_models and model not in known_models:
            raise BadConfig(f"Model {name}: provider {provider_name} lists {', '.join(known_models)}.")
        if not provider.base_url:
            raise BadConfig(f"Provider {provider_name} has no base_url; add it to the configuration.")
        from kedge.llm.openai import OpenAIModel

        if self._client is None:
            self._client = new_client()
        key = secret(provider.api_key) if provider.api_key else None
        return OpenAIModel(provider_name, model, provider.base_url, key, self._client)

    async def adopt(self, client: httpx2.AsyncClient) -> None:
        """Use this pool: made by `new_client` in a thread, before a first prompt has to wait for it."""
        if self._client is None:
            self._client = client
        else:
            await client.aclose()

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()


def new_client() -> httpx2.AsyncClient:
    """A connection pool. It takes a tenth of a second and some memory to load, which a server without a provider does
    not need."""
    from kedge.llm import transport

    return transport.new_client()
