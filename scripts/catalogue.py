"""Write src/kedge/llm/catalogue.json from genai-prices. `kedge.llm.catalogue` documents its fields.

Importing genai-prices takes half a second and loads pydantic, so the product reads this file instead.
"""

from __future__ import annotations

import json
import re
from decimal import Decimal
from importlib.metadata import version
from pathlib import Path
from typing import Any

from genai_prices import types
from genai_prices.data import providers

TARGET = Path(__file__).parent.parent / "src" / "kedge" / "llm" / "catalogue.json"

#: The prices that kedge's Usage distinguishes, in the order of a row.
KEYS = ("input_mtok", "output_mtok", "cache_read_mtok", "cache_write_mtok")
#: Prices and names of models that output audio, images or video, or no text at all.
OTHER_OUTPUT = ("output_audio_mtok", "output_image_mtok", "output_video_mtok")
OTHER_NAME = re.compile(r"embed|rerank|\b(audio|image|moderation|ocr|realtime|transcribe|tts|whisper)\b|^eleven_")


def snapshot() -> str:
    """The content of the file, one model per line for readable diffs."""
    lines = [f'{{"source": {json.dumps("genai-prices " + version("genai-prices"))}, "providers": [']
    listed = [(provider, [model for model in provider.models if is_language_model(model)]) for provider in providers]
    listed = [(provider, models) for provider, models in listed if models]
    for provider, models in listed:
        head = {
            "id": provider.id,
            "api": provider.api_pattern,
            "names": rule(provider.provider_match),
            "makes": rule(provider.model_match),
            "also": provider.fallback_model_providers,
        }
        lines.append(compact({key: value for key, value in head.items() if value})[:-1] + ',"models":[')
        lines += [row_of(model) + ("" if model is models[-1] else ",") for model in models]
        lines.append("]}" if provider is listed[-1][0] else "]},")
    return "\n".join([*lines, "]}", ""])


def is_language_model(model: types.ModelInfo) -> bool:
    """Return whether input and output text are priced per token. Free models have a price of 0, others none."""
    return not OTHER_NAME.search(model.id) and all(
        getattr(price, "input_mtok", None) is not None
        and getattr(price, "output_mtok", None) is not None
        and not any(getattr(price, key, None) is not None for key in OTHER_OUTPUT)
        for _, price in dated_prices(model)
    )


def dated_prices(model: types.ModelInfo) -> list[tuple[str, types.ModelPrice]]:
    """Return (first day, price) pairs. The last pair that has begun applies.

    A price for certain hours applies all day: it is the higher one, and a Run with a budget should end early rather
    than late.
    """
    if isinstance(model.prices, types.ModelPrice):
        return [("", model.prices)]
    dated: list[tuple[str, types.ModelPrice]] = []
    for entry in model.prices:
        if isinstance(entry.constraint, types.StartDateConstraint):
            dated.append((entry.constraint.start_date.isoformat(), entry.prices))
        else:
            # Valid on any day: it replaces the prices before it. Only later entries with a start date are kept.
            dated = [("", entry.prices)]
    return dated


def row_of(model: types.ModelInfo) -> str:
    match = rule(model.match)
    match = None if match == f"={model.id}" else match
    prices = [row for day, price in dated_prices(model) for row in price_rows(day, price)]
    return compact([model.id, match, model.context_window, prices])


def price_rows(day: str, price: types.ModelPrice) -> list[list[Any]]:
    """One row for the base price and one for each tier."""
    values = {key: getattr(price, key, None) for key in KEYS}
    starts = {tier.start for value in values.values() if isinstance(value, types.TieredPrices) for tier in value.tiers}
    rows = []
    for start in (0, *sorted(starts)):
        row = [*(number(at(value, start)) for value in values.values()), start, day]
        while not row[-1] and len(row) > 2:
            row.pop()
        rows.append(row)
    return rows


def at(value: Decimal | types.TieredPrices | None, start: int) -> Decimal | None:
    if not isinstance(value, types.TieredPrices):
        return value
    return next((tier.price for tier in reversed(value.tiers) if tier.start <= start), value.base)


def number(value: Decimal | None) -> int | float | None:
    if value is None:
        return None
    return int(value) if value == int(value) else float(value)


def rule(clause: Any) -> Any:
    """A match rule: a text with its kind as the first letter, a list for "one of", an object for "all of"."""
    match clause:
        case None:
            return None
        case types.ClauseEquals(equals=text):
            return f"={text.lower()}"
        case types.ClauseStartsWith(starts_with=text):
            return f"^{text.lower()}"
        case types.ClauseEndsWith(ends_with=text):
            return f"${text.lower()}"
        case types.ClauseContains(contains=text):
            return f"*{text.lower()}"
        case types.ClauseRegex(regex=pattern):
            return f"~{pattern}"
        case types.ClauseOr(or_=clauses):
            return [rule(part) for part in clauses]
        case types.ClauseAnd(and_=clauses):
            return {"and": [rule(part) for part in clauses]}
    raise TypeError(f"genai-prices has a new kind of rule: {clause!r}; add it to kedge.llm.catalogue.")


def compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


if __name__ == "__main__":
    TARGET.write_text(snapshot())
