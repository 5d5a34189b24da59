"""The baseline for Steps and tool calls: a minimal agent loop inside the benchmark process.

It calls the model, runs the tool calls with a plain function, sends the results, and repeats until the model stops. It
has no session, store, readers, approvals or checks. Each request carries the full history, as the server's requests do,
so the model's own time is part of both figures and grows with the history in both.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from bench.load import WAIT_S, Body, Json, request
from bench.server import Address

#: Runs a tool call: its name and input to its result.
Tool = Callable[[str, Json], str]


@dataclass
class BareRun:
    #: When each Step had all its results. `time.perf_counter()`
    step_ends: list[float] = field(default_factory=list)
    #: The prompt, calls, results and answer, as a later request carries them.
    messages: list[Json] = field(default_factory=list)
    began: float = field(default_factory=time.perf_counter)
    ended: float = 0.0


async def bare_run(model: Address, script: str, tool: Tool, history: list[Json]) -> BareRun:
    run = BareRun()
    messages = [*history, {"role": "user", "content": script}]
    while calls := await _ask(model, messages):
        messages.append({"role": "assistant", "content": None, "tool_calls": calls})
        for call in calls:
            result = tool(call["function"]["name"], msgspec.json.decode(call["function"]["arguments"]))
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
        run.step_ends.append(time.perf_counter())
    run.ended = time.perf_counter()
    run.messages = [*messages[len(history) :], {"role": "assistant", "content": "done"}]
    return run


async def _ask(model: Address, messages: list[Json]) -> list[Json]:
    """Send one request and return the tool calls of the reply."""
    calls: dict[int, Json] = {}
    ended = asyncio.Event()

    def receive(data: bytes) -> None:
        for event in data.split(b"\n\n"):
            if event.startswith(b"data: {"):
                for choice in msgspec.json.decode(event[6:])["choices"]:
                    _add(calls, choice["delta"].get("tool_calls", ()))
            elif event == b"data: [DONE]":
                ended.set()

    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_connection(lambda: Body(receive, ended.set), model.host, model.port)
    try:
        body = {"model": "fake-large", "stream": True, "messages": messages}
        transport.write(request(model, "POST", "/v1/chat/completions", body))
        await asyncio.wait_for(ended.wait(), WAIT_S)
    finally:
        transport.abort()
    return [calls[index] for index in sorted(calls)]


def _add(calls: dict[int, Json], pieces: list[Any]) -> None:
    """Add streamed pieces of calls. The input of one call arrives in several pieces."""
    for piece in pieces:
        if "id" in piece:
            calls[piece["index"]] = {name: piece[name] for name in ("id", "type", "function")}
        else:
            calls[piece["index"]]["function"]["arguments"] += piece["function"]["arguments"]
