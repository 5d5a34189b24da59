"""The catalogue matches genai-prices, and finds a model under each of its names."""

from __future__ import annotations

import runpy
from contextlib import suppress
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest

from kedge.core.records import Usage
from kedge.llm import catalogue
from kedge.llm.catalogue import ModelFacts, Price, cost_usd, facts, known

ROOT = Path(__file__).parent.parent.parent
FILE_BYTES_MAX = 300_000
DAY = date(2026, 11, 16)
NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)

USES = {
    "a short request": Usage(1_000, 500),
    "much from the cache": Usage(100_000, 2_000, cache_read_tokens=90_000, cache_write_tokens=5_000),
    "above a tier": Usage(250_000, 2_000, cache_read_tokens=100_000),
    "at a tier": Usage(200_000, 10),
}


def test_catalogue_file_is_up_to_date() -> None:
    snapshot: str = runpy.run_path(str(ROOT / "scripts" / "catalogue.py"))["snapshot"]()
    written = (ROOT / "src" / "kedge" / "llm" / "catalogue.json").read_text()
    assert written == snapshot, "run scripts/catalogue"
    assert len(written) < FILE_BYTES_MAX


def genai_price(provider: str, model: str, usage: Usage, when: datetime = NOON) -> float:
    import genai_prices

    counts: dict[str, Any] = {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens}
    if usage.cache_read_tokens or usage.cache_write_tokens:
        counts |= {"cache_read_tokens": usage.cache_read_tokens, "cache_write_tokens": usage.cache_write_tokens}
    price = genai_prices.calc_price(
        genai_prices.Usage(**counts), model, provider_id=provider, genai_request_timestamp=when
    )
    return float(price.total_price)


@pytest.mark.parametrize("usage", USES.values(), ids=USES)
@pytest.mark.parametrize(
    ("provider", "model"),
    [
        ("openai", "gpt-5-mini"),
        ("openai", "gpt-4o-2024-08-06"),
        ("anthropic", "claude-sonnet-4-5-20250929"),
        ("anthropic", "claude-opus-4-6"),
        ("google", "gemini-2.5-pro"),
        ("google", "gemini-3-flash-preview"),
        ("aws", "us.anthropic.claude-sonnet-4-5-20250929-v1:0"),
        ("azure", "gpt-5"),
        ("openrouter", "anthropic/claude-sonnet-4.5"),
        ("mistral", "mistral-large-latest"),
        ("groq", "openai/gpt-oss-120b"),
        ("deepseek", "deepseek-chat"),
    ],
)
def test_costs_match_genai_prices(provider: str, model: str, usage: Usage) -> None:
    price = facts(provider, model, today=DAY).price
    assert price is not None
    assert cost_usd(price, usage) == pytest.approx(genai_price(provider, model, usage))


def test_cost_of_every_model_matches_genai_prices() -> None:
    """Covers all models without peak-hour prices, by their ids."""
    from genai_prices.data import providers
    from genai_prices.types import ModelPrice, TimeOfDateConstraint

    usage = Usage(300_000, 1_000)
    compared = 0
    for provider in providers:
        listed = (
            set(known(provider.id)) if provider.id in {"openai", "anthropic", "google", "mistral", "groq"} else set()
        )
        for model in provider.models:
            prices = model.prices if not isinstance(model.prices, ModelPrice) else []
            if model.id not in listed or any(isinstance(price.constraint, TimeOfDateConstraint) for price in prices):
                continue
            price = facts(provider.id, model.id, today=DAY).price
            assert price is not None, model.id
            with suppress(LookupError):  # genai-prices does not find its own id
                assert cost_usd(price, usage) == pytest.approx(genai_price(provider.id, model.id, usage)), model.id
                compared += 1
    assert compared > 150


def test_price_starts_on_its_date() -> None:
    before, after = (facts("anthropic", "claude-opus-4-6", today=day) for day in (date(2026, 3, 12), date(2026, 3, 13)))
    assert before.price is not None
    assert after.price is not None
    assert before.price.tiers
    assert not after.price.tiers
    when = datetime(2026, 3, 12, 12, tzinfo=UTC)
    usage = Usage(250_000, 1_000)
    assert cost_usd(before.price, usage) == pytest.approx(genai_price("anthropic", "claude-opus-4-6", usage, when))


