"""Model names: from "local/fake-large" to a provider, a model and its facts."""

from __future__ import annotations

import os
from collections.abc import Mapping

from msgspec import Struct

from kedge.config.providers import all_providers, api_key, is_vendor_endpoint, provider_for, unknown_provider
from kedge.config.schema import Config, ModelEntry, ProviderConfig
from kedge.core.records import OFFLINE
from kedge.errors import BadConfig
from kedge.llm import catalogue
from kedge.llm.catalogue import ModelFacts, Price


class ResolvedModel(Struct, frozen=True):
    """A model of a provider."""

    provider_name: str
    #: With the default address and key reference filled in.
    provider: ProviderConfig
    model: str
    #: The user's entry for the model.
    entry: ModelEntry | None = None

    @property
    def name(self) -> str:
        return f"{self.provider_name}/{self.model}"

    def key(self, environment: Mapping[str, str] = os.environ) -> str | None:
        """Return the API key, or None if none is sent. Raises BadConfig if it cannot be read."""
        return api_key(self.provider, self.provider_name, environment)

    @property
    def facts(self) -> ModelFacts:
        """The user's entry, completed from the catalogue."""
        # The vendor of another endpoint is unknown; the name that the user chose is the best hint.
        vendor = _vendor(self.provider) if is_vendor_endpoint(self.provider) else self.provider_name
        known = catalogue.facts(vendor, self.model, self.provider.base_url)
        entry = self.entry or ModelEntry(self.model)
        return ModelFacts(
            entry.context_window or known.context_window,
            _price(entry, known.price),
            known.takes_images if entry.images is None else entry.images,
            entry.output_tokens_max or known.output_tokens_max,
        )


class ModelListing(Struct, frozen=True):
    """A row of `kedge models`."""

    name: str
    provider_name: str
    facts: ModelFacts
    #: The default model.
    is_default: bool
    #: The model for titles.
    is_small: bool
    description: str = ""


def resolve_model(config: Config, name: str, environment: Mapping[str, str] = os.environ) -> ResolvedModel:
    """Resolve a model name that is not built in. Raises BadConfig with the reason."""
    provider_name, _, model = name.partition("/")
    if not model:
        raise BadConfig(f"Model {name}: write it as provider/model.")
    provider = provider_for(config, provider_name, environment)
    if provider is None:
        raise BadConfig(f"Model {name}: {unknown_provider(config, provider_name)}")
    listed = {entry.id: entry for entry in provider.models}
    if listed and model not in listed:
        raise BadConfig(f"Model {name}: provider {provider_name} offers only {', '.join(listed)}.")
    return ResolvedModel(provider_name, provider, model, listed.get(model))


def known_models(config: Config, environment: Mapping[str, str] = os.environ) -> list[ResolvedModel]:
    """Return the models that the configuration lists, or else those of the catalogue, for each provider."""
    models: dict[str, ResolvedModel] = {}
    for name, provider in all_providers(config, environment).items():
        for entry in provider.models:
            models[f"{name}/{entry.id}"] = ResolvedModel(name, provider, entry.id, entry)
        if not provider.models and is_vendor_endpoint(provider):
            for model in catalogue.known(_vendor(provider)):
                models[f"{name}/{model}"] = ResolvedModel(name, provider, model)
    for configured in (config.model, config.small_model):  # these need not be listed anywhere
        if configured and configured != OFFLINE and configured not in models:
            try:
                models[configured] = resolve_model(config, configured, environment)
            except BadConfig:
                continue  # `kedge config check` reports it
    return list(models.values())


def list_models(config: Config, environment: Mapping[str, str] = os.environ) -> list[ModelListing]:
    """Return the known models, then the built-in one."""
    default = config.model or OFFLINE
    small = config.small_model or default
    rows = [(model.name, model.provider_name, model.facts, "") for model in known_models(config, environment)]
    rows.append((OFFLINE, OFFLINE.partition("/")[0], ModelFacts(), "built in: real tools, no language model"))
    return [
        ModelListing(name, provider_name, facts, name == default, name == small, text)
        for name, provider_name, facts, text in rows
    ]


def _vendor(provider: ProviderConfig) -> str:
    return provider.type.removesuffix("-responses")


def _price(entry: ModelEntry, known: Price | None) -> Price | None:
    if entry.input_price is None and entry.output_price is None:
        return known
    known = known or Price(0.0, 0.0)
    return Price(
        known.input if entry.input_price is None else entry.input_price,
        known.output if entry.output_price is None else entry.output_price,
    )
