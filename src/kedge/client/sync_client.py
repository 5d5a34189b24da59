"""The client without `async`, for scripts and notebooks.

    with kedge.connect() as k:
        session = k.session()
        print(session.run("What does this repository do?").text)

        for event in session.stream("And who wrote it?"):
            print(event.type)

        # Whoever runs it decides: a tool call that needs an approval is put to `approve`.
        session.run("Tidy up the tests", approve=lambda asked: asked.tool_name == "edit")

A private event loop beside the caller does the work, so this also runs inside a program that has a loop of its own.
"""

from __future__ import annotations

import asyncio
import math
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
from kedge.client.event_stream import GIVE_UP_S, PAUSE_S_MAX, PAUSE_S_MIN, StreamEvent
from kedge.client.followed_run import FollowedRun
from kedge.client.http_transport import NotConnected
from kedge.client.local_server import find_or_start, open_workspace
from kedge.core.approvals import Answer
from kedge.core.commands import WhenBusy
from kedge.core.events import Outcome
from kedge.core.records import OnApproval, OnDisconnect
from kedge.errors import AskIsOver, KedgeError, Unavailable, Unreachable
from kedge.waiting import backoff_s
from kedge.wire.models import (
    CancelReply,
    MessageBody,
    PermissionRequest,
    RunBody,
    SessionBody,
    ShellReply,
    SubmitPrompt,
    UndoReply,
    UsageBody,
)

T = TypeVar("T")


class RunSettings(TypedDict, total=False):
    """What a Run may be given beside its prompt."""

    model: str
    max_steps: int
    timeout_s: float
    budget_usd: float
    when_busy: WhenBusy
    on_disconnect: OnDisconnect
    #: fail: a call that needs an approval ends the Run instead of waiting for somebody.
    on_approval: OnApproval
    #: Rules for this Run, such as "bash(git status)" or "edit(src/**)".
    allow: list[str]
    deny: list[str]


#: Asked for each approval of a Run: True allows it once, False denies it, an Answer says more.
Approve = Callable[[PermissionRequest], bool | Answer]


def connect(path: str | os.PathLike[str] = ".", host: str | None = None, token: str | None = None) -> Connection:
    """Open a directory on a server: on the user's own, which is started if need be, or on the one at `host`."""
    return Connection(os.path.abspath(path), host, token)


