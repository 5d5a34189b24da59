"""The server of the demo model. The tests that ask it need its two packages, which `scripts/demo` installs."""

from __future__ import annotations

import asyncio
import runpy
import signal
import subprocess
import sys
import tomllib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kedge.config.model_names import resolve_model
from kedge.config.schema import Config
from kedge.core.transcript import Binary, Reasoning, ToolCall, ToolResult
from kedge.errors import ModelFailed
from kedge.llm.base import ModelRequest, TextDelta, ToolSpec
from kedge.llm.openai import OpenAIModel
from kedge.llm.openai_request import request_body
from kedge.llm.transport import new_client
from tests.llm.support import asking, end_of, message, parts_of, text_of

SCRIPT = Path(__file__).parents[2] / "scripts" / "demo_server.py"
DEMO = runpy.run_path(str(SCRIPT))
OUTPUT_TOKENS_MAX, PROMPT_BYTES_MAX, SYSTEM = DEMO["OUTPUT_TOKENS_MAX"], DEMO["PROMPT_BYTES_MAX"], DEMO["SYSTEM"]
IS_INSTALLED = DEMO["installed_file"]() is not None


def fitted(request: ModelRequest) -> Any:
    return DEMO["fitted"](request_body(request, "demo/smollm2"))


def texts(body: Any) -> list[str]:
    assert body["messages"][0]["role"] == "system"
    return [sent["content"] for sent in body["messages"][1:]]


def test_printed_configuration_is_valid() -> None:
    _, _, rest = DEMO["USAGE"].format(port=1234).partition("\n\n")
    config = msgspec.convert(tomllib.loads(rest.partition("\n\nThen")[0]), Config)
    model = resolve_model(config, "demo/smollm2", {"OPENAI_API_KEY": "not for this endpoint"})
    assert (model.model, model.provider.base_url) == ("smollm2", "http://127.0.0.1:1234/v1")
    assert model.key({"OPENAI_API_KEY": "not for this endpoint"}) is None


@pytest.mark.skipif(IS_INSTALLED, reason="it is installed")
def test_missing_packages_are_reported() -> None:
    ended = subprocess.run([sys.executable, "-I", SCRIPT, "0"], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "scripts/demo --install" in ended.stderr
    assert ended.stderr.count("\n") == 1


class TestFitting:
    def test_only_text_is_sent(self) -> None:
        body = fitted(
            asking(
                message("user", "look", Binary("a.png", "image/png", "AAAA")),
                message("assistant", Reasoning("hm"), "reading", ToolCall("c", "read", "{}")),
                message("tool", ToolResult("c", "read", "content")),
                "and now?",
                tools=(ToolSpec("read", "", "{}"),),
            )
        )
        assert texts(body) == ["look", "reading", "and now?"]
        assert set(body) == {"model", "messages", "max_tokens", "stream", "stream_options"}
        assert all(set(sent) == {"role", "content"} for sent in body["messages"])

    def test_newest_messages_are_kept(self) -> None:
        sent = texts(fitted(asking(*(f"{number} {'x' * 500}" for number in range(20)))))
        numbers = [int(text.split()[0]) for text in sent]
        assert numbers == list(range(20 - len(numbers), 20))
        assert 1 < len(numbers) < 20
        assert sum(len(text) for text in sent) <= PROMPT_BYTES_MAX

    @pytest.mark.parametrize("letter", ["x", "ä", "語", "😀"])
    def test_long_prompt_is_cut(self, letter: str) -> None:
        [text] = texts(fitted(asking("before", "begin" + letter * PROMPT_BYTES_MAX)))
        assert text.startswith(f"begin{letter}")
        room = PROMPT_BYTES_MAX - DEMO["MESSAGE_TOKENS"] - len(SYSTEM)
        assert room - 4 < len(text.encode()) <= room

    def test_prompt_without_text_is_refused(self) -> None:
        with pytest.raises(ValueError, match="accepts only text"):
            fitted(asking(message("user", Binary("a.png", "image/png", "AAAA"))))

    @pytest.mark.parametrize(
        ("system", "sent"),
        [("Be brief.", "Be brief."), ("x" * (DEMO["SYSTEM_BYTES_MAX"] + 1), SYSTEM), ("", SYSTEM)],
    )
    def test_long_or_missing_system_prompt_is_replaced(self, system: str, sent: str) -> None:
        assert fitted(asking("x", system=system))["messages"][0] == {"role": "system", "content": sent}

    @pytest.mark.parametrize(("limit", "sent"), [(None, OUTPUT_TOKENS_MAX), (10, 10), (99_999, OUTPUT_TOKENS_MAX)])
    def test_output_is_limited(self, limit: int | None, sent: int) -> None:
        assert fitted(asking("x", output_tokens_max=limit))["max_tokens"] == sent


@pytest.fixture
async def model() -> AsyncIterator[OpenAIModel]:
    """The served model; afterwards Ctrl-C ends its process."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-I", str(SCRIPT), "0", stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        assert process.stdout is not None
        usage = (await process.stdout.readuntil(b"Ctrl-C")).decode()
        _, _, rest = usage.partition('base_url = "')
        async with new_client() as client:
            yield OpenAIModel("demo", "smollm2", rest.partition('"')[0], None, client)
        process.send_signal(signal.SIGINT)
        assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.mark.long
@pytest.mark.skipif(not IS_INSTALLED, reason="needs scripts/demo")
class TestServing:
    async def test_it_answers(self, model: OpenAIModel) -> None:
        request = asking("What is the capital of France?", output_tokens_max=40, tools=(ToolSpec("read", "", "{}"),))
        parts = await parts_of(model, request)
        assert "Paris" in text_of(parts)
        assert end_of(parts).reason in ("end_turn", "max_tokens")
        assert end_of(parts).usage.output_tokens > 0

    async def test_too_long_conversation_is_answered(self, model: OpenAIModel) -> None:
        long = "語" * PROMPT_BYTES_MAX  # three tokens each
        parts = await parts_of(model, asking(long, message("assistant", long), long, output_tokens_max=5))
        assert text_of(parts)

    async def test_prompt_without_text_is_refused(self, model: OpenAIModel) -> None:
        with pytest.raises(ModelFailed, match="accepts only text"):
            await parts_of(model, asking(message("user", Binary("a.png", "image/png", "AAAA"))))

    async def test_cancel_spares_the_server(self, model: OpenAIModel) -> None:
        async def first_word() -> str:
            async with model.stream(asking("Tell a long story.")) as parts:
                async for part in parts:
                    assert isinstance(part, TextDelta)
                    return part.text
            raise AssertionError("it answered nothing")

        assert all(await asyncio.gather(first_word(), first_word(), first_word()))
        assert text_of(await parts_of(model, asking("Hi", output_tokens_max=3)))
