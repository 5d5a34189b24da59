"""One reply of the scripted endpoint: the script, written in the format of a provider."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Final, Protocol

from kedge.testing.reply_formats import ReplyFormat, ReplyUsage
from kedge.testing.script import Directive, ScriptPlan

#: Words without a pause between them are buffered up to this size. Bytes.
WRITE_BYTES: Final = 64 * 1024

_STREAM_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)
_GARBAGE: Final = b"data: this is {no event of any format\n\n"


class ReplyConnection(Protocol):
    """The connection to the client."""

    async def write(self, data: bytes) -> None: ...

    def reply(self, status: int, body: object, extra: str = "") -> None: ...

    def hang_up(self) -> None: ...


class ReplyContext(Protocol):
    """The state that the replies of one endpoint share."""

    async def wait_released(self, key: str) -> None: ...

    def takes_effect(self, directive: Directive, times: int | None) -> bool: ...


class ScriptedReply:
    """One reply, streamed word by word."""

    def __init__(
        self,
        context: ReplyContext,
        connection: ReplyConnection,
        format: ReplyFormat,  # noqa: A002
        plan: ScriptPlan,
        user_text: str,
        messages_count: int,
    ) -> None:
        self._context = context
        self._connection = connection
        self._format = format
        self._directives = list(plan.of_this_step())
        #: The text of the last user message.
        self._user_text = user_text
        self._messages_count = messages_count
        self._has_head = False
        self._started = False
        self._buffer: list[bytes] = []
        self._buffer_bytes = 0
        self._pause_s = 0.0
        #: Words so far, of text and of reasoning.
        self._words: Counter[Callable[[str], bytes]] = Counter()
        self._calls = 0
        self._finish = ""

    async def run(self) -> None:
        for directive in self._directives:
            if await self._carry_out(directive):
                return
        self._put(self._format.end(self._finish, self._calls > 0, self._usage()))
        await self._flush(last=True)

    async def _carry_out(self, directive: Directive) -> bool:
        """Carry out a directive. Return True if it ends the reply."""
        match directive.verb:
            case "say":
                await self._say(self._format.say, directive.rest.split(" "))
            case "think":
                await self._say(self._format.think, directive.rest.split())
            case "redact":
                self._put(self._format.redact(directive.rest))
            case "words":
                await self._say(self._format.say, [f"w{count + 1}" for count in range(directive.numbers(1)[0])])
            case "echo":
                await self._say(self._format.say, f"You said: {self._user_text}".split(" "))
            case "tool":
                name, _, arguments = directive.rest.partition(" ")
                self._put(self._format.call(self._calls, name, arguments))
                self._calls += 1
            case "finish":
                self._finish = directive.rest
            case "fail" | "flaky" | "cut" | "garbage":
                return await self._fail_as_scripted(directive)
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
                await self._context.wait_released(directive.rest)
            case "head":
                await self._flush(head=True)
            case "hang":
                await self._flush()
                await asyncio.Event().wait()

    async def _fail_as_scripted(self, directive: Directive) -> bool:
        """Fail as the directive says. Return False if it has already failed the given number of times."""
        words = {"fail": 1, "flaky": 2}.get(directive.verb, 0)
        options, text = directive.options(words)
        times = directive.numbers(1)[0] if directive.verb == "flaky" else options.get("times")
        if not self._context.takes_effect(directive, None if times is None else int(times)):
            return False
        if directive.verb == "cut":
            await self._flush()
            self._connection.hang_up()
        elif directive.verb == "garbage":
            self._put(_GARBAGE)
            await self._flush(last=True)
        else:
            await self._fail(directive.numbers(words)[-1], options, text or "scripted failure")
        return True

    async def _fail(self, status: int, options: dict[str, str], text: str) -> None:
        code = options.get("code", "")
        if self._has_head or self._buffer:
            self._put(self._format.break_off(status, text, code))
            await self._flush(last=True)
            return
        wait_s = options.get("retry-after", "1" if status == 429 else "")
        extra = f"Retry-After: {wait_s}\r\n" if wait_s else ""
        self._connection.reply(status, self._format.error(status, text, code), extra)

    async def _say(self, encode: Callable[[str], bytes], words: list[str]) -> None:
        for word in words:
            if self._pause_s:
                await asyncio.sleep(self._pause_s)
            self._put(encode(f" {word}" if self._words[encode] else word))
            self._words[encode] += 1
            if self._pause_s or self._buffer_bytes >= WRITE_BYTES:
                await self._flush()

    def _usage(self) -> ReplyUsage:
        """Return the usage in the script, wherever it occurs in this Step: one format sends a part of it first."""
        usage = next((directive for directive in reversed(self._directives) if directive.verb == "usage"), None)
        if usage is None:
            return ReplyUsage(self._messages_count, self._words.total())
        return ReplyUsage(*usage.numbers(min(4, len(usage.rest.split()))))

    def _put(self, event: bytes) -> None:
        if not self._started:
            self._started = True
            self._put(self._format.start(self._usage()))
        if event:
            self._buffer.append(event)
            self._buffer_bytes += len(event)

    async def _flush(self, last: bool = False, head: bool = False) -> None:
        """Write the buffer as one chunk of the body, after the head of the response."""
        data = b"".join(self._buffer)
        self._buffer.clear()
        self._buffer_bytes = 0
        pieces: list[bytes] = []
        if (data or head) and not self._has_head:
            self._has_head = True
            pieces.append(_STREAM_HEAD)
        if data:
            pieces += [b"%x\r\n" % len(data), data, b"\r\n"]
        if last:
            pieces.append(b"0\r\n\r\n")
        await self._connection.write(b"".join(pieces))
