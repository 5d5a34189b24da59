"""A model inside the process that does what the test wrote down: no network, no clock, the same every time.

    model = ScriptedModel("Hello there.", [Say("let me look"), Call("view", {"path": "x"})], "It says x.")

Each request takes the next reply. A reply is a text, or acts in order; a function from the request to a reply answers
any number of requests:

    model = ScriptedModel(lambda request: f"You said: {request.messages[-1].text}")

    model = ScriptedModel([Say("one two"), Hold("go"), Say("three")])
    await model.wait_requests(1)
    model.release("go")

`requests`, `streams_open` and `streams_open_max` tell what was asked and whether two streams were ever open at once.
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
from kedge.testing.waiting import Keys, Signal


@dataclass(frozen=True, slots=True)
class Say:
    """Text, one word per Delta."""

    text: str


@dataclass(frozen=True, slots=True)
class Think:
    """Reasoning, one word per Delta."""

    text: str


@dataclass(frozen=True, slots=True)
class Hold:
    """Wait until the test calls `release(key)`."""

    key: str


@dataclass(frozen=True, slots=True)
class Call:
    """Call a tool. `input` is encoded as JSON, unless it is a string: that is passed on as it stands, valid or not."""

    name: str
    input: dict[str, Any] | str = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Fail:
    """Fail as a provider does."""

    message: str = "the scripted model fails here"


@dataclass(frozen=True, slots=True)
class Linger:
    """From here on a reply that is left early does not close until the test calls `release(key)`, however often it is
    cancelled: what a library does that ignores cancellation."""

    key: str


@dataclass(frozen=True, slots=True)
class End:
    """End with this reason and usage instead of end_turn (or tool_use, if tools were called)."""

    reason: FinishReason | None = None
    usage: Usage = Usage()


Act = Say | Think | Hold | Call | Fail | Linger | End
Reply = str | Sequence[Act]


@dataclass(eq=False, slots=True)
class ScriptedRequest:
    """One request, and how its stream ended. `closed` is set once it is."""

    #: Counts from 1.
    number: int
    request: ModelRequest
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    #: Left before the end that the script gives: ModelEnd or ModelFailed.
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
        #: All of them: a test asks seldom enough to keep each.
        self.requests: list[ScriptedRequest] = []
        self.streams_open = 0
        self.streams_open_max = 0

    def add(self, *replies: Reply | Callable[[ModelRequest], Reply]) -> None:
        """More replies, behind those that wait."""
        self._replies.extend(replies)

    def release(self, key: str) -> None:
        """Open the Hold or Linger of this key, now and for good."""
        self._keys.release(key)

    async def wait_requests(self, count: int) -> None:
        """Until so many requests have come, ever."""
        await self._signal.wait_until(lambda: len(self.requests) >= count)

    async def wait_open(self, count: int) -> None:
        """Until exactly so many streams are open."""
        await self._signal.wait_until(lambda: self.streams_open == count)

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[ModelPart]]:
        asked = ScriptedRequest(len(self.requests) + 1, request)
        self.requests.append(asked)
        self.streams_open += 1
        self.streams_open_max = max(self.streams_open_max, self.streams_open)
        self._signal.notify()
        playing = _Playing(self._next_reply(request), asked, self._keys)
        try:
            async with aclosing(playing.parts()) as parts:
                yield parts
        finally:
            if asked.closed_early:
                await playing.linger()
            self.streams_open -= 1
            asked.closed.set()
            self._signal.notify()

    def _next_reply(self, request: ModelRequest) -> Sequence[Act]:
        if not self._replies:
            count = len(self.requests)
            return [Fail(f"the script of this model has {count - 1} replies, and this is request {count}")]
        reply = self._replies[0]
        if callable(reply):
            reply = reply(request)
        else:
            self._replies.popleft()
        return [Say(reply)] if isinstance(reply, str) else reply


class _Playing:
    """One reply while it is played."""

    def __init__(self, acts: Sequence[Act], asked: ScriptedRequest, keys: Keys) -> None:
        self._acts = acts
        self._asked = asked
        self._keys = keys
        self._lingering: list[str] = []

    async def parts(self) -> AsyncGenerator[ModelPart, None]:
        calls: list[ToolCall] = []
        end = End()
        for act in self._acts:
            match act:
                case Say(text=text):
                    for word in _words(text):
                        yield TextDelta(word)
                        await asyncio.sleep(0)  # others get their pass of the event loop, as with a network
                case Think(text=text):
                    for word in _words(text):
                        yield ReasoningDelta(word)
                        await asyncio.sleep(0)
                case Hold(key=key):
                    await self._keys.wait(key)
                case Call(name=name, input=given):
                    text = given if isinstance(given, str) else json.dumps(given)
                    calls.append(ToolCall(f"call_{self._asked.number}_{len(calls)}", name, text))
                case Fail(message=message):
                    self._asked.closed_early = False
                    raise ModelFailed(message)
                case Linger(key=key):
                    self._lingering.append(key)
                case End():
                    end = act
        self._asked.closed_early = False
        yield ModelEnd(end.reason or ("tool_use" if calls else "end_turn"), tuple(calls), end.usage)

    async def linger(self) -> None:
        for key in self._lingering:
            while not self._keys.released(key):
                # On purpose: this is the library that does not listen. The first cancel goes on when this is over.
                with suppress(asyncio.CancelledError):
                    await self._keys.wait(key)


def _words(text: str) -> Iterator[str]:
    """The words with the blanks before them: together they are the text again."""
    return (found.group() for found in re.finditer(r"\s*\S+|\s+$", text))
