"""One prompt from its submit to its own end: what `kedge run` and the facade follow.

The order matters: subscribe, then submit, so that no event of the Run can come before somebody listens. The Run ends
here with its own `run_complete` and with nothing else: other Runs of the session, their errors and their ends pass by.
"""

from __future__ import annotations

import time
from asyncio import sleep
from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec

from kedge.client.client import Client
from kedge.client.event_stream import GIVE_UP_S, PAUSE_S_MAX, PAUSE_S_MIN, StreamEvent
from kedge.errors import Unavailable, Unreachable
from kedge.waiting import backoff_s
from kedge.wire.models import (
    CancelReply,
    PermissionRequest,
    QuestionBatch,
    Receipt,
    RunBody,
    RunComplete,
    SubmitPrompt,
)

T = TypeVar("T")


class FollowedRun:
    """`async with` subscribes; `submit` has the prompt accepted; iterating gives the Run's own events up to its end."""

    def __init__(
        self, client: Client, workspace_id: str, prompt: SubmitPrompt, *, give_up_s: float = GIVE_UP_S
    ) -> None:
        self.run_id = prompt.run_id
        self.receipt: Receipt | None = None
        #: The payload of its `run_complete`, once that has come.
        self.complete: RunComplete | None = None
        self._client = client
        self._prompt = prompt
        self._give_up_s = give_up_s
        self._stream = client.events(workspace_id, session_id=prompt.session_id, deltas=True, give_up_s=give_up_s)
        #: Runs whose messages belong to this one: itself, and the one it was folded into.
        self._writers = {prompt.run_id}
        self._messages: set[str] = set()
        #: Approvals and questions of this Run that nobody has answered yet: id -> the type of what closes them.
        self._asked: dict[str, str] = {}

    async def __aenter__(self) -> Self:
        await self._stream.connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self._stream.aclose()

    @property
    def workspace_id(self) -> str:
        return self._stream.workspace_id

    async def submit(self) -> Receipt:
        """Accepted, durably. A lost answer is asked for again: the run_id makes that the same Run."""
        assert self.run_id, "a Run whose submit may be repeated has an id from the beginning"
        self.receipt = await self._insist(lambda: self._client.submit(self.workspace_id, self._prompt))
        return self._accepted(self.receipt)

    async def _insist(self, call: Callable[[], Awaitable[T]]) -> T:
        """Ask again while the server is away, for as long as a lost stream is given."""
        deadline = time.monotonic() + self._give_up_s
        pauses = backoff_s(PAUSE_S_MIN, PAUSE_S_MAX)
        while True:
            pause = next(pauses)
            try:
                return await call()
            except (Unreachable, Unavailable):
                if time.monotonic() + pause > deadline:
                    raise
            await sleep(pause)

    def _accepted(self, receipt: Receipt) -> Receipt:
        if self._stream.position is None:
            # A stream lost before its first event then still resumes before everything this Run did.
            self._stream.position = receipt.position - 1
        return receipt

    async def cancel(self) -> CancelReply:
        return await self._client.cancel_run(self.workspace_id, self.run_id)

    async def __aiter__(self) -> AsyncIterator[StreamEvent]:
        async for event in self._stream:
            found = [event] if event.type != "gap" else [event, *await self._insist(self._reread)]
            for own in filter(self._is_own, found):
                if own.type == "run_complete":
                    self.complete = msgspec.convert(own.payload, RunComplete)
                self._keep_asked(own)
                yield own
                if self.complete:
                    return

    def _is_own(self, event: StreamEvent) -> bool:
        payload = event.payload
        match event.type:
            case "delta":
                return payload.get("message_id") in self._messages
            case "message":
                if payload.get("run_id") not in self._writers:
                    return payload.get("id") in self._messages  # `deleted` names no Run
                self._messages.add(payload["id"])
                return True
            case "session":
                return payload.get("id") == self._prompt.session_id
            case "run" | "run_complete" | "agent_event":
                if payload.get("run_id") != self.run_id:
                    return False
                if host := payload.get("folded_into"):
                    self._writers.add(host)
                return True
            case "permission_request" | "permission_notification" | "progress" | "file":
                return payload.get("run_id") in self._writers
            case "question_batch_request" | "question_batch_notification":
                return payload.get("run_id") in self._writers
            case _:
                return payload.get("run_id") in (None, self.run_id)

    def _keep_asked(self, event: StreamEvent) -> None:
        if event.type in _CLOSED_BY and event.change != "deleted":
            self._asked[event.payload["id"]] = _CLOSED_BY[event.type]
        elif event.type in _CLOSED_BY or event.type in _CLOSED_BY.values():
            self._asked.pop(event.payload["id"], None)

    async def _reread(self) -> list[StreamEvent]:
        """The state, as the events that would have told it."""
        run = await self._client.run(self.workspace_id, self.run_id)
        if run.folded_into:
            self._writers.add(run.folded_into)
        messages = self._client.all_messages(self.workspace_id, run.session_id)
        events = [
            StreamEvent("message", "updated", _builtins(message))
            async for message in messages
            if message.run_id in self._writers
        ]
        events.append(StreamEvent("run", "updated", _builtins(run)))
        events += await self._reread_asked()
        if run.state == "ended":
            events.append(StreamEvent("run_complete", "created", _builtins(_completed(run))))
        return events

    async def _reread_asked(self) -> list[StreamEvent]:
        """What waits for people now; and the end of what did, and does not any more."""
        asked: list[tuple[str, PermissionRequest | QuestionBatch]] = [
            *(("permission_request", ask) for ask in await self._client.permissions(self.workspace_id)),
            *(("question_batch_request", ask) for ask in await self._client.questions(self.workspace_id)),
        ]
        pending = {ask.id for _, ask in asked}
        closed = [
            StreamEvent(kind, "created", {"id": ask_id, "run_id": self.run_id, "withdrawn": True})
            for ask_id, kind in self._asked.items()
            if ask_id not in pending
        ]
        return closed + [StreamEvent(kind, "created", _builtins(ask)) for kind, ask in asked]


class FollowedSummary(FollowedRun):
    """A Run that summarizes a session. The server gives it its id; what it did before we know that is in the stream."""

    def __init__(self, client: Client, workspace_id: str, session_id: str, *, give_up_s: float = GIVE_UP_S) -> None:
        super().__init__(client, workspace_id, SubmitPrompt(session_id=session_id), give_up_s=give_up_s)

    async def submit(self) -> Receipt:
        """Accepted, durably. Not repeated: a second one would be another Run."""
        self.receipt = await self._client.summarize(self.workspace_id, self._prompt.session_id)
        self.run_id = self.receipt.run_id
        self._writers = {self.run_id}
        return self._accepted(self.receipt)


#: What people are asked by, and what tells that it is over.
_CLOSED_BY = {
    "permission_request": "permission_notification",
    "question_batch_request": "question_batch_notification",
}


def _completed(run: RunBody) -> RunComplete:
    return RunComplete(
        session_id=run.session_id,
        run_id=run.run_id,
        message_id=run.message_id or "",
        text=run.text or "",
        outcome=run.outcome or "interrupted",
        reason=run.reason or "",
        usage=run.usage,
        cleanup=run.cleanup,
        error=run.error,
        folded_into=run.folded_into,
    )


def _builtins(body: msgspec.Struct) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(body)
    return found
