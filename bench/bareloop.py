"""The yardstick for Steps and tool calls: the least that any agent has to do, in the bench's own process.

It asks the model, makes the calls with a plain function, sends their results, and so on until the model stops: no
session, no store, no readers, no approvals, no checks. Each request carries the whole history, as the server's do; so
the model's own time is in both, and grows with the history in both.
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

#: What a call comes to, from its name and its input.
Make = Callable[[str, Json], str]


@dataclass
class BareRun:
    #: When the results of each Step were there. `time.perf_counter()`
    stepped: list[float] = field(default_factory=list)
    #: Prompt, calls, results and the answer, as a later request would carry them.
    messages: list[Json] = field(default_factory=list)
    began: float = field(default_factory=time.perf_counter)
    ended: float = 0.0


async def bare_run(model: Address, script: str, make: Make, history: list[Json]) -> BareRun:
    run = BareRun()
    messages = [*history, {"role": "user", "content": script}]
    while calls := await _ask(model, messages):
        messages.append({"role": "assistant", "content": None, "tool_calls": calls})
        for call in calls:
            made = make(call["function"]["name"], msgspec.json.decode(call["function"]["arguments"]))
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": made})
        run.stepped.append(time.perf_counter())
    run.ended = time.perf_counter()
    run.messages = [*messages[len(history) :], {"role": "assistant", "content": "done"}]
    return run


async def _ask(model: Address, messages: list[Json]) -> list[Json]:
    """The calls that the model wants to be made."""
    calls: dict[int, Json] = {}
    ended = asyncio.Event()

    def took(data: bytes) -> None:
        for event in data.split(b"\n\n"):
            if event.startswith(b"data: {"):
                for choice in msgspec.json.decode(event[6:])["choices"]:
                    _add(calls, choice["delta"].get("tool_calls", ()))
            elif event == b"data: [DONE]":
                ended.set()

    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_connection(lambda: Body(took, ended.set), model.host, model.port)
    try:
        body = {"model": "fake-large", "stream": True, "messages": messages}
        transport.write(request(model, "POST", "/v1/chat/completions", body))
        await asyncio.wait_for(ended.wait(), WAIT_S)
    finally:
        transport.abort()
    return [calls[index] for index in sorted(calls)]


def _add(calls: dict[int, Json], pieces: list[Any]) -> None:
    """The input of a call comes in pieces."""
    for piece in pieces:
        if "id" in piece:
            calls[piece["index"]] = {name: piece[name] for name in ("id", "type", "function")}
        else:
            calls[piece["index"]]["function"]["arguments"] += piece["function"]["arguments"]
