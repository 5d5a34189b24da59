"""The provider types of the configuration. A new one is an entry here, and a module if its API format is new."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, get_args

from msgspec import Struct

from kedge.llm.base import Model

if TYPE_CHECKING:
    import httpx2

ProviderType = Literal[
    "openai",
    "anthropic",
    "openai-responses",
    "google",
    "google-cloud",
    "bedrock",
    "mistral",
    "cohere",
    "groq",
]


class ProviderSpec(Struct, frozen=True):
    type: ProviderType
    #: Variables for the vendor's API key, the usual one first. Empty: its library authenticates in other ways.
    variables: tuple[str, ...] = ()
    #: The vendor's endpoint. Empty: its library knows it.
    base_url: str = ""
    #: The module in this package and its class. By default the pydantic-ai package serves the type.
    module: str = "pydantic_ai"
    model_class: str = "PydanticAIModel"

    def needs_tls(self, base_url: str) -> bool:
        """Return False if requests use plain HTTP. A library may connect to any address: it always needs TLS."""
        return self._uses_library or not base_url.lower().startswith("http://")

    def load(self) -> Callable[[str, str, str, str | None, httpx2.AsyncClient], Model]:
        """Import the module, which may take a tenth of a second; return the constructor of its models.

        Its arguments are the name of the provider, the name of the model, base_url, API key and HTTP client."""
        constructor: Any = getattr(import_module(f"kedge.llm.{self.module}"), self.model_class)
        return partial(constructor, kind=self.type) if self._uses_library else constructor

    @property
    def _uses_library(self) -> bool:
        return self.module == "pydantic_ai"


PROVIDERS: dict[ProviderType, ProviderSpec] = {
    spec.type: spec
    for spec in (
        ProviderSpec("openai", ("OPENAI_API_KEY",), "https://api.openai.com/v1", "openai", "OpenAIModel"),
        ProviderSpec("anthropic", ("ANTHROPIC_API_KEY",), "https://api.anthropic.com", "anthropic", "AnthropicModel"),
        ProviderSpec("openai-responses", ("OPENAI_API_KEY",), "https://api.openai.com/v1"),
        ProviderSpec("google", ("GEMINI_API_KEY", "GOOGLE_API_KEY")),
        ProviderSpec("mistral", ("MISTRAL_API_KEY",)),
        ProviderSpec("cohere", ("CO_API_KEY", "COHERE_API_KEY")),
        ProviderSpec("groq", ("GROQ_API_KEY",)),
        ProviderSpec("google-cloud"),
        ProviderSpec("bedrock"),
    )
}
assert PROVIDERS.keys() == set(get_args(ProviderType))
