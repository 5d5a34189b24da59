"""Providers by name: the configured ones, and vendors whose key is in the environment.

"openai/gpt-5-mini" needs only OPENAI_API_KEY. A provider without `base_url` uses the vendor's endpoint and the vendor's
usual variable for its key. A provider with another address has its own key, or none.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from msgspec.structs import replace

from kedge.config.schema import Config, ProviderConfig
from kedge.config.secrets import secret
from kedge.errors import BadConfig
from kedge.llm.provider_types import PROVIDERS, ProviderType


def provider_for(config: Config, name: str, environment: Mapping[str, str] = os.environ) -> ProviderConfig | None:
    """Return the configured provider, or the vendor of that name if its key is in the environment.

    The default address and key reference are filled in."""
    provider = config.providers.get(name)
    if provider is None:
        vendor = next((vendor for vendor in PROVIDERS if vendor == name), None)
        if vendor is None or _variable(vendor, environment) is None:
            return None
        provider = ProviderConfig(type=vendor)
    return replace(provider, base_url=base_url(provider), api_key=_key_reference(provider, environment))


def base_url(provider: ProviderConfig) -> str:
    """Return the address; empty if the library of its type knows it."""
    return provider.base_url or PROVIDERS[provider.type].base_url


def api_key(provider: ProviderConfig, name: str, environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the API key, or None if none is sent. Raises BadConfig if it cannot be read."""
    reference = _key_reference(provider, environment)
    try:
        return secret(reference, environment) if reference else None
    except BadConfig as error:
        raise BadConfig(f"Provider {name}: {error.message}") from None


def is_vendor_endpoint(provider: ProviderConfig) -> bool:
    """Return True for the vendor's own endpoint, False for another one with the same API format."""
    return base_url(provider) == PROVIDERS[provider.type].base_url


def all_providers(config: Config, environment: Mapping[str, str] = os.environ) -> dict[str, ProviderConfig]:
    """Return the configured providers, then the vendors whose key is in the environment."""
    providers = {name: provider_for(config, name, environment) for name in (*config.providers, *PROVIDERS)}
    # "openai-responses" uses the key of "openai": it is listed only if it is configured.
    return {
        name: provider
        for name, provider in providers.items()
        if provider is not None and (name in config.providers or name != "openai-responses")
    }


def unknown_provider(config: Config, name: str) -> str:
    """Return the message about an unknown provider, with what to do."""
    configured = ", ".join(sorted(config.providers)) or "none"
    variables = next((vendor.variables for known, vendor in PROVIDERS.items() if known == name), ())
    # A server keeps the environment that it was started with.
    remedy = f"Set {variables[0]} and restart the server (`kedge stop`), or add" if variables else "Add"
    return (
        f"provider {name} is not configured (configured: {configured}). "
        f"{remedy} [providers.{name}] to the configuration (`kedge config path` prints its path)."
    )


def _key_reference(provider: ProviderConfig, environment: Mapping[str, str]) -> str:
    if provider.api_key or not is_vendor_endpoint(provider):
        return provider.api_key
    variable = _variable(provider.type, environment) or next(iter(PROVIDERS[provider.type].variables), "")
    return f"${variable}" if variable else ""


def _variable(vendor: ProviderType, environment: Mapping[str, str]) -> str | None:
    return next((name for name in PROVIDERS[vendor].variables if environment.get(name)), None)
