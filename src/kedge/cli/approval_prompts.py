"""Approvals and questions of a Run, put to the person at the terminal: one at a time, whoever answers first.

The terminal is read as it delivers lines, beside everything else, so that a question can close by itself: when another
client has answered it, or when the Run was told to stop. Nothing typed before a question was shown counts as an answer
to it.
"""

from __future__ import annotations

import asyncio
import os
import termios
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

from msgspec import convert

from kedge.cli.asks import approval_lines, question_lines, response_to
from kedge.cli.terminal import StatusLine, folded, is_terminal, size
from kedge.client.client import Client
from kedge.client.event_stream import StreamEvent
from kedge.client.safe_text import visible_line
from kedge.core.approvals import Answer
from kedge.core.untrusted_text import visible
from kedge.errors import AskIsOver, AskNotFound, KedgeError, Unavailable, Unreachable
from kedge.wire.models import PermissionRequest, QuestionBatch, QuestionBody, QuestionResponse, Resolved

#: One line of a terminal; the kernel's own limit is 4096. Bytes.
READ_BYTES = 4096
#: Between two attempts to bring an answer to a server that is away. Seconds.
AGAIN_S = 0.25
#: What stands on the screen below something that is to be approved: its end, the keys, the place for the answer. Lines.
BESIDE_LINES = 4

_REQUESTS = {"permission_request": PermissionRequest, "question_batch_request": QuestionBatch}
_NOTIFICATIONS = ("permission_notification", "question_batch_notification")

_SAID = {
    "allow": "allowed",
    "allow_session": "allowed for this session",
    "allow_always": "allowed always",
    "deny": "denied",
    "cancelled": "left unanswered",
}

Asked = PermissionRequest | QuestionBatch


def can_ask() -> bool:
    """Whether somebody sits here who sees a question and can answer it."""
    return is_terminal(0) and is_terminal(2)


class Gone(Exception):
    """The terminal was closed: nobody is there any more, and nothing is answered in their name."""


class Keyboard:
    """Lines typed at the terminal, without keeping anything else waiting."""

    def __init__(self) -> None:
        self._typed = b""

    def forget(self) -> None:
        """What was typed until now was not meant for what is asked next."""
        self._typed = b""
        with suppress(termios.error, OSError):
            termios.tcflush(0, termios.TCIFLUSH)

    async def line(self) -> str | None:
        """The next line without its end; None for an end of input (Ctrl-D)."""
        while b"\n" not in self._typed:
            piece = await self._read()
            if not piece:
                self._typed = b""
                return None
            self._typed += piece
        line, _, self._typed = self._typed.partition(b"\n")
        return line.decode("utf-8", "replace")

    async def _read(self) -> bytes:
        loop, ready = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(0, ready.set)
        try:
            await ready.wait()
        finally:
            loop.remove_reader(0)
        try:
            return os.read(0, READ_BYTES)
        except BlockingIOError:  # whoever shares the terminal has made it non-blocking
            return await self._read()
        except OSError as error:
            raise Gone from error