def test_price_of_peak_hours_applies_all_day() -> None:
    price = facts("deepseek", "deepseek-chat", today=DAY).price
    peak = datetime(2026, 11, 16, 1, tzinfo=UTC)
    assert price is not None
    assert cost_usd(price, Usage(1000, 10)) == pytest.approx(
        genai_price("deepseek", "deepseek-chat", Usage(1000, 10), peak)
    )


@pytest.mark.parametrize(
    ("provider", "model", "base_url"),
    [
        ("anthropic", "claude-opus-4-6", ""),
        ("anthropic", "Claude-Opus-4-6", "https://api.anthropic.com/v1"),
        ("work", "claude-opus-4-6", "https://api.anthropic.com"),
        ("gateway", "claude-opus-4-6", "https://llm.example.com/v1"),
        ("gateway", "anthropic/claude-opus-4-6", "https://llm.example.com/v1"),
        ("openai", "claude-opus-4-6", "http://127.0.0.1:4000/v1"),
        ("gateway", "teams/red/claude-opus-4.6", ""),
    ],
)
def test_model_is_found_under_each_of_its_names(provider: str, model: str, base_url: str) -> None:
    assert facts(provider, model, base_url, DAY) == ModelFacts(
        1_000_000, Price(5, 25, 0.5, 6.25), takes_images=True, output_tokens_max=128_000
    )


def test_address_takes_precedence_over_the_name() -> None:
    by_address = facts("openai", "openai/gpt-oss-120b", "https://api.groq.com/openai/v1", DAY)
    assert by_address.price == facts("groq", "openai/gpt-oss-120b", "", DAY).price
    assert by_address.price != facts("openai", "gpt-oss-120b", "", DAY).price


@pytest.mark.parametrize("model", ["qwen3:8b", "deepseek-r1:8b", "mistral", "gemma3", "my-own-model", "", "/", ":"])
def test_local_model_has_no_price(model: str) -> None:
    assert facts("local", model, "http://127.0.0.1:11434/v1", DAY).price is None


def test_open_model_has_a_context_window_but_no_price() -> None:
    open_model = facts("local", "meta-llama/llama-3.3-70b-instruct", "http://127.0.0.1:8000/v1", DAY)
    assert open_model.context_window == 131_072
    assert open_model.price is None


def test_missing_context_window_is_taken_from_another_provider() -> None:
    window = facts("google", "gemini-2.5-pro", today=DAY).context_window
    assert window is not None
    assert window >= 1_000_000


def test_cache_price_defaults_to_the_input_price() -> None:
    usage = Usage(1_000_000, 0, cache_read_tokens=500_000, cache_write_tokens=250_000)
    assert cost_usd(Price(4, 8), usage) == 4
    assert cost_usd(Price(4, 8, 0, 8), usage) == 1 + 0 + 2


def test_cost_is_never_negative() -> None:
    assert cost_usd(Price(4, 8, 0, 0), Usage(10, 0, cache_read_tokens=100)) == 0


@pytest.mark.parametrize(
    ("model", "accepts"),
    [
        ("claude-3-haiku-20240307", True),
        ("claude-2.1", False),
        ("gpt-4o-mini", True),
        ("gpt-4", False),
        ("o3-mini", False),
        ("o3", True),
        ("gemini-2.5-flash", True),
        ("openai/gpt-oss-20b", False),
        ("something-else", None),
    ],
)
def test_models_that_accept_images(model: str, accepts: bool | None) -> None:
    assert facts("gateway", model).takes_images is accepts


@pytest.mark.parametrize(
    ("model", "tokens"),
    [
        ("claude-3-5-sonnet-20241022", 8_192),
        ("claude-opus-4-20250514", 32_000),
        ("claude-opus-4-1-20250805", 32_000),
        ("claude-sonnet-4-20250514", 64_000),
        ("claude-haiku-4-5-20251001", 64_000),
        ("claude-opus-5", 128_000),
        ("gpt-5", None),
    ],
)
def test_output_token_limits(model: str, tokens: int | None) -> None:
    assert facts("anthropic", model).output_tokens_max == tokens


def test_known_lists_the_models_of_a_provider() -> None:
    assert "gpt-5-mini" in known("openai")
    assert "claude-opus-4-6" in known("Anthropic")
    assert "gemini-2.5-pro" in known("google-vertex")
    assert known("unknown") == []
    assert known("") == []
    assert not [model for model in known("openai") if "tts" in model or "image" in model or "embed" in model]


def test_source_includes_the_version() -> None:
    from importlib.metadata import version

    assert catalogue.source() == f"genai-prices {version('genai-prices')}"
