"""The synchronous client, for scripts and notebooks.

    with kedge.connect() as k:
        session = k.session()
        print(session.run("What does this repository do?").text)

        for event in session.stream("And who wrote it?"):
            print(event.type)

        # `approve` decides on each tool call that needs an approval.
        session.run("Tidy up the tests", approve=lambda request: request.tool_name == "edit")

The requests run on a private event loop in another thread, so this also works in a program with its own event loop.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Self, TypedDict, TypeVar, Unpack

from msgspec import convert

from kedge.client.client import WAIT_S, Client, new_run_id
from kedge.client.event_stream import StreamEvent
from kedge.client.followed_run import FollowedRun
from kedge.client.local_server import find_or_start, open_workspace
from kedge.client.retry import GIVE_UP_S, retry_while_away
from kedge.core.approvals import Answer
from kedge.core.commands import WhenBusy
from kedge.core.events import Outcome
from kedge.core.modes import Mode
from kedge.core.records import Effort, OnApproval, OnDisconnect
from kedge.errors import AskWithdrawn, KedgeError
from kedge.struct_types import build_struct_types
from kedge.wire.models import (
    CancelReply,
    MessageBody,
    PermissionRequest,
    RunBody,
    SessionBody,
    ShellReply,
    SubmitPrompt,
    UsageBody,
)
from kedge.wire.reversal_models import RewindReply, RewindScope, UndoReply

T = TypeVar("T")


class RunSettings(TypedDict, total=False):
    """The options of a Run: fields of SubmitPrompt."""

    model: str | None
    #: How much the model thinks; empty: its default. Not set: the effort of the session.
    effort: Effort | None
    max_steps: int | None
    timeout_s: float | None
    budget_usd: float | None
    when_busy: WhenBusy | None
    on_disconnect: OnDisconnect
    #: "fail" ends the Run at a tool call that needs an approval, instead of waiting for an answer.
    on_approval: OnApproval
    #: Rules for this Run, such as "bash(git status)" or "edit(src/**)".
    allow: list[str]
    deny: list[str]
    #: The mode of the session while this Run is active. "yolo" runs every tool call that no deny rule forbids.
    mode: Mode | None


#: Called for each approval of a Run: True allows the call once, False denies it, an Answer is sent as it is.
Approve = Callable[[PermissionRequest], bool | Answer]


def connect(path: str | os.PathLike[str] = ".", host: str | None = None, token: str | None = None) -> SyncConnection:
    """Open a directory on the server at `host`, or on the user's own server, which is started if necessary."""
    return SyncConnection(os.path.abspath(path), host, token)


