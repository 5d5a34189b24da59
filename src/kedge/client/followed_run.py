"""One prompt followed from its submit to its `run_complete`, for `kedge run` and the synchronous client.

It subscribes before it submits, so that no event of the Run is missed. Only the Run's own `run_complete` ends it: the
events of other Runs of the session are skipped.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from types import TracebackType
from typing import Any, Self

import msgspec

from kedge.client.client import Client
from kedge.client.event_stream import StreamEvent
from kedge.client.retry import GIVE_UP_S, retry_if_refused, retry_while_away
from kedge.wire.models import CancelReply, PermissionRequest, QuestionBatch, Receipt, RunBody, RunComplete, SubmitPrompt


class FollowedRun:
    """`async with` subscribes, `submit` submits the prompt, and iteration yields the Run's own events up to its end."""

    def __init__(
        self, client: Client, workspace_id: str, prompt: SubmitPrompt, *, give_up_s: float = GIVE_UP_S
    ) -> None:
        self.run_id = prompt.run_id
        self.receipt: Receipt | None = None
        #: The payload of its `run_complete`, once received.
        self.complete: RunComplete | None = None
        self._client = client
        self._prompt = prompt
        self._give_up_s = give_up_s
        self._stream = client.events(workspace_id, session_id=prompt.session_id, deltas=True, give_up_s=give_up_s)
        #: Runs whose messages belong to this one: itself, and the one it was folded into.
        self._writers = {prompt.run_id}
        self._messages: set[str] = set()
        #: Pending approvals and questions of this Run: id -> the event type that closes them.
        self._pending: dict[str, str] = {}

    async def __aenter__(self) -> Self:
        await retry_if_refused(self._stream.connect, self._client.restart)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self._stream.aclose()

    @property
    def workspace_id(self) -> str:
        return self._stream.workspace_id

    async def submit(self) -> Receipt:
        """Submit the prompt; it is durable when this returns. Retries are safe: the run_id is the idempotency key."""
        assert self.run_id, "a submit that may be retried needs a run_id"
        submit = partial(self._client.submit, self.workspace_id, self._prompt)
        # A server that was stopped since the stream was opened is started again: no other command may do it.
        repeated = partial(retry_if_refused, submit, self._client.restart)
        self.receipt = await retry_while_away(repeated, self._give_up_s)
        return self._accepted(self.receipt)

    def _accepted(self, receipt: Receipt) -> Receipt:
        if self._stream.position is None:
            # A stream that is lost before its first event then resumes before the first event of this Run.
            self._stream.position = receipt.position - 1
        return receipt

    async def cancel(self) -> CancelReply:
        return await self._client.cancel_run(self.workspace_id, self.run_id)

    async def __aiter__(self) -> AsyncIterator[StreamEvent]:
        async for event in self._stream:
            events = [event]
            if event.type == "gap":
                events += await retry_while_away(self._reread, self._give_up_s)
            for own in filter(self._is_own, events):
                if own.type == "run_complete":
                    self.complete = msgspec.convert(own.payload, RunComplete)
                self._track_pending(own)
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
                    return payload.get("id") in self._messages  # `deleted` has no run_id
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

    def _track_pending(self, event: StreamEvent) -> None:
        if event.type in _CLOSED_BY and event.change != "deleted":
            self._pending[event.payload["id"]] = _CLOSED_BY[event.type]
        elif event.type in _CLOSED_BY or event.type in _CLOSED_BY.values():
            self._pending.pop(event.payload["id"], None)

    async def _reread(self) -> list[StreamEvent]:
        """Read the state and return it as the events that would have reported it."""
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
        events += await self._reread_pending()
        if run.state == "ended":
            events.append(StreamEvent("run_complete", "created", _completed(run)))
        return events

    async def _reread_pending(self) -> list[StreamEvent]:
        """Return the pending approvals and questions, and the end of those that are no longer pending."""
        asked: list[tuple[str, PermissionRequest | QuestionBatch]] = [
            *(("permission_request", ask) for ask in await self._client.permissions(self.workspace_id)),
            *(("question_batch_request", ask) for ask in await self._client.questions(self.workspace_id)),
        ]
        pending = {ask.id for _, ask in asked}
        closed = [
            StreamEvent(kind, "created", {"id": ask_id, "run_id": self.run_id, "withdrawn": True})
            for ask_id, kind in self._pending.items()
            if ask_id not in pending
        ]
        return closed + [StreamEvent(kind, "created", _builtins(ask)) for kind, ask in asked]


class FollowedSummary(FollowedRun):
    """A Run that summarizes a session. The server assigns its id; its earlier events are still in the stream."""

    def __init__(self, client: Client, workspace_id: str, session_id: str, *, give_up_s: float = GIVE_UP_S) -> None:
        super().__init__(client, workspace_id, SubmitPrompt(session_id=session_id), give_up_s=give_up_s)

    async def submit(self) -> Receipt:
        """Request the summary. Not retried: a second request would start another Run."""
        self.receipt = await self._client.summarize(self.workspace_id, self._prompt.session_id)
        self.run_id = self.receipt.run_id
        self._writers = {self.run_id}
        return self._accepted(self.receipt)


#: Event type of a request -> event type that closes it.
_CLOSED_BY = {
    "permission_request": "permission_notification",
    "question_batch_request": "question_batch_notification",
}


def _completed(run: RunBody) -> dict[str, Any]:
    """Return the payload of the Run's `run_complete`: the fields that it shares with RunBody."""
    values = {"message_id": "", "text": "", "reason": "", **_builtins(run)}
    return {name: values[name] for name in RunComplete.__struct_fields__ if name in values}


def _builtins(body: msgspec.Struct) -> dict[str, Any]:
    result: dict[str, Any] = msgspec.to_builtins(body)
    return result
