"""One reply of the scripted endpoint: it does what the script says, in the voice of a provider."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Final, Protocol

from kedge.testing.script import Directive, Plan
from kedge.testing.voices import Spent, Voice

#: Words are gathered up to this many bytes before they are written, while there is no pause between them.
WRITE_BYTES: Final = 64 * 1024

_STREAM_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)
_GARBAGE: Final = b"data: this is {no event of any format\n\n"


class Line(Protocol):
    """The way back to the client."""

    async def write(self, data: bytes) -> None: ...

    def reply(self, status: int, body: object, extra: str = "") -> None: ...

    def hang_up(self) -> None: ...


class Stage(Protocol):
    """What the replies of one endpoint share."""

    async def wait_released(self, key: str) -> None: ...

    def works_now(self, directive: Directive, times: int | None) -> bool: ...


class Answer:
    """One reply, word by word."""

    def __init__(self, stage: Stage, line: Line, voice: Voice, plan: Plan, asked: str, messages_count: int) -> None:
        self._stage = stage
        self._line = line
        self._voice = voice
        self._directives = list(plan.of_this_step())
        #: The text of the last user message.
        self._asked = asked
        self._messages_count = messages_count
        self._has_head = False
        self._started = False
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._pause_s = 0.0
        #: Text and reasoning are two texts.
        self._words: Counter[Callable[[str], bytes]] = Counter()
        self._calls = 0
        self._finish = ""

    async def run(self) -> None:
        for directive in self._directives:
            if await self._obey(directive):
                return
        self._put(self._voice.end(self._finish, self._calls > 0, self._spent()))
        await self._flush(last=True)

    async def _obey(self, directive: Directive) -> bool:
        """True when the reply is over by this."""
        match directive.verb:
            case "say":
                await self._say(self._voice.say, directive.rest.split())
            case "think":
                await self._say(self._voice.think, directive.rest.split())
            case "redact":
                self._put(self._voice.redact(directive.rest))
            case "words":
                await self._say(self._voice.say, [f"w{count + 1}" for count in range(directive.numbers(1)[0])])
            case "echo":
                await self._say(self._voice.say, f"You said: {self._asked}".split(" "))
            case "tool":
                name, _, given = directive.rest.partition(" ")
                self._put(self._voice.call(self._calls, name, given))
                self._calls += 1
            case "finish":
                self._finish = directive.rest
            case "fail" | "flaky" | "cut" | "garbage":
                return await self._break(directive)
            case _:
                await self._wait(directive)
        return False

    async def _wait(self, directive: Directive) -> None:
        match directive.verb:
            case "pause":
                self._pause_s = directive.numbers(1)[0] / 1000
            case "wait":
                await self._flush()
                await asyncio.sleep(directive.numbers(1)[0] / 1000)
            case "hold":
                await self._flush()
                await self._stage.wait_released(directive.rest)
            case "head":
                await self._flush(head=True)
            case "hang":
                await self._flush()
                await asyncio.Event().wait()

    async def _break(self, directive: Directive) -> bool:
        """True when it breaks, and not when it has done so often enough."""
        words = {"fail": 1, "flaky": 2}.get(directive.verb, 0)
        options, text = directive.options(words)
        times = directive.numbers(1)[0] if directive.verb == "flaky" else options.get("times")
        if not self._stage.works_now(directive, None if times is None else int(times)):
            return False
        if directive.verb == "cut":
            await self._flush()
            self._line.hang_up()
        elif directive.verb == "garbage":
            self._put(_GARBAGE)
            await self._flush(last=True)
        else:
            await self._fail(directive.numbers(words)[-1], options, text or "scripted failure")
        return True

    async def _fail(self, status: int, options: dict[str, str], text: str) -> None:
        code = options.get("code", "")
        if self._has_head or self._waiting:
            self._put(self._voice.break_off(status, text, code))
            await self._flush(last=True)
            return
        wait_s = options.get("retry-after", "1" if status == 429 else "")
        extra = f"Retry-After: {wait_s}\r\n" if wait_s else ""
        self._line.reply(status, self._voice.error(status, text, code), extra)

    async def _say(self, voice: Callable[[str], bytes], words: list[str]) -> None:
        for word in words:
            if self._pause_s:
                await asyncio.sleep(self._pause_s)
            self._put(voice(f" {word}" if self._words[voice] else word))
            self._words[voice] += 1
            if self._pause_s or self._waiting_bytes >= WRITE_BYTES:
                await self._flush()

    def _spent(self) -> Spent:
        """What the script says, wherever it stands in this Step, since one format tells a part of it first."""
        given = next((found for found in reversed(self._directives) if found.verb == "usage"), None)
        if given is None:
            return Spent(self._messages_count, self._words.total())
        return Spent(*given.numbers(min(4, len(given.rest.split()))))

    def _put(self, event: bytes) -> None:
        if not self._started:
            self._started = True
            self._put(self._voice.start(self._spent()))
        if event:
            self._waiting.append(event)
            self._waiting_bytes += len(event)

    async def _flush(self, last: bool = False, head: bool = False) -> None:
        """Write what waits, as one piece of a chunked body; before it the head, unless it is written already."""
        data = b"".join(self._waiting)
        self._waiting.clear()
        self._waiting_bytes = 0
        pieces: list[bytes] = []
        if (data or head) and not self._has_head:
            self._has_head = True
            pieces.append(_STREAM_HEAD)
        if data:
            pieces += [b"%x\r\n" % len(data), data, b"\r\n"]
        if last:
            pieces.append(b"0\r\n\r\n")
        await self._line.write(b"".join(pieces))
