"""Limits and errors of model calls."""

from __future__ import annotations

from pathlib import Path

import pytest

from kedge.agent import model_call as model_call
from kedge.agent.model_choice import new_client
from kedge.core.transcript import Message
from kedge.engine.draft import Draft
from kedge.errors import BadConfig
from kedge.testing.scripted import Say, ScriptedModel, Think
from tests.engine.rig import rig


@pytest.mark.found(
    "attack round 2: the event loop",
    "a model that switched between text and reasoning with every letter made messages of a hundred thousand parts, "
    "each of which took half a second to encode; a message has at most a thousand parts",
)
async def test_message_with_too_many_parts_is_stopped(tmp_path: Path) -> None:
    acts = [act for _ in range(model_call.PARTS_MAX // 2 + 1) for act in (Say("a"), Think("b"))]
    model = ScriptedModel(acts)
    async with rig(tmp_path, model) as r:
        ended = await r.end(await r.submit())
        assert ended.outcome == "failed"
        assert ended.error == "The model began more than 1000 parts and was stopped."


def test_opaque_provider_data_counts_as_text() -> None:
    draft = Draft(Message("m", "s", "assistant", (), 0, 0))
    draft.add("reasoning", "", "x" * 1000)
    assert draft.chars == 1000


@pytest.mark.parametrize(
    "setting",
    [
        ("ALL_PROXY", "socks://127.0.0.1:1"),
        ("HTTPS_PROXY", "http://user:p#ss@host:3128"),
        ("SSL_CERT_FILE", "/nowhere/certificates"),
    ],
)
def test_unusable_proxy_settings_are_reported_in_one_line(
    setting: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(*setting)
    with pytest.raises(BadConfig, match="check ALL_PROXY, HTTP_PROXY, HTTPS_PROXY and SSL_CERT_FILE") as caught:
        new_client(True)
    assert "ss@" not in caught.value.message
