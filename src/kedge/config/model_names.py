"""From a name such as "local/fake-large" to a provider and a model of it, and what is known of that model."""

from __future__ import annotations

import os
from collections.abc import Mapping

from msgspec import Struct

from kedge.config.providers import all_providers, api_key, is_makers_own, no_provider, provider_for
from kedge.config.schema import DEMO, Config, ModelEntry, Provider
from kedge.core.records import OFFLINE
from kedge.errors import BadConfig
from kedge.llm import catalogue
from kedge.llm.catalogue import ModelFacts, Price

#: Models that need no provider, each with a word on what it is.
BUILT_IN = {OFFLINE: "built in: real tools, no language model", DEMO: "a tiny model on this machine, without tools"}


class ResolvedModel(Struct, frozen=True):
    """A model at a provider, both known to be there as far as the configuration tells."""

    provider_name: str
    #: With its address and its key's place filled in.
    provider: Provider
    model: str
    #: What the user says of the model, if anything.
    entry: ModelEntry | None = None

    @property
    def name(self) -> str:
        return f"{self.provider_name}/{self.model}"

    def key(self, environment: Mapping[str, str] = os.environ) -> str | None:
        """The API key itself; None when there is none to send. BadConfig when it cannot be had."""
        return api_key(self.provider, self.provider_name, environment)

    @property
    def facts(self) -> ModelFacts:
        """What the user says of it, and the catalogue where they say nothing."""
        # Of an endpoint of somebody else only the name it was given tells whose it may be.
        where = _maker(self.provider) if is_makers_own(self.provider) else self.provider_name
        known = catalogue.facts(where, self.model, self.provider.base_url)
        entry = self.entry or ModelEntry(self.model)
        return ModelFacts(
            entry.context_window or known.context_window,
            _price(entry, known.price),
            known.takes_images if entry.images is None else entry.images,
            entry.output_tokens_max or known.output_tokens_max,
        )


class ModelListing(Struct, frozen=True):
    """A model that a Run can be given, as people choose among them."""

    name: str
    provider_name: str
    facts: ModelFacts
    #: Used for the work itself when nobody says otherwise; for titles.
    is_default: bool
    is_small: bool
    #: A word on what it is, for those that need one.
    about: str = ""


def resolve_model(config: Config, name: str, environment: Mapping[str, str] = os.environ) -> ResolvedModel:
    """Which model a name means; the built-in ones are none of these. BadConfig says why there is none."""
    provider_name, _, model = name.partition("/")
    if not model:
        raise BadConfig(f"Model {name}: write it as provider/model.")
    provider = provider_for(config, provider_name, environment)
    if provider is None:
        raise BadConfig(f"Model {name}: {no_provider(config, provider_name)}")
    listed = {entry.id: entry for entry in provider.models}
    if listed and model not in listed:
        raise BadConfig(f"Model {name}: provider {provider_name} lists {', '.join(listed)}.")
    return ResolvedModel(provider_name, provider, model, listed.get(model))


def known_models(config: Config, environment: Mapping[str, str] = os.environ) -> list[ResolvedModel]:
    """The models that are known by name: those the configuration lists, or else those the catalogue knows of."""
    found: dict[str, ResolvedModel] = {}
    for name, provider in all_providers(config, environment).items():
        for entry in provider.models:
            found[f"{name}/{entry.id}"] = ResolvedModel(name, provider, entry.id, entry)
        if not provider.models and is_makers_own(provider):
            for model in catalogue.known(_maker(provider)):
                found[f"{name}/{model}"] = ResolvedModel(name, provider, model)
    for wanted in (config.model, config.small_model):  # it may be one that nobody lists
        if wanted and wanted not in BUILT_IN and wanted not in found:
            try:
                found[wanted] = resolve_model(config, wanted, environment)
            except BadConfig:
                continue  # `config check` tells why
    return list(found.values())


def list_models(config: Config, environment: Mapping[str, str] = os.environ) -> list[ModelListing]:
    """All that can be chosen: those known by name, then the built-in ones."""
    default = config.model or OFFLINE
    small = config.small_model or default
    found = [(choice.name, choice.provider_name, choice.facts, "") for choice in known_models(config, environment)]
    found += [(name, name.partition("/")[0], ModelFacts(), about) for name, about in BUILT_IN.items()]
    return [
        ModelListing(name, provider_name, facts, name == default, name == small, about)
        for name, provider_name, facts, about in found
    ]


def _maker(provider: Provider) -> str:
    return provider.type.removesuffix("-responses")


def _price(entry: ModelEntry, known: Price | None) -> Price | None:
    if entry.input_price is None and entry.output_price is None:
        return known
    known = known or Price(0.0, 0.0)
    return Price(
        known.input if entry.input_price is None else entry.input_price,
        known.output if entry.output_price is None else entry.output_price,
    )
