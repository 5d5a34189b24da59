"""Providers by name: those that are configured, and those whose name says all.

"openai/gpt-5-mini" works with nothing but OPENAI_API_KEY set. A provider without an address is served by its maker, and
its key is where people keep it for that maker; one with an address of its own has a key of its own, or none.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from kedge.config.schema import Config, Provider, ProviderType
from kedge.config.secrets import secret
from kedge.errors import BadConfig


class _Maker(Struct, frozen=True):
    #: The variables that people keep its key in, the usual one first. None: it has other ways to know who we are.
    variables: tuple[str, ...] = ()
    #: Where it is served; empty: its library knows.
    base_url: str = ""


_MAKERS: dict[ProviderType, _Maker] = {
    "openai": _Maker(("OPENAI_API_KEY",), "https://api.openai.com/v1"),
    "anthropic": _Maker(("ANTHROPIC_API_KEY",), "https://api.anthropic.com"),
    "openai-responses": _Maker(("OPENAI_API_KEY",), "https://api.openai.com/v1"),
    "google": _Maker(("GEMINI_API_KEY", "GOOGLE_API_KEY")),
    "mistral": _Maker(("MISTRAL_API_KEY",)),
    "cohere": _Maker(("CO_API_KEY", "COHERE_API_KEY")),
    "groq": _Maker(("GROQ_API_KEY",)),
    "google-cloud": _Maker(),
    "bedrock": _Maker(),
}


def provider_for(config: Config, name: str, environment: Mapping[str, str] = os.environ) -> Provider | None:
    """The configured provider, or the one that the name itself stands for if its key is in the environment. What may be
    left out is filled in: its address, and the place of its key."""
    provider = config.providers.get(name)
    if provider is None:
        maker = next((known for known in _MAKERS if known == name), None)
        if maker is None or _variable(maker, environment) is None:
            return None
        provider = Provider(type=maker)
    return replace(provider, base_url=base_url(provider), api_key=_key_place(provider, environment))


def base_url(provider: Provider) -> str:
    """Empty: the library of its type knows."""
    return provider.base_url or _MAKERS[provider.type].base_url


def api_key(provider: Provider, name: str, environment: Mapping[str, str] = os.environ) -> str | None:
    """The key itself; None when there is none to send. BadConfig when it cannot be had."""
    place = _key_place(provider, environment)
    try:
        return secret(place, environment) if place else None
    except BadConfig as error:
        raise BadConfig(f"Provider {name}: {error.message}") from None


def is_makers_own(provider: Provider) -> bool:
    """Served by its maker and not by somebody who speaks the same format."""
    return base_url(provider) == _MAKERS[provider.type].base_url


def all_providers(config: Config, environment: Mapping[str, str] = os.environ) -> dict[str, Provider]:
    """All that can be named: the configured ones, then those whose key is in the environment."""
    found = {name: provider_for(config, name, environment) for name in (*config.providers, *_MAKERS)}
    # OpenAI's second format has the same key; whoever wants it says so.
    return {
        name: provider
        for name, provider in found.items()
        if provider is not None and (name in config.providers or name != "openai-responses")
    }


def no_provider(config: Config, name: str) -> str:
    """Why there is none of this name, and what to do."""
    configured = ", ".join(sorted(config.providers)) or "none"
    variables = next((maker.variables for known, maker in _MAKERS.items() if known == name), ())
    # A server has the environment it was started with; who has set the variable since must start another.
    way_out = f"set {variables[0]} and start the server anew (`kedge stop`), or " if variables else ""
    return (
        f"there is no provider {name} (configured: {configured}); "
        f"{way_out}add [providers.{name}] to the configuration (`kedge config path` says where)."
    )


def _key_place(provider: Provider, environment: Mapping[str, str]) -> str:
    if provider.api_key or not is_makers_own(provider):
        return provider.api_key
    variable = _variable(provider.type, environment) or next(iter(_MAKERS[provider.type].variables), "")
    return f"${variable}" if variable else ""


def _variable(maker: ProviderType, environment: Mapping[str, str]) -> str | None:
    return next((name for name in _MAKERS[maker].variables if environment.get(name)), None)
