"""Resolution of model names, API keys and facts about models."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kedge.config.model_names import ResolvedModel, known_models, resolve_model
from kedge.config.providers import api_key, base_url, provider_for
from kedge.config.schema import Config, ModelEntry, ProviderConfig
from kedge.config.secrets import missing, secret
from kedge.errors import BadConfig

CANARY = "sk-canary-0123456789"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("unknown/x", r"provider unknown is not configured \(configured: local\). Add \[providers.unknown\]"),
        (
            "openai/gpt-5-mini",
            r"provider openai is not configured \(configured: local\). Set OPENAI_API_KEY and restart the server",
        ),
        ("local/", "provider/model"),
        ("local", "provider/model"),
        ("", "provider/model"),
        ("local/other", "offers only one"),
    ],
)
def test_unknown_model_is_refused_with_a_remedy(name: str, says: str) -> None:
    config = Config(providers={"local": ProviderConfig(base_url="http://127.0.0.1:1", models=[ModelEntry("one")])})
    with pytest.raises(BadConfig, match=says):
        resolve_model(config, name, {})


@pytest.mark.parametrize(
    ("name", "variable", "url"),
    [
        ("openai", "OPENAI_API_KEY", "https://api.openai.com/v1"),
        ("anthropic", "ANTHROPIC_API_KEY", "https://api.anthropic.com"),
        ("google", "GOOGLE_API_KEY", ""),
        ("google", "GEMINI_API_KEY", ""),
        ("mistral", "MISTRAL_API_KEY", ""),
    ],
)
def test_known_vendor_needs_only_its_key(name: str, variable: str, url: str) -> None:
    found = resolve_model(Config(), f"{name}/some/model", {variable: CANARY})
    assert (found.provider.type, found.provider.base_url, found.model) == (name, url, "some/model")
    assert found.key({variable: CANARY}) == CANARY
    assert CANARY not in repr(found)


def test_provider_without_address_uses_the_vendor() -> None:
    provider = ProviderConfig(type="anthropic")
    assert base_url(provider) == "https://api.anthropic.com"
    assert api_key(provider, "claude", {"ANTHROPIC_API_KEY": CANARY}) == CANARY
    with pytest.raises(BadConfig, match="Provider claude: The environment variable ANTHROPIC_API_KEY is not set"):
        api_key(provider, "claude", {})
    own = ProviderConfig(type="anthropic", api_key="$MINE")
    assert api_key(own, "claude", {"ANTHROPIC_API_KEY": "other", "MINE": CANARY}) == CANARY


def test_vendor_key_is_not_sent_to_another_address() -> None:
    config = Config(providers={"openai": ProviderConfig(base_url="http://127.0.0.1:1/v1")})
    environment = {"OPENAI_API_KEY": CANARY}
    provider = provider_for(config, "openai", environment)
    assert provider is not None
    assert (provider.base_url, provider.api_key) == ("http://127.0.0.1:1/v1", "")
    assert resolve_model(config, "openai/x", environment).key(environment) is None


def test_user_entry_overrides_the_catalogue() -> None:
    entry = ModelEntry("gpt-5-mini", context_window=1000, input_price=9.0, images=False)
    mine = Config(providers={"openai": ProviderConfig(models=[entry])})
    facts = resolve_model(mine, "openai/gpt-5-mini", {}).facts
    known = resolve_model(Config(), "openai/gpt-5-mini", {"OPENAI_API_KEY": "k"}).facts
    assert known.context_window
    assert known.context_window > 1000
    assert known.price is not None
    assert facts.price is not None
    assert (facts.context_window, facts.price.input, facts.takes_images) == (1000, 9.0, False)
    assert facts.price.output == known.price.output


def test_private_endpoint_is_not_the_vendor() -> None:
    found = ResolvedModel("local", ProviderConfig(base_url="http://127.0.0.1:1/v1"), "fake-large")
    assert (found.facts.price, found.facts.context_window) == (None, None)


def test_known_models_are_listed_or_from_the_catalogue() -> None:
    config = Config(
        model="bare/unlisted",
        small_model="kedge/offline",
        providers={
            "local": ProviderConfig(base_url="http://127.0.0.1:1", models=[ModelEntry("one"), ModelEntry("two")]),
            "bare": ProviderConfig(base_url="http://127.0.0.1:2"),
        },
    )
    assert [choice.name for choice in known_models(config, {})] == ["local/one", "local/two", "bare/unlisted"]
    with_key = [choice.name for choice in known_models(config, {"ANTHROPIC_API_KEY": "k"})]
    assert any(name.startswith("anthropic/claude") for name in with_key)
    broken = Config(model="unknown/x")
    assert known_models(broken, {}) == []


# --- secrets ---------------------------------------------------------------------------------------------------------


def test_key_is_a_literal_or_a_variable() -> None:
    assert secret("plain", {}) == "plain"
    assert secret("$NAME", {"NAME": "value"}) == "value"
    for environment in ({}, {"NAME": ""}):
        with pytest.raises(BadConfig, match="NAME is not set"):
            secret("$NAME", environment)
    assert missing("plain", {}) is None
    assert missing("$NAME", {"NAME": "value"}) is None
    assert "NAME is not set" in (missing("$NAME", {}) or "")


def test_key_with_a_dollar_sign_is_not_displayed() -> None:
    with pytest.raises(BadConfig) as caught:
        secret(f"${CANARY}", {})
    assert "canary" not in caught.value.message
    assert "canary" not in (missing(f"${CANARY}", {}) or "")


@pytest.fixture
def keyring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package `keyring` as the extra would install it, with one entry."""
    (tmp_path / "keyring.py").write_text(
        "def get_password(service, user):\n"
        "    if service == 'locked':\n"
        f"        raise RuntimeError('{CANARY}')\n"
        f"    return '{CANARY}' if (service, user) == ('kedge', 'me/openai') else None\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "keyring", raising=False)
    yield
    sys.modules.pop("keyring", None)


@pytest.mark.usefixtures("keyring")
def test_key_from_the_keyring() -> None:
    assert secret("keyring:kedge/me/openai", {}) == CANARY
    assert missing("keyring:kedge/me/openai", {}) is None
    with pytest.raises(BadConfig, match="add it with `keyring set kedge you`"):
        secret("keyring:kedge/you", {})
    with pytest.raises(BadConfig, match="RuntimeError. Is it unlocked") as caught:
        secret("keyring:locked/me", {})
    assert "canary" not in caught.value.message
    with pytest.raises(BadConfig, match="keyring:SERVICE/USER"):
        secret("keyring:kedge", {})


def test_missing_keyring_extra_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "keyring", None)  # what the import system takes for: not installed
    with pytest.raises(BadConfig, match=r"install kedge\[keyring\]"):
        secret("keyring:kedge/me", {})
    assert "kedge[keyring]" in (missing("keyring:kedge/me", {}) or "")