class Connection:
    """A directory opened on a server. Use it as a context manager, or call `close`."""

    def __init__(self, path: str, host: str | None, token: str | None) -> None:
        self.path = path
        self._may_start = host is None
        self._client = Client(host, token)
        self._loop = asyncio.new_event_loop()
        self._keeper = threading.Thread(target=self._loop.run_forever, name="kedge", daemon=True)
        self._keeper.start()
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
        """Let go of the workspace. Runs under way go on."""
        if self._loop.is_closed():
            return
        with suppress(KedgeError):  # the server may be gone already, and with it the claim
            self._do(lambda: self._client.release_workspace(self.workspace_id))
        self._stop()

    def session(self, session_id: str | None = None, *, title: str = "") -> Session:
        """The session with this id, or a new one."""
        if session_id is not None:
            return Session(self, self._retried(lambda: self._client.session(self.workspace_id, session_id)).id)
        return Session(self, self._retried(lambda: self._client.create_session(self.workspace_id, title), once=True).id)

    def sessions(self) -> list[SessionBody]:
        return self._retried(lambda: self._client.sessions(self.workspace_id))

    def approvals(self) -> list[PermissionRequest]:
        """Approvals that wait for an answer, of every Run in this workspace."""
        return self._retried(lambda: self._client.permissions(self.workspace_id))

    def answer(self, approval_id: str, answer: bool | Answer, message: str = "") -> bool:
        """Whether it was this answer that settled it; False when another one came first, or the Run was stopped."""
        action: Answer = answer if isinstance(answer, str) else "allow" if answer else "deny"
        call = partial(self._client.answer_permission, self.workspace_id, approval_id, action, message)
        try:
            return self._retried(call).resolved
        except AskIsOver:
            return False

    def _leave_unanswered(self, batch_id: str) -> None:
        """Nobody here can answer a model's questions: it is told so and decides itself."""
        with suppress(AskIsOver):
            self._retried(lambda: self._client.cancel_questions(self.workspace_id, batch_id))

    def _do(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        if self._loop.is_closed():
            raise KedgeError("this connection was closed: use kedge.connect() again")
        result = asyncio.run_coroutine_threadsafe(call(), self._loop)
        try:
            return result.result()
        except BaseException:
            result.cancel()  # Ctrl-C here must not leave the request running there
            raise

    def _retried(self, call: Callable[[], Awaitable[T]], *, once: bool = False) -> T:
        """Do it, and again while the server is away, at most GIVE_UP_S since it was first found to be. `once`: only if
        it was certainly not done."""

        async def patiently() -> T:
            deadline, pauses = math.inf, backoff_s(PAUSE_S_MIN, PAUSE_S_MAX)
            while True:
                pause = next(pauses)
                try:
                    return await call()
                except (Unreachable, Unavailable) as error:
                    now = time.monotonic()
                    deadline = min(deadline, now + GIVE_UP_S)
                    if now + pause > deadline or (once and not isinstance(error, NotConnected)):
                        raise
                if self._may_start:
                    await find_or_start()
                await asyncio.sleep(pause)

        return self._do(patiently)

    def _stop(self) -> None:
        self._do(self._client.aclose)
        self._do(self._loop.shutdown_asyncgens)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._keeper.join()
        self._loop.close()


class Session:
    """One conversation."""

    def __init__(self, connection: Connection, session_id: str) -> None:
        self._connection = connection
        self.id = session_id

    def run(self, prompt: str, approve: Approve | None = None, **settings: Unpack[RunSettings]) -> Run:
        """Submit a prompt and wait for the Run's end.

        Approvals are put to `approve`. Without it a call that needs one ends the Run (reason `approval_needed`), since
        nobody may be there to answer; `on_approval="ask"` waits for other clients."""
        if approve is None:
            settings.setdefault("on_approval", "fail")
            return self.submit(prompt, **settings).wait()
        event = None
        for event in self.stream(prompt, **settings):
            if event.type == "permission_request" and event.change != "deleted":
                asked = convert(event.payload, PermissionRequest)
                self._connection.answer(asked.id, approve(asked))
            elif event.type == "question_batch_request":
                self._connection._leave_unanswered(event.payload["id"])
        assert event is not None, "the events of a Run end with its end"
        return Run(self._connection, event.payload["run_id"], self.id).wait()

    def submit(self, prompt: str, **settings: Unpack[RunSettings]) -> Run:
        """Have a prompt accepted; it runs from then on, whatever happens to this program."""
        body = SubmitPrompt(session_id=self.id, prompt=prompt, run_id=new_run_id(), **settings)
        k = self._connection
        receipt = k._retried(lambda: k._client.submit(k.workspace_id, body))
        return Run(k, receipt.run_id, self.id)

    def stream(self, prompt: str, **settings: Unpack[RunSettings]) -> Generator[StreamEvent]:
        """Submit a prompt and follow it: the Run's events, `run_complete` last. Leaving does not cancel it."""
        body = SubmitPrompt(session_id=self.id, prompt=prompt, run_id=new_run_id(), **settings)
        k = self._connection
        followed = FollowedRun(k._client, k.workspace_id, body)
        k._retried(followed.__aenter__)
        events = aiter(followed)

        async def following() -> StreamEvent | None:
            return await anext(events, None)

        async def leave() -> None:
            await followed.__aexit__(None, None, None)

        try:
            k._do(followed.submit)
            while event := k._do(following):
                yield event
        finally:
            k._do(leave)

    def messages(self) -> list[MessageBody]:
        """The transcript."""
        k = self._connection

        async def all_of_them() -> list[MessageBody]:
            return [message async for message in k._client.all_messages(k.workspace_id, self.id)]

        return k._retried(all_of_them)

    def runs(self) -> list[RunBody]:
        k = self._connection
        return k._retried(lambda: k._client.session_runs(k.workspace_id, self.id))

    def cancel(self) -> CancelReply:
        """Stop every Run accepted until now; says which. Unreachable or Unavailable when that is not known: it is not
        asked for again, since that would stop what others have asked for in between."""
        k = self._connection
        return k._retried(lambda: k._client.cancel_session(k.workspace_id, self.id), once=True)

    def undo(self, run_id: str | None = None) -> UndoReply:
        """Put files back as they were before that Run, or before the last one that changed any."""
        k = self._connection
        return k._retried(lambda: k._client.undo(k.workspace_id, self.id, run_id), once=True)

    def shell(self, command: str) -> ShellReply:
        """Run a command in the workspace; it becomes part of the transcript."""
        k = self._connection
        return k._retried(lambda: k._client.shell(k.workspace_id, self.id, command), once=True)

    def delete(self) -> None:
        k = self._connection
        k._retried(lambda: k._client.delete_session(k.workspace_id, self.id), once=True)


class Run:
    """One accepted prompt. What it says of itself is the server's word at that moment, and final once it has ended."""

    def __init__(self, connection: Connection, run_id: str, session_id: str) -> None:
        self._connection = connection
        self._ended: RunBody | None = None
        self.run_id = run_id
        self.session_id = session_id

    def body(self) -> RunBody:
        """The Run as it stands."""
        k = self._connection
        return self._keep(self._ended or k._retried(lambda: k._client.run(k.workspace_id, self.run_id)))

    def wait(self, timeout_s: float | None = None) -> Run:
        """Itself, when it has ended; TimeoutError when that takes longer."""
        k = self._connection
        deadline = None if timeout_s is None else time.monotonic() + timeout_s

        def left_s() -> float | None:
            return None if deadline is None else max(0.0, deadline - time.monotonic())

        # One request after another, each with patience of its own: a Run may see more than one restart of its server.
        while self._ended is None:
            left = left_s()
            poll_s = WAIT_S if left is None else min(WAIT_S, left)
            run = self._keep(k._retried(partial(k._client.wait_run, k.workspace_id, self.run_id, poll_s)))
            if run.state != "ended" and left_s() == 0.0:
                raise TimeoutError(f"run {self.run_id} has not ended within {timeout_s} s: it is {run.state}")
        return self

    def cancel(self) -> CancelReply:
        """Stop this Run and no other. It has ended when `wait` returns."""
        k = self._connection
        return k._retried(lambda: k._client.cancel_run(k.workspace_id, self.run_id))

    @property
    def state(self) -> str:
        return self.body().state

    @property
    def outcome(self) -> Outcome | None:
        """completed, failed, cancelled or interrupted; None while it is live."""
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
