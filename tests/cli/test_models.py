"""`kedge models`: the models that a Run can use."""

from __future__ import annotations

import json
from typing import Any

from tests.client.process import Home

CANARY = "secret-canary-key"


def listed(home: Home) -> dict[str, dict[str, Any]]:
    done = home.kedge("models", "--json")
    assert done.code == 0, done.err
    assert CANARY not in done.out + done.err
    return {line["model"]: line for line in json.loads(done.out)}


def test_configured_and_built_in_models_are_listed(home: Home) -> None:
    found = listed(home)
    assert list(found) == ["local/fake-large", "kedge/offline"]
    assert (found["local/fake-large"]["is_large"], found["local/fake-large"]["is_small"]) == (True, True)
    assert not (home.data / "server.log").exists()


def test_model_settings_are_shown(home: Home) -> None:
    home.config.write_text(
        'model = "local/large"\nsmall_model = "local/small"\n'
        f'[providers.local]\nbase_url = "http://127.0.0.1:1"\napi_key = "{CANARY}"\n'
        'models = [{ id = "large", context_window = 200000, input_price = 3, output_price = 15, images = true },'
        ' { id = "small" }]\n'
    )
    found = listed(home)
    assert (found["local/large"]["context_window"], found["local/large"]["output_price"]) == (200000, 15.0)
    rows = [line.split() for line in home.kedge("models").out.splitlines()]
    assert rows[0] == ["MODEL", "CONTEXT", "IN", "OUT", "IMAGES", "USE"]
    assert rows[1] == ["local/large", "200k", "3.00", "15.00", "yes", "large"]
    assert rows[2] == ["local/small", "-", "-", "-", "-", "small"]


def test_key_in_the_environment_adds_the_vendors_models(home: Home) -> None:
    home.env["ANTHROPIC_API_KEY"] = CANARY
    home.env["KEDGE_MODEL"] = "anthropic/claude-of-tomorrow"
    found = listed(home)
    known = [line for name, line in found.items() if name.startswith("anthropic/claude") and line["input_price"]]
    assert known
    assert found["anthropic/claude-of-tomorrow"]["is_large"], "a model need not be known to be chosen"


def test_unusable_model_is_reported(home: Home) -> None:
    home.config.write_text('model = "unknown/x"\n')
    done = home.kedge("models")
    assert (done.code, "provider unknown is not configured" in done.err, done.err.count("\n")) == (0, True, 1)
    home.config.unlink()
    assert listed(home)["kedge/offline"]["is_large"]
    assert "Examples:" in home.kedge("models", "--help").out