class ApprovalPrompts:
    """What a Run asks, in order. `see` is told of each event of the Run; `at_work` asks as long as its body runs."""

    def __init__(self, client: Client, workspace_id: Callable[[], str], status: StatusLine) -> None:
        self._client = client
        self._workspace_id = workspace_id
        self._status = status
        self._keyboard = Keyboard()
        #: Not yet settled, each with what tells that it is: set by the notification.
        self._open: dict[str, _Open] = {}
        #: The one on the screen.
        self._shown: _Open | None = None
        self._more = asyncio.Event()

    def on_event(self, event: StreamEvent) -> None:
        if event.type in _REQUESTS and event.change != "deleted":
            asked = convert(event.payload, _REQUESTS[event.type])
            if asked.id not in self._open:  # it comes again after a reconnect
                self._open[asked.id] = _Open(asked)
                self._more.set()
        elif event.type in (*_NOTIFICATIONS, *_REQUESTS) and (found := self._open.pop(event.payload["id"], None)):
            found.close(event.payload)
            if found is self._shown:
                # At once, before whatever the events behind this one bring to the screen.
                self._status.ask("")
                self._status.say(f"({found.why})")

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        working = asyncio.get_running_loop().create_task(self._work())
        try:
            yield
        finally:
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
            self._status.ask("")

    async def _work(self) -> None:
        with suppress(Gone):
            while True:
                waiting = next((one for one in self._open.values() if not one.settled), None)
                if waiting is None:
                    self._more.clear()
                    await self._more.wait()
                    continue
                try:
                    self._shown = waiting
                    waiting.settled = await self._put(waiting)
                finally:
                    self._shown = None
                    self._status.ask("")

    async def _put(self, one: _Open) -> bool:
        """Whether there is an answer, or none is needed any more. Else it is to be put again."""
        asked = one.asked
        putting = self._approval(asked) if isinstance(asked, PermissionRequest) else self._questions(asked)
        task = asyncio.get_running_loop().create_task(putting)
        closed = asyncio.get_running_loop().create_task(one.closed.wait())
        try:
            await asyncio.wait({task, closed}, return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() else True
        finally:
            for begun in (task, closed):
                begun.cancel()
            await asyncio.gather(task, closed, return_exceptions=True)

    # --- approvals -----------------------------------------------------------------------------------------------

    async def _approval(self, asked: PermissionRequest) -> bool:
        screen = size(2)
        lines = [piece for line in approval_lines(asked) for piece in folded(line, screen.columns)]
        self._status.say("", *lines)
        if screen.lines and len(lines) > screen.lines - BESIDE_LINES:
            self._status.say(f"({len(lines):,} lines, more than the screen shows: scroll up to see all of them)")
        choices = _choices(asked)
        while True:
            said = await self._line("  ".join(choices.values()) + "\nanswer and Enter> ")
            letter = "n" if said is None else said.strip().lower()
            if letter in choices:
                break
            self._status.say(f"(answer with one of {', '.join(choices)}, and Enter)")
        message = ""
        if letter == "m":
            message = (await self._line("why not> ") or "").strip()
        action, client, where = _ACTIONS[letter], self._client, self._workspace_id
        return await self._send(
            action, lambda: client.answer_permission(where(), asked.id, action, message, asked.binding)
        )

    # --- questions -----------------------------------------------------------------------------------------------

    async def _questions(self, asked: QuestionBatch) -> bool:
        client, where = self._client, self._workspace_id
        responses: list[QuestionResponse] = []
        for question in asked.questions:
            response = await self._question(question)
            if response is None:
                responses.clear()
                break
            responses.append(response)
        if any(response.selected_ids or response.fill_in_text for response in responses):
            return await self._send("answered", lambda: client.answer_questions(where(), asked.id, responses))
        return await self._send("cancelled", lambda: client.cancel_questions(where(), asked.id))

    async def _question(self, question: QuestionBody) -> QuestionResponse | None:
        """None: they would rather not be asked."""
        self._status.say("", "The model asks:", *question_lines(question))
        numbers = "numbers" if question.multiple else "a number"
        how = f"{numbers} or your own words" if question.options else "your answer"
        while True:
            said = await self._line(f"{how}; Enter alone skips> ")
            if said is None:
                return None
            try:
                return response_to(question, said)
            except ValueError as error:
                self._status.say(f"({error})")

    # --- both ----------------------------------------------------------------------------------------------------

    async def _line(self, prompt: str) -> str | None:
        self._keyboard.forget()
        self._status.ask(prompt)
        said = await self._keyboard.line()
        self._status.answered(with_enter=said is not None)
        return said

    async def _send(self, action: str, send: Callable[[], Awaitable[Resolved]]) -> bool:
        """Bring the answer to the server, again if it is away for a moment: the first answer wins, so that is safe.
        False: the server does not take it."""
        self._shown = None  # from here on its end is our own doing
        while True:
            try:
                resolved = await send()
            except (Unreachable, Unavailable):
                await asyncio.sleep(AGAIN_S)  # the work gives up in its own time, and this with it
                continue
            except (AskIsOver, AskNotFound):
                self._status.say("(too late: the run was told to stop)")
            except KedgeError as error:
                self._status.note(f"kedge: {error.message}", always=True)
                return False
            else:
                if not resolved.resolved and resolved.answered != action:
                    self._status.say(f"(somebody else was first: {_words(resolved.answered)})")
            return True


class _Open:
    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self.closed = asyncio.Event()
        #: Answered by us, as far as we are concerned.
        self.settled = False
        self.why = "no longer asked"

    def close(self, told: dict[str, object]) -> None:
        if not told.get("withdrawn") and "answered_by" in told:
            answer = str(told.get("answer") or ("answered" if told.get("answered") else "cancelled"))
            self.why = f"answered elsewhere: {_words(answer)}"
        self.closed.set()


def _words(answer: str) -> str:
    return _SAID.get(answer) or visible_line(answer) or "answered"


_ACTIONS: dict[str, Answer] = {"y": "allow", "s": "allow_session", "a": "allow_always", "n": "deny", "m": "deny"}


def _choices(asked: PermissionRequest) -> dict[str, str]:
    rule = visible(asked.grant, keep="")  # whole: it is what they allow
    standing = {"s": f"[s] this session: {rule}", "a": f"[a] always: {rule}"} if rule else {}
    return {"y": "[y] once", **standing, "n": "[n] no", "m": "[m] no, and say why"}
