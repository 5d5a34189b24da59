"""A model inside the process with scripted replies: no network, no clock, deterministic.

    model = ScriptedModel("Hello there.", [Say("let me look"), Call("view", {"path": "x"})], "It says x.")

Each request takes the next reply. A reply is a text or a list of acts. A function from the request to a reply answers
any number of requests:

    model = ScriptedModel(lambda request: f"You said: {request.messages[-1].text}")

    model = ScriptedModel([Say("one two"), Hold("go"), Say("three")])
    await model.wait_requests(1)
    model.release("go")

`requests` holds all requests; `streams_open` and `streams_open_max` count open streams.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from kedge.core.records import Usage
from kedge.core.transcript import FinishReason, ToolCall
from kedge.errors import ModelFailed
from kedge.llm.base import ModelEnd, ModelPart, ModelRequest, ReasoningDelta, TextDelta
from kedge.testing.signals import Keys, Signal


@dataclass(frozen=True, slots=True)
class Say:
    """Stream text, one word per Delta."""

    text: str


@dataclass(frozen=True, slots=True)
class Think:
    """Stream reasoning, one word per Delta."""

    text: str


@dataclass(frozen=True, slots=True)
class Hold:
    """Wait until the test calls `release(key)`."""

    key: str


@dataclass(frozen=True, slots=True)
class Call:
    """Call a tool. `input` is encoded as JSON; a string is passed on unchanged, valid or not."""

    name: str
    input: dict[str, Any] | str = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Fail:
    """Fail with ModelFailed."""

    message: str = "scripted failure"


@dataclass(frozen=True, slots=True)
class Linger:
    """Ignore cancellation, as some libraries do: a reply that is closed early ends only after `release(key)`."""

    key: str


@dataclass(frozen=True, slots=True)
class EndReply:
    """End with this reason and usage instead of end_turn (or tool_use, if tools were called)."""

    reason: FinishReason | None = None
    usage: Usage = Usage()


Act = Say | Think | Hold | Call | Fail | Linger | EndReply
Reply = str | Sequence[Act]


@dataclass(eq=False, slots=True)
class ScriptedRequest:
    """One request and the end of its stream. `closed` is set when the stream is closed."""

    #: Counts from 1.
    number: int
    request: ModelRequest
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    #: Closed before the end of the script (ModelEnd or ModelFailed).
    closed_early: bool = True


class ScriptedModel:
    def __init__(
        self, *replies: Reply | Callable[[ModelRequest], Reply], provider: str = "scripted", name: str = "scripted"
    ) -> None:
        self.provider = provider
        self.name = name
        self._replies = deque(replies)
        self._keys = Keys()
        self._signal = Signal()
        self.requests: list[ScriptedRequest] = []
        self.streams_open = 0
        self.streams_open_max = 0

    def add(self, *replies: Reply | Callable[[ModelRequest], Reply]) -> None:
        """Append replies."""
        self._replies.extend(replies)

    def release(self, key: str) -> None:
        """Release the Hold or Linger of this key, now and later."""
        self._keys.release(key)

    async def wait_requests(self, count: int) -> None:
        """Wait until so many requests have arrived in total."""
        await self._signal.wait_until(lambda: len(self.requests) >= count)

    async def wait_open(self, count: int) -> None:
        """Wait until exactly so many streams are open."""
        await self._signal.wait_until(lambda: self.streams_open == count)

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[ModelPart]]:
        record = ScriptedRequest(len(self.requests) + 1, request)
        self.requests.append(record)
        self.streams_open += 1
        self.streams_open_max = max(self.streams_open_max, self.streams_open)
        self._signal.notify()
        reply_stream = _ReplyStream(self._next_reply(request), record, self._keys)
        try:
            async with aclosing(reply_stream.parts()) as parts:
                yield parts
        finally:
            if record.closed_early:
                await reply_stream.linger()
            self.streams_open -= 1
            record.closed.set()
            self._signal.notify()

    def _next_reply(self, request: ModelRequest) -> Sequence[Act]:
        if not self._replies:
            count = len(self.requests)
            return [Fail(f"request {count} has no scripted reply; the script has {count - 1}")]
        reply = self._replies[0]
        if callable(reply):
            reply = reply(request)
        else:
            self._replies.popleft()
        return [Say(reply)] if isinstance(reply, str) else reply


class _ReplyStream:
    """One reply while it streams."""

    def __init__(self, acts: Sequence[Act], record: ScriptedRequest, keys: Keys) -> None:
        self._acts = acts
        self._record = record
        self._keys = keys
        self._lingering: list[str] = []

    async def parts(self) -> AsyncGenerator[ModelPart, None]:
        calls: list[ToolCall] = []
        end = EndReply()
        for act in self._acts:
            match act:
                case Say(text=text):
                    for word in _words(text):
                        yield TextDelta(word)
                        await asyncio.sleep(0)  # other tasks get a turn, as with a network
                case Think(text=text):
                    for word in _words(text):
                        yield ReasoningDelta(word)
                        await asyncio.sleep(0)
                case Hold(key=key):
                    await self._keys.wait(key)
                case Call(name=name, input=arguments):
                    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
                    calls.append(ToolCall(f"call_{self._record.number}_{len(calls)}", name, text))
                case Fail(message=message):
                    self._record.closed_early = False
                    raise ModelFailed(message)
                case Linger(key=key):
                    self._lingering.append(key)
                case EndReply():
                    end = act
        self._record.closed_early = False
        yield ModelEnd(end.reason or ("tool_use" if calls else "end_turn"), tuple(calls), end.usage)

    async def linger(self) -> None:
        for key in self._lingering:
            while not self._keys.released(key):
                # On purpose: like a library that ignores cancellation. The first cancel takes effect afterwards.
                with suppress(asyncio.CancelledError):
                    await self._keys.wait(key)


def _words(text: str) -> Iterator[str]:
    """Split a text into words with the white space before them: joined, they are the text."""
    return (match.group() for match in re.finditer(r"\s*\S+|\s+$", text))
