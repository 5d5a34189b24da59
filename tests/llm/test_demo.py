"""The demo model. The tests that ask it need its two packages, which `scripts/demo` installs."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx2
import pytest

from kedge.core.transcript import Binary, Message, Reasoning, ShellCommand, ToolCall, ToolResult
from kedge.errors import ModelFailed
from kedge.llm import demo
from kedge.llm.base import ModelRequest, TextDelta, ToolSpec
from kedge.llm.demo import (
    MESSAGE_TOKENS,
    NOT_INSTALLED,
    OUTPUT_TOKENS_MAX,
    PROMPT_BYTES_MAX,
    SYSTEM,
    SYSTEM_BYTES_MAX,
    DemoModel,
    fitted,
    installed_file,
)
from kedge.llm.transport import new_client
from tests.llm.support import asking, end_of, message, parts_of, text_of

IS_INSTALLED = installed_file() is not None
SCRIPT = Path(demo.__file__).with_name("demo_server.py")


@pytest.fixture
async def model() -> AsyncIterator[DemoModel]:
    async with new_client() as client:
        model = DemoModel(lambda: client)
        yield model
        await model.close()


@pytest.mark.skipif(IS_INSTALLED, reason="it is installed")
async def test_what_to_do_is_told_when_it_is_not_installed(model: DemoModel) -> None:
    for _ in range(2):
        with pytest.raises(ModelFailed) as failed:
            await parts_of(model, asking("Say hello"))
        assert failed.value.message == NOT_INSTALLED
        assert not failed.value.retryable
    assert "scripts/demo" in NOT_INSTALLED
    assert "\n" not in NOT_INSTALLED


def texts(request: ModelRequest) -> list[str]:
    return [sent.text for sent in request.messages]


class TestFitting:
    def test_only_words_are_sent(self) -> None:
        given: list[Message | str] = [
            message("user", "look", Binary("a.png", "image/png", "AAAA")),
            message("assistant", Reasoning("hm"), "reading", ToolCall("c", "read", "{}")),
            message("tool", ToolResult("c", "read", "content")),
            message("user", ShellCommand("ls", "a", 0)),
            "and now?",
        ]
        request = fitted(asking(*given, tools=(ToolSpec("read", "", "{}"),), thinking_tokens=100))
        assert texts(request) == ["look", "reading", "and now?"]
        assert all(len(sent.parts) == 1 for sent in request.messages)
        assert request.tools == ()
        assert request.thinking_tokens is None

    def test_the_newest_messages_are_kept(self) -> None:
        request = fitted(asking(*(f"{number} {'x' * 500}" for number in range(20))))
        kept = [int(text.split()[0]) for text in texts(request)]
        assert kept == list(range(20 - len(kept), 20))
        assert 1 < len(kept) < 20
        assert sum(len(text) for text in texts(request)) <= PROMPT_BYTES_MAX

    @pytest.mark.parametrize("letter", ["x", "ä", "語", "😀"])
    def test_a_prompt_that_is_too_long_is_sent_as_far_as_it_fits(self, letter: str) -> None:
        [text] = texts(fitted(asking("before", "begin" + letter * PROMPT_BYTES_MAX)))
        assert text.startswith(f"begin{letter}")
        room = PROMPT_BYTES_MAX - MESSAGE_TOKENS - len(SYSTEM)
        assert room - 4 < len(text.encode()) <= room

    def test_a_prompt_without_words_is_refused(self) -> None:
        with pytest.raises(ModelFailed, match="accepts only text"):
            fitted(asking(message("user", Binary("a.png", "image/png", "AAAA"))))

    def test_a_short_system_prompt_is_kept_and_a_long_one_left_out(self) -> None:
        assert fitted(asking("x", system="Be brief.")).system == "Be brief."
        assert fitted(asking("x", system="x" * (SYSTEM_BYTES_MAX + 1))).system == SYSTEM
        assert fitted(asking("x")).system == SYSTEM

    @pytest.mark.parametrize(("wanted", "given"), [(None, OUTPUT_TOKENS_MAX), (10, 10), (99_999, OUTPUT_TOKENS_MAX)])
    def test_it_does_not_write_for_ever(self, wanted: int | None, given: int) -> None:
        assert fitted(asking("x", output_tokens_max=wanted)).output_tokens_max == given


async def start(*arguments: str) -> asyncio.subprocess.Process:
    pipe = subprocess.PIPE
    return await asyncio.create_subprocess_exec(
        sys.executable, "-I", str(SCRIPT), *arguments, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL
    )


async def test_a_process_that_cannot_start_says_why_and_ends(tmp_path: Path) -> None:
    """Whether it lacks its package or its file: one line, and no address."""
    process = await start(str(tmp_path / "none.gguf"), "2048")
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"key\n")
    said = await process.stdout.read()  # to its end, though its input has not ended
    assert said.startswith(b"failed: ")
    assert said.count(b"\n") <= 1
    assert await process.wait() == 0


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0)


@pytest.mark.long
@pytest.mark.skipif(not IS_INSTALLED, reason="needs scripts/demo")
class TestAsked:
    async def test_it_answers(self, model: DemoModel) -> None:
        parts = await parts_of(model, asking("What is the capital of France?", output_tokens_max=40))
        assert "Paris" in text_of(parts)
        assert end_of(parts).reason in ("end_turn", "max_tokens")
        assert end_of(parts).usage.output_tokens > 0

    async def test_a_conversation_that_is_too_long_is_still_answered(self, model: DemoModel) -> None:
        long = "語" * PROMPT_BYTES_MAX  # three tokens each
        parts = await parts_of(model, asking(long, message("assistant", long), long, output_tokens_max=5))
        assert text_of(parts)

    async def test_one_process_serves_all_and_a_cancel_spares_it(self, model: DemoModel) -> None:
        async def first_word() -> int | None:
            async with model.stream(asking("Tell a long story.")) as parts:
                async for part in parts:
                    assert isinstance(part, TextDelta)
                    return model.pid
            raise AssertionError("it said nothing")

        pids = set(await asyncio.gather(first_word(), first_word(), first_word()))
        assert len(pids) == 1
        assert pids == {model.pid}

    async def test_a_process_that_died_is_started_again(self, model: DemoModel) -> None:
        await parts_of(model, asking("Hi", output_tokens_max=1))
        before = model.pid
        assert before is not None
        os.kill(before, 9)
        await until(lambda: model.pid is None)
        await parts_of(model, asking("Hi", output_tokens_max=1))
        assert model.pid not in (None, before)

    async def test_closing_ends_the_process(self, model: DemoModel) -> None:
        await parts_of(model, asking("Hi", output_tokens_max=1))
        pid = model.pid
        assert pid is not None
        await model.close()
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        assert model.pid is None

    async def test_a_start_that_is_cancelled_leaves_no_process(self, model: DemoModel) -> None:
        asked = asyncio.create_task(parts_of(model, asking("Hi")))
        await until(lambda: model.pid is not None)
        pid = model.pid
        assert pid is not None
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        assert model.pid is None
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)

    async def test_the_key_is_asked_for(self) -> None:
        process = await start(str(installed_file()), "512")
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"the-key\n")
        address = (await process.stdout.readline()).decode().strip()
        async with httpx2.AsyncClient(trust_env=False, timeout=30) as client:
            body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
            answers = [
                (await client.post(f"{address}/v1/chat/completions", json=body, headers=headers)).status_code
                for headers in ({}, {"Authorization": "Bearer other"}, {"Authorization": "Bearer the-key"})
            ]
        assert answers == [401, 401, 200]
        # The parent goes: all that the process can see of it is the end of its input.
        process.stdin.close()
        assert await process.wait() == 0
