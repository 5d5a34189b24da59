"""The built-in catalogue of models: context windows and prices.

`catalogue.json` is written by `scripts/catalogue` from the package genai-prices and read when first asked. A model is
looked for at the provider that the address belongs to, then at the one of that name, then at its maker: a gateway
charges about what the maker does. Elsewhere only its size is believed, since the same open model costs something else
(or nothing) at each entry.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, date, datetime
from functools import cache
from importlib.resources import files
from typing import Any, Final

import msgspec
from msgspec import Struct

from kedge.core.records import Usage

TOKENS_PER_PRICE: Final = 1_000_000
#: Cached lookups: a server uses few models, but users type their names.
_LOOKUPS_MAX: Final = 256


class Price(Struct, frozen=True):
    """US dollars per million tokens. Cached input without its own price costs as much as other input."""

    input: float
    output: float
    cache_read: float | None = None
    cache_write: float | None = None
    #: (input tokens, price), ascending: a request with more input costs this price for all its tokens.
    tiers: tuple[tuple[int, Price], ...] = ()


class ModelFacts(Struct, frozen=True):
    """None: unknown."""

    context_window: int | None = None
    price: Price | None = None
    takes_images: bool | None = None
    output_tokens_max: int | None = None


# The file. A match rule is a text whose first letter is its kind (= is, ^ begins, $ ends, * holds, ~ regular
# expression), a list (one of them), or {"and": [...]} (all of them).


class _PriceRow(msgspec.Struct, array_like=True, frozen=True):
    input: float
    output: float
    cache_read: float | None = None
    cache_write: float | None = None
    over_tokens: int = 0
    first_day: str = ""


class _Model(msgspec.Struct, array_like=True, frozen=True):
    id: str
    #: None: just its id.
    rule: Any
    context_window: int | None
    prices: list[_PriceRow]

    def is_named(self, name: str) -> bool:
        return name == self.id.lower() if self.rule is None else _fits(self.rule, name)


class _Provider(msgspec.Struct, frozen=True):
    id: str
    api: str
    models: list[_Model]
    names: Any = None
    #: Ids of its own models.
    makes: Any = None
    #: Other providers whose models it offers for the same price.
    also: list[str] = []

    def find(self, name: str) -> _Model | None:
        by_rule = next((model for model in self.models if model.is_named(name)), None)
        # Some rules do not match the id of their own model, which `known` lists.
        return by_rule or next((model for model in self.models if model.id.lower() == name), None)


class _File(msgspec.Struct, frozen=True):
    source: str
    providers: list[_Provider]


#: Not in genai-prices; the first match counts. Unknown models: the engine tries.
_TAKES_IMAGES: Final = (
    (re.compile(r"claude-(2|v1|instant)|gpt-3\.5|gpt-oss|o1-(mini|preview)|o3-mini|text-davinci"), False),
    (re.compile(r"deepseek-(chat|reasoner|r1|v3)|llama-3\.[13]|codestral|mixtral|gpt-4(-32k|-0|$)"), False),
    (re.compile(r"claude|gemini|gpt-4(o|\.1|\.5|-turbo|-vision)|gpt-[5-9]|\bo[134]\b|o4-mini|pixtral"), True),
    (re.compile(r"grok-(2-vision|4)|llama-?4|mistral-(medium-3|small-3\.[12])|llama-3\.2-(11|90)b|-vl\b"), True),
)
#: Anthropic requires a limit of the reply, and refuses one above that of the model.
_OUTPUT_TOKENS_MAX: Final = (
    (re.compile(r"claude-3-(opus|sonnet|haiku)|claude-(2|v1|instant)"), 4096),
    (re.compile(r"claude-3[.-]5"), 8192),
    (re.compile(r"claude-opus-4([.-][01])?(-20\d{6}|$|[@:])"), 32_000),
    (re.compile(r"claude-(3[.-]7|sonnet-4([.-][05])?(-20|$|[@:])|haiku-4[.-]5|opus-4[.-]5)"), 64_000),
    (re.compile(r"claude-(opus-4[.-][678]|sonnet-4[.-]6|[a-z]+-5)"), 128_000),
)


def facts(provider: str, model: str, base_url: str = "", today: date | None = None) -> ModelFacts:
    """Return the known facts of a model. `provider` is its type or its name in the configuration."""
    return _facts(provider.lower().strip(), model.lower().strip(), base_url, today or datetime.now(UTC).date())


def cost_usd(price: Price, usage: Usage) -> float:
    """Return the cost of one request. Not for a sum of requests: a price tier applies to one request."""
    for over_tokens, dearer in reversed(price.tiers):
        if usage.input_tokens > over_tokens:
            price = dearer
            break
    read, written = usage.cache_read_tokens, usage.cache_write_tokens
    plain = max(usage.input_tokens - read - written, 0)
    cost = (
        plain * price.input
        + read * (price.input if price.cache_read is None else price.cache_read)
        + written * (price.input if price.cache_write is None else price.cache_write)
        + usage.output_tokens * price.output
    )
    return cost / TOKENS_PER_PRICE


def known(provider: str) -> list[str]:
    """Return the ids of the models of a provider; [] if the provider is unknown."""
    entry = _named(provider.lower().strip())
    return [model.id for model in entry.models] if entry else []


def source() -> str:
    """Return the source of the facts, with its version."""
    return _file().source


@cache
def _file() -> _File:
    return msgspec.json.decode(files("kedge.llm").joinpath("catalogue.json").read_bytes(), type=_File)


# The date is an argument, so that the cache does not outlive a price.
_remembered: dict[tuple[str, str, str, date], ModelFacts] = {}


def _facts(provider: str, model: str, base_url: str, today: date) -> ModelFacts:
    key = (provider, model, base_url, today)
    if key not in _remembered:
        if len(_remembered) >= _LOOKUPS_MAX:
            _remembered.clear()
        _remembered[key] = _looked_up(provider, model, base_url, today)
    return _remembered[key]


def _looked_up(provider: str, model: str, base_url: str, today: date) -> ModelFacts:
    priced = next(_priced(provider, model, base_url), None)
    window = priced.context_window if priced else None
    return ModelFacts(
        context_window=window or _windows().get(_bare(model)) or (_windows().get(_bare(priced.id)) if priced else None),
        price=_price(priced, today.isoformat()) if priced else None,
        takes_images=next((value for pattern, value in _TAKES_IMAGES if pattern.search(model)), None),
        output_tokens_max=next((value for pattern, value in _OUTPUT_TOKENS_MAX if pattern.search(model)), None),
    )


def _priced(provider: str, model: str, base_url: str) -> Iterator[_Model]:
    """Yield catalogue entries for the model, best first."""
    vendor, _, bare = model.rpartition("/")
    at_address = [entry for entry in _file().providers if base_url and re.match(entry.api, base_url)]
    for entry in (*at_address, _named(provider)):
        if entry and (priced := _at(entry, model)):
            yield priced
    if vendor and (maker := _named(vendor)) and (priced := _at(maker, bare)):
        yield priced
    if ":" in bare:
        return  # such as "deepseek-r1:8b": an open model on the user's own machine, which costs nothing
    for name in (model, bare):
        for maker in _file().providers:
            if maker.makes and _fits(maker.makes, name) and (priced := _at(maker, name)):
                yield priced


@cache
def _windows() -> dict[str, int]:
    """Map model ids without the vendor to context windows; the first provider that states one counts."""
    windows: dict[str, int] = {}
    for entry in _file().providers:
        for model in entry.models:
            if model.context_window:
                windows.setdefault(_bare(model.id.lower()), model.context_window)
    return windows


def _bare(model: str) -> str:
    return model.rpartition("/")[2]


def _at(entry: _Provider, model: str) -> _Model | None:
    others = [other for other in _file().providers if other.id in entry.also]
    # Gateways write the date of a model as 20251211 where its vendor writes 2025-12-11.
    for name in dict.fromkeys((model, re.sub(r"-(20\d\d)([01]\d)([0-3]\d)(?=[-:]|$)", r"-\1-\2-\3", model))):
        for one in (entry, *others):
            if priced := one.find(name):
                return priced
    return None


def _named(provider: str) -> _Provider | None:
    if not provider:
        return None
    by_id = next((entry for entry in _file().providers if entry.id == provider), None)
    return by_id or next((entry for entry in _file().providers if entry.names and _fits(entry.names, provider)), None)


def _fits(rule: Any, name: str) -> bool:
    if isinstance(rule, list):
        return any(_fits(part, name) for part in rule)
    if isinstance(rule, dict):
        return all(_fits(part, name) for part in rule["and"])
    kind, text = rule[0], rule[1:]
    match kind:
        case "=":
            return bool(name == text)
        case "^":
            return name.startswith(text)
        case "$":
            return name.endswith(text)
        case "*":
            return text in name
        case _:
            return re.search(text, name) is not None


def _price(model: _Model, today: str) -> Price:
    """Return the price that is valid now; the first one if none is."""
    days = [row.first_day for row in model.prices if row.first_day <= today]
    day = days[-1] if days else model.prices[0].first_day
    base, *dearer = (row for row in model.prices if row.first_day == day)
    tiers = tuple((row.over_tokens, _plain(row)) for row in dearer)
    return Price(base.input, base.output, base.cache_read, base.cache_write, tiers)


def _plain(row: _PriceRow) -> Price:
    return Price(row.input, row.output, row.cache_read, row.cache_write)
