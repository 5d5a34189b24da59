"""Configuration: layers, checks, and what a repository may not do."""

from __future__ import annotations

from pathlib import Path

import pytest

from kedge.engine.config import Config, Provider, load_user, load_workspace, repository_files, secret
from kedge.engine.models import Models
from kedge.errors import BadConfig


def test_without_a_file_everything_has_its_default(tmp_path: Path) -> None:
    config = load_user(tmp_path / "none.toml")
    assert config == Config()
    assert config.runs.queue_runs_max == 100


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("model = ", "not valid TOML"),
        ("model = 3", "Expected `str`"),
        ("modle = 'x'", "unknown field `modle`"),
        ("[runs]\nwhen_busy = 'later'", "Invalid enum value"),
        ("[runs]\nqueue_runs_max = 0", "at least 1"),
        ("[providers.x]\ntype = 'soap'", "Invalid enum value"),
        ("\xff", "not valid TOML"),
    ],
)
def test_a_mistake_is_one_line_that_names_the_file(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "config.toml"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(BadConfig) as caught:
        load_user(path)
    assert says in caught.value.message
    assert str(path) in caught.value.message
    assert "\n" not in caught.value.message


def test_a_repository_chooses_but_cannot_set_endpoints_or_keys(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    inner = tmp_path / "a" / "b"
    (inner / ".kedge").mkdir(parents=True)
    (tmp_path / "kedge.toml").write_text(
        'model = "local/x"\n[runs]\nwhen_busy = "queue"\n[providers.local]\nbase_url = "http://evil.example"\n'
    )
    (inner / ".kedge" / "config.toml").write_text("[runs]\nqueue_runs_max = 7\n[server]\nheartbeat_s = 1.0\n")
    (tmp_path.parent / "kedge.toml").write_text('model = "above/the-root"\n')
    user = Config(model="local/own", providers={"local": Provider(base_url="http://127.0.0.1:1/v1", api_key="k")})
    config = load_workspace(user, inner)
    assert config.model == "local/x"
    assert (config.runs.when_busy, config.runs.queue_runs_max) == ("queue", 7)
    assert config.providers == user.providers
    assert config.server == user.server
    assert repository_files(inner) == [tmp_path / "kedge.toml", inner / ".kedge" / "config.toml"]


@pytest.mark.parametrize("text", ['runs = "often"\n', "[model]\na = 1\n"])
def test_a_repository_that_is_wrong_in_shape_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "kedge.toml").write_text(text)
    with pytest.raises(BadConfig, match="kedge.toml"):
        load_workspace(Config(), tmp_path)


def test_secrets_are_never_shown() -> None:
    config = Config(providers={"p": Provider(base_url="http://x", api_key="sk-canary"), "q": Provider(api_key="$NAME")})
    shown = config.shown()
    assert "canary" not in str(shown)
    assert shown["providers"]["p"]["api_key"] == "********"


def test_a_key_is_a_literal_or_the_name_of_a_variable() -> None:
    assert secret("plain", {}) == "plain"
    assert secret("$NAME", {"NAME": "value"}) == "value"
    with pytest.raises(BadConfig, match="NAME is not set"):
        secret("$NAME", {})


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("nobody/x", "no provider nobody"),
        ("local/", "provider/model"),
        ("local/other", "lists one"),
        ("bare/x", "no base_url"),
    ],
)
def test_a_model_that_is_not_there_is_refused_with_the_ways_out(name: str, says: str) -> None:
    from kedge.engine.config import ModelEntry

    config = Config(
        providers={"local": Provider(base_url="http://127.0.0.1:1", models=[ModelEntry("one")]), "bare": Provider()}
    )
    with pytest.raises(BadConfig, match=says):
        Models().choose(config, name)


async def test_the_configured_model_is_taken_and_the_built_in_one_without_any() -> None:
    models = Models()
    assert models.choose(Config(), None).name == "offline"
    config = Config(model="local/one", providers={"local": Provider(base_url="http://127.0.0.1:1")})
    chosen = models.choose(config, None)
    assert (chosen.provider, chosen.name) == ("local", "one")
    assert models.choose(config, "kedge/offline").name == "offline"
    await models.close()