class SyncConnection:
    """A directory that is open on a server. Use it as a context manager, or call `close`."""

    def __init__(self, path: str, host: str | None, token: str | None) -> None:
        self.path = path
        self._may_start = host is None
        build_struct_types()  # a program may use several connections, each with its thread
        self._client = Client(host, token)
        self._client.restart = find_or_start if self._may_start else None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="kedge", daemon=True)
        self._thread.start()
        try:
            workspace = self._do(lambda: open_workspace(self._client, path, may_start=self._may_start))
        except BaseException:
            self._stop()
            raise
        self.workspace_id = workspace.id

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Release the workspace. Its Runs continue."""
        if self._loop.is_closed():
            return
        with suppress(KedgeError):  # the server may be gone, and the claim with it
            self._do(lambda: self._client.release_workspace(self.workspace_id))
        self._stop()

    def session(self, session_id: str | None = None, *, title: str = "") -> Session:
        """Return the session with this id, or create one."""
        if session_id is not None:
            return Session(self, self._retry(lambda: self._client.session(self.workspace_id, session_id)).id)
        return Session(
            self, self._retry(lambda: self._client.create_session(self.workspace_id, title), idempotent=False).id
        )

    def sessions(self) -> list[SessionBody]:
        return self._retry(lambda: self._client.sessions(self.workspace_id))

    def approvals(self) -> list[PermissionRequest]:
        """Return the pending approvals of all Runs in this workspace."""
        return self._retry(lambda: self._client.permissions(self.workspace_id))

    def answer(self, approval_id: str, answer: bool | Answer, message: str = "") -> bool:
        """Answer an approval. False if another answer came first, or the Run was stopped."""
        action: Answer = answer if isinstance(answer, str) else "allow" if answer else "deny"
        call = partial(self._client.answer_permission, self.workspace_id, approval_id, action, message)
        try:
            return self._retry(call).resolved
        except AskWithdrawn:
            return False

    def _decline_questions(self, batch_id: str) -> None:
        """Leave the model's questions unanswered; the model then decides on its own."""
        with suppress(AskWithdrawn):
            self._retry(lambda: self._client.cancel_questions(self.workspace_id, batch_id))

    def _do(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        if self._loop.is_closed():
            raise KedgeError("This connection is closed. Open another with kedge.connect().")
        result = asyncio.run_coroutine_threadsafe(call(), self._loop)
        try:
            return result.result()
        except BaseException:
            result.cancel()  # after Ctrl-C the request must not continue in the other thread
            raise

    def _retry(self, call: Callable[[], Awaitable[T]], *, idempotent: bool = True) -> T:
        restart = self._client.restart
        return self._do(lambda: retry_while_away(call, GIVE_UP_S, idempotent=idempotent, restart=restart))

    def _stop(self) -> None:
        self._do(self._client.aclose)
        self._do(self._loop.shutdown_asyncgens)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Session:
    """One conversation."""

    def __init__(self, connection: SyncConnection, session_id: str) -> None:
        self._connection = connection
        self.id = session_id

    def run(self, prompt: str, approve: Approve | None = None, **settings: Unpack[RunSettings]) -> Run:
        """Submit a prompt and wait for the Run's end.

        `approve` decides on approvals. Without it, a tool call that needs an approval ends the Run with reason
        `approval_needed`; `on_approval="ask"` waits for an answer from another client."""
        if approve is None:
            settings.setdefault("on_approval", "fail")
            return self.submit(prompt, **settings).wait()
        event = None
        for event in self.stream(prompt, **settings):
            if event.type == "permission_request" and event.change != "deleted":
                request = convert(event.payload, PermissionRequest)
                self._connection.answer(request.id, approve(request))
            elif event.type == "question_batch_request":
                self._connection._decline_questions(event.payload["id"])
        assert event is not None, "the events of a Run end with run_complete"
        return Run(self._connection, event.payload["run_id"], self.id).wait()

    def submit(self, prompt: str, **settings: Unpack[RunSettings]) -> Run:
        """Submit a prompt. Once accepted, its Run continues even if this program ends."""
        body = SubmitPrompt(session_id=self.id, prompt=prompt, run_id=new_run_id(), **settings)
        k = self._connection
        receipt = k._retry(lambda: k._client.submit(k.workspace_id, body))
        return Run(k, receipt.run_id, self.id)

    def stream(self, prompt: str, **settings: Unpack[RunSettings]) -> Generator[StreamEvent]:
        """Submit a prompt and yield the Run's events up to `run_complete`. Closing the generator does not cancel it."""
        body = SubmitPrompt(session_id=self.id, prompt=prompt, run_id=new_run_id(), **settings)
        k = self._connection
        followed = FollowedRun(k._client, k.workspace_id, body)
        k._retry(followed.__aenter__)
        events = aiter(followed)

        async def next_event() -> StreamEvent | None:
            return await anext(events, None)

        async def leave() -> None:
            await followed.__aexit__(None, None, None)

        try:
            k._do(followed.submit)
            while event := k._do(next_event):
                yield event
        finally:
            k._do(leave)

    def messages(self) -> list[MessageBody]:
        """Return the transcript."""
        k = self._connection

        async def read_all() -> list[MessageBody]:
            return [message async for message in k._client.all_messages(k.workspace_id, self.id)]

        return k._retry(read_all)

    def runs(self) -> list[RunBody]:
        k = self._connection
        return k._retry(lambda: k._client.session_runs(k.workspace_id, self.id))

    def cancel(self) -> CancelReply:
        """Cancel every Run accepted so far and return those Runs.

        Raises Unreachable or Unavailable if the outcome is unknown. It is not retried: that would also cancel Runs
        that were submitted in between."""
        k = self._connection
        return k._retry(lambda: k._client.cancel_session(k.workspace_id, self.id), idempotent=False)

    def undo(self, run_id: str | None = None) -> UndoReply:
        """Restore the files that this Run changed, or the last Run that changed any."""
        k = self._connection
        return k._retry(lambda: k._client.undo(k.workspace_id, self.id, run_id), idempotent=False)

    def redo(self) -> UndoReply:
        """Take back the last undo or rewind of files."""
        k = self._connection
        return k._retry(lambda: k._client.redo(k.workspace_id, self.id), idempotent=False)

    def rewind(self, message_id: str, scope: RewindScope) -> RewindReply:
        """Return to the state before this prompt: the conversation, the files, or both."""
        k = self._connection
        return k._retry(lambda: k._client.rewind(k.workspace_id, self.id, message_id, scope), idempotent=False)

    def shell(self, command: str) -> ShellReply:
        """Run a shell command in the workspace. It becomes part of the transcript."""
        k = self._connection
        return k._retry(lambda: k._client.shell(k.workspace_id, self.id, command), idempotent=False)

    def delete(self) -> None:
        k = self._connection
        k._retry(lambda: k._client.delete_session(k.workspace_id, self.id), idempotent=False)


class Run:
    """One accepted prompt. Its properties are read from the server until the Run has ended."""

    def __init__(self, connection: SyncConnection, run_id: str, session_id: str) -> None:
        self._connection = connection
        self._ended: RunBody | None = None
        self.run_id = run_id
        self.session_id = session_id

    def body(self) -> RunBody:
        """Return the Run's current state."""
        k = self._connection
        return self._keep(self._ended or k._retry(lambda: k._client.run(k.workspace_id, self.run_id)))

    def wait(self, timeout_s: float | None = None) -> Run:
        """Wait for the end of the Run and return it. Raises TimeoutError after `timeout_s`."""
        k = self._connection
        deadline = None if timeout_s is None else time.monotonic() + timeout_s

        def left_s() -> float | None:
            return None if deadline is None else max(0.0, deadline - time.monotonic())

        # Each request has its own GIVE_UP_S: the server may restart more than once during a Run.
        while self._ended is None:
            left = left_s()
            poll_s = WAIT_S if left is None else min(WAIT_S, left)
            run = self._keep(k._retry(partial(k._client.wait_run, k.workspace_id, self.run_id, poll_s)))
            if run.state != "ended" and left_s() == 0.0:
                raise TimeoutError(f"Run {self.run_id} has not ended within {timeout_s} s; it is {run.state}.")
        return self

    def cancel(self) -> CancelReply:
        """Cancel this Run and no other. It has ended when `wait` returns."""
        k = self._connection
        return k._retry(lambda: k._client.cancel_run(k.workspace_id, self.run_id))

    @property
    def state(self) -> str:
        return self.body().state

    @property
    def outcome(self) -> Outcome | None:
        """`completed`, `failed`, `cancelled` or `interrupted`; None until the Run has ended."""
        return self.body().outcome or None

    @property
    def reason(self) -> str:
        return self.body().reason or ""

    @property
    def error(self) -> str:
        return self.body().error or ""

    @property
    def text(self) -> str:
        """The assistant's last message."""
        return self.body().text or ""

    @property
    def usage(self) -> UsageBody:
        return self.body().usage

    def _keep(self, run: RunBody) -> RunBody:
        if run.state == "ended":
            self._ended = run
        return run
