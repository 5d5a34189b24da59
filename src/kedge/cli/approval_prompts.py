"""Approvals and questions of a Run, answered on the terminal: one at a time.

Input is read in the event loop, so that a prompt can close early: when another client answers, or when the Run is
cancelled. Input typed before a prompt was shown is discarded.
"""

from __future__ import annotations

import asyncio
import os
import termios
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

from msgspec import convert

from kedge.cli.terminal import StatusLine, folded, is_terminal, size
from kedge.client.client import Client
from kedge.client.event_stream import StreamEvent
from kedge.client.retry import retry_while_away
from kedge.client.view.ask_text import answer_label, approval_lines, question_lines, response_to
from kedge.client.view.author_text import by_author
from kedge.core.approvals import BY_RULE, Answer
from kedge.core.untrusted_text import visible
from kedge.errors import AskNotFound, AskWithdrawn, KedgeError
from kedge.wire.models import PermissionRequest, QuestionBatch, QuestionBody, QuestionResponse, Resolved

#: One line of a terminal; the kernel's limit is 4096. Bytes.
READ_BYTES = 4096
#: Screen lines below an approval: the end of its text, the keys and the input. Lines.
PROMPT_LINES = 4

_REQUESTS = {"permission_request": PermissionRequest, "question_batch_request": QuestionBatch}
_NOTIFICATIONS = ("permission_notification", "question_batch_notification")


def can_prompt() -> bool:
    """Return whether a user at this terminal can see a prompt and answer it."""
    return is_terminal(0) and is_terminal(2)


class TerminalClosed(Exception):
    """The terminal was closed. Nothing more is answered."""


class Keyboard:
    """Lines typed on the terminal, read without blocking the event loop."""

    def __init__(self) -> None:
        self._typed = b""

    def discard(self) -> None:
        """Discard input that was typed before the next prompt."""
        self._typed = b""
        with suppress(termios.error, OSError):
            termios.tcflush(0, termios.TCIFLUSH)

    async def line(self) -> str | None:
        """Return the next line without its line feed; None at end of input (Ctrl-D)."""
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
        except BlockingIOError:  # another process on this terminal has made it non-blocking
            return await self._read()
        except OSError as error:
            raise TerminalClosed from error


class ApprovalPrompts:
    """The approvals and questions of a Run, in order. `on_event` collects them; `running` prompts during its body."""

    def __init__(self, client: Client, workspace_id: Callable[[], str], status: StatusLine) -> None:
        self._client = client
        self._workspace_id = workspace_id
        self._status = status
        self._keyboard = Keyboard()
        self._pending: dict[str, _Pending] = {}
        self._current: _Pending | None = None
        self._added = asyncio.Event()

    def on_event(self, event: StreamEvent) -> None:
        if event.type in _REQUESTS and event.change != "deleted":
            request = convert(event.payload, _REQUESTS[event.type])
            if request.id not in self._pending:  # repeated after a reconnect
                self._pending[request.id] = _Pending(request)
                self._added.set()
        elif event.type in (*_NOTIFICATIONS, *_REQUESTS) and (item := self._pending.pop(event.payload["id"], None)):
            item.close(event.payload)
            if item is self._current:
                # At once: the next events may print something.
                self._status.ask("")
                self._status.show(f"({item.why_closed})")

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.get_running_loop().create_task(self._prompt_all())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            self._status.ask("")

    async def _prompt_all(self) -> None:
        with suppress(TerminalClosed):
            while True:
                item = next((item for item in self._pending.values() if not item.answered), None)
                if item is None:
                    self._added.clear()
                    await self._added.wait()
                    continue
                try:
                    self._current = item
                    item.answered = await self._prompt(item)
                finally:
                    self._current = None
                    self._status.ask("")

    async def _prompt(self, item: _Pending) -> bool:
        """Prompt until the request is answered or closed. False if the server refused the answer."""
        request = item.request
        prompt = self._approval(request) if isinstance(request, PermissionRequest) else self._questions(request)
        task = asyncio.get_running_loop().create_task(prompt)
        closed = asyncio.get_running_loop().create_task(item.closed.wait())
        try:
            await asyncio.wait({task, closed}, return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() else True
        finally:
            for started in (task, closed):
                started.cancel()
            await asyncio.gather(task, closed, return_exceptions=True)

    async def _approval(self, request: PermissionRequest) -> bool:
        screen = size(2)
        lines = [piece for line in approval_lines(request) for piece in folded(line, screen.columns)]
        self._status.show("", *lines)
        if screen.lines and len(lines) > screen.lines - PROMPT_LINES:
            self._status.show(f"({len(lines):,} lines do not fit on the screen; scroll up to see all of them)")
        choices = _choices(request)
        while True:
            text = await self._line("  ".join(choices.values()) + "\nanswer> ")
            letter = "n" if text is None else text.strip().lower()
            if letter in choices:
                break
            self._status.show(f"(type one of {', '.join(choices)}, then Enter)")
        message = ""
        if letter == "m":
            message = (await self._line("reason> ") or "").strip()
        action, client, workspace_id = _ACTIONS[letter], self._client, self._workspace_id
        rules = _wider(request) if letter == "w" else []
        return await self._send(
            action,
            lambda: client.answer_permission(workspace_id(), request.id, action, message, request.binding, rules),
        )

    async def _questions(self, batch: QuestionBatch) -> bool:
        client, workspace_id = self._client, self._workspace_id
        responses: list[QuestionResponse] = []
        for question in batch.questions:
            response = await self._question(question)
            if response is None:
                responses.clear()
                break
            responses.append(response)
        if any(response.selected_ids or response.fill_in_text for response in responses):
            return await self._send("answered", lambda: client.answer_questions(workspace_id(), batch.id, responses))
        return await self._send("cancelled", lambda: client.cancel_questions(workspace_id(), batch.id))

    async def _question(self, question: QuestionBody) -> QuestionResponse | None:
        """Return the answer, or None if the user declines (Ctrl-D)."""
        self._status.show("", "The model asks:", *question_lines(question))
        numbers = "numbers" if question.multiple else "a number"
        expected = f"{numbers} or your own answer" if question.options else "your answer"
        while True:
            text = await self._line(f"{expected} (Enter to skip)> ")
            if text is None:
                return None
            try:
                return response_to(question, text)
            except ValueError as error:
                self._status.show(f"({error})")

    async def _line(self, prompt: str) -> str | None:
        self._keyboard.discard()
        self._status.ask(prompt)
        text = await self._keyboard.line()
        self._status.answered(with_enter=text is not None)
        return text

    async def _send(self, action: str, send: Callable[[], Awaitable[Resolved]]) -> bool:
        """Send the answer. Retries are safe, since the first answer wins. False if the server refused it."""
        self._current = None  # its closing event is then caused by this answer
        try:
            # No time limit: `follow` gives up on its own, and cancels this task.
            resolved = await retry_while_away(send)
        except (AskWithdrawn, AskNotFound):
            self._status.show("(too late: the run is being cancelled)")
        except KedgeError as error:
            self._status.note(f"kedge: {error.message}", always=True)
            return False
        else:
            if not resolved.resolved and resolved.answered != action:
                self._status.show(f"(another client answered first: {answer_label(resolved.answered)})")
        return True


class _Pending:
    def __init__(self, request: PermissionRequest | QuestionBatch) -> None:
        self.request = request
        self.closed = asyncio.Event()
        #: Answered here.
        self.answered = False
        self.why_closed = "withdrawn"

    def close(self, payload: dict[str, object]) -> None:
        if not payload.get("withdrawn") and "answered_by" in payload:
            answer = str(payload.get("answer") or ("answered" if payload.get("answered") else "cancelled"))
            by_client = by_author(str(payload.get("author") or "")) or " by another client"
            by = " by a rule or the mode" if payload["answered_by"] == BY_RULE else by_client
            self.why_closed = f"answered{by}: {answer_label(answer)}"
        self.closed.set()


_ACTIONS: dict[str, Answer] = {
    "y": "allow",
    "s": "allow_session",
    "a": "allow_always",
    "w": "allow_always",
    "n": "deny",
    "m": "deny",
}


def _choices(request: PermissionRequest) -> dict[str, str]:
    rule = visible(request.grant, keep="")  # in full: it is what the user allows
    standing = {"s": f"[s] this session: {rule}", "a": f"[a] always: {rule}"} if rule else {}
    wider = {"w": f"[w] always: {visible(', '.join(offer), keep='')}"} if (offer := _wider(request)) else {}
    return {"y": "[y] once", **standing, **wider, "n": "[n] no", "m": "[m] no, with a reason"}


def _wider(request: PermissionRequest) -> list[str]:
    """Return the rules of the widest offer, if it differs from `grant`."""
    return request.offers[-1] if len(request.offers) > bool(request.grant) else []
