"""A simulated client: the real client library, driven by the plan. It records every request and every event."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from kedge.client.event_stream import EventStream, StreamEvent
from kedge.client.http_transport import NotConnected
from kedge.errors import KedgeError, SessionNotFound, Unavailable, Unreachable, WorkspaceClosing, WorkspaceNotFound
from kedge.wire import models as m
from kedge.wire.reversal_models import RewindReply
from proof.sim.network import SimTransport
from proof.sim.plan import Act
from proof.sim.state import SimState

T = TypeVar("T")

#: The directory of the only workspace. Nothing is read or written there.
DIRECTORY = "/"
#: Attempts of one request. With the longest pauses they last far beyond the last fault.
ATTEMPTS_MAX = 60
#: A client that leaves is away for so much longer than the time of its act. Ratio.
LEAVE_FACTOR = 5
#: Errors that pass, or that leave open whether the request was carried out.
_RETRYABLE = (Unreachable, Unavailable, WorkspaceClosing, WorkspaceNotFound)


@dataclass(slots=True)
class Request:
    """One request of a client and its reply. The server acted between the two times."""

    act: Act
    sent_at: float
    replied_at: float = 0.0
    reply: Any = None
    error: KedgeError | None = None
    #: If more than one, an earlier attempt may have acted, too.
    attempts: int = 0
    #: Of a submit. Without an id of the client, each attempt may have become another Run.
    run_id: str = ""


@dataclass(slots=True)
class WatchedStream:
    """One event stream and all events of it, in order."""

    state: SimState
    session_id: str | None
    deltas: bool
    events: list[StreamEvent] = field(default_factory=list)
    #: When each event arrived.
    times: list[float] = field(default_factory=list)
    #: None once no more events can come.
    stream: EventStream | None = None
    #: The first Position that the server named.
    began_at: int | None = None
    connected_at: list[float] = field(default_factory=list)
    #: When the client noticed that a connection was lost, or could not be made.
    lost_at: list[float] = field(default_factory=list)
    #: The server of each of these connections.
    entered: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)

    def on_connected(self, position: int, entered: str) -> None:
        """Called when the server has named the Position at which the stream begins."""
        self.connected_at.append(self.state.loop.time())
        self.entered.append(entered)
        if self.began_at is None:
            self.began_at = position
        head = self.state.data.logs[self.state.workspace_id].head
        if position > head:
            self.broken.append(f"a stream begins at {position}, after the head of the log, {head}")

    def on_change(self, is_connected: bool) -> None:
        """Called when the client has connected, or has noticed the loss of its connection."""
        if not is_connected:
            self.lost_at.append(self.state.loop.time())

    def on_event(self, event: StreamEvent) -> None:
        self.events.append(event)
        self.times.append(self.state.loop.time())


class SimClient:
    def __init__(self, state: SimState, number: int) -> None:
        self.state = state
        self.name = f"c{number}"
        self.transport = SimTransport(state.network, self.name)
        self.client = state.new_client(self.transport, number)
        self.id = self.client.client_id
        self.session, self.deltas = state.plan.streams[number]
        # Several nodes may be paused or away one after another.
        self._give_up_s = 20.0 if state.plan.nodes == 1 else 60.0
        self.answer = state.plan.answers[number]
        self.watched: list[WatchedStream] = []
        self.requests: list[Request] = []
        #: Times between which it did not read.
        self.paused: list[tuple[float, float]] = []
        #: The id of an ask, the answer, and the reply to it.
        self.answered: list[tuple[str, str, m.Resolved | KedgeError]] = []
        self.watching: asyncio.Task[None] | None = None
        self._answering: set[asyncio.Task[None]] = set()

    # --- streams -------------------------------------------------------------------------------------------------

    def start_watching(self) -> None:
        if self.watching is None or self.watching.done():
            self.watching = asyncio.get_running_loop().create_task(self._watch(), name=f"{self.name} watches")

    async def _watch(self) -> None:
        """Follow events until the simulation ends. Open a new stream after one that gave up."""
        session_id = None if self.session is None else self.state.session_ids[self.session]
        while True:
            watched = WatchedStream(self.state, session_id, self.deltas)
            self.watched.append(watched)
            events = self.client.events(
                self.state.workspace_id, session_id=session_id, deltas=self.deltas, give_up_s=self._give_up_s
            )
            watched.stream = events
            events.on_connected = watched.on_change
            self.transport.on_connected = watched.on_connected
            try:
                async with events:
                    async for event in events:
                        watched.on_event(event)
                        self._react(event)
            except SessionNotFound:
                watched.stream = None
                return  # the session was deleted: no more events
            except KedgeError as error:
                # The first attempt is not retried; later ones are, for less time than the disk may be full.
                is_excused = self.state.counts["store full"] and self.state.was_interrupted
                if watched.connected_at and not is_excused:
                    watched.broken.append(f"gave its stream up: {type(error).__name__}: {error}")
                await asyncio.sleep(0.5)

    def _react(self, event: StreamEvent) -> None:
        if event.change != "created" or self.answer == "silent":
            return
        if event.type == "permission_request":
            self._spawn(self._answer_permission(event.payload["id"]))
        elif event.type == "question_batch_request":
            self._spawn(self._answer_question(event.payload["id"]))

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _answer_permission(self, ask_id: str) -> None:
        await asyncio.sleep(self.state.rng.random())
        action: Any = self.answer
        await self._answer(
            ask_id, action, lambda: self.client.answer_permission(self.state.workspace_id, ask_id, action, "because")
        )

    async def _answer_question(self, ask_id: str) -> None:
        await asyncio.sleep(self.state.rng.random())
        if self.answer == "deny":
            call = partial(self.client.cancel_questions, self.state.workspace_id, ask_id)
            await self._answer(ask_id, "cancelled", call)
            return
        response = m.QuestionResponse(request_id="q1", fill_in_text="this one")
        call = partial(self.client.answer_questions, self.state.workspace_id, ask_id, [response])
        await self._answer(ask_id, "answered", call)

    async def _answer(self, ask_id: str, answer: str, call: Callable[[], Awaitable[m.Resolved]]) -> None:
        for rounds_left in (2, 1, 0):  # the store may be away for longer than a request is repeated
            try:
                self.answered.append((ask_id, answer, await self._retry(call)))
                return
            except KedgeError as error:
                if not (isinstance(error, _RETRYABLE) and rounds_left):
                    self.answered.append((ask_id, answer, error))
                    return

    def answers_in(self, session_id: str) -> bool:
        watched = self.watched[-1] if self.watched else None
        watches = watched is not None and watched.stream is not None and watched.session_id in (None, session_id)
        return watches and self.answer != "silent"

    def own_head(self) -> int:
        """Return the last Position that this client's stream should show."""
        session_id = self.watched[-1].session_id if self.watched else None
        rows = self.state.data.logs[self.state.workspace_id].rows
        return max((row.position for row in rows if session_id in (None, row.session_id)), default=0)

    async def stop(self) -> None:
        if self.watching is not None:
            self.watching.cancel()
            await asyncio.wait({self.watching})
        await asyncio.gather(*self._answering)

    # --- requests ------------------------------------------------------------------------------------------------

    async def do(self, act: Act) -> None:
        request = Request(act, self.state.loop.time())
        self.requests.append(request)
        try:
            request.reply = await self._send(act, request)
        except KedgeError as error:
            request.error = error
        request.replied_at = self.state.loop.time()

    async def _retry(self, call: Callable[[], Awaitable[T]], request: Request | None = None) -> T:
        """Repeat the call until there is a reply other than a passing error."""
        for attempt in range(ATTEMPTS_MAX):
            if request is not None:
                request.attempts += 1
            try:
                return await call()
            except _RETRYABLE as error:
                if request is not None and isinstance(error, NotConnected):
                    request.attempts -= 1  # the server cannot have received it
                if attempt == ATTEMPTS_MAX - 1:
                    raise
            await asyncio.sleep(min(0.05 * 2**attempt, 1.0) * (0.5 + self.state.rng.random()))
        raise AssertionError("not reached")

    async def _send(self, act: Act, request: Request) -> Any:
        client, workspace, state = self.client, self.state.workspace_id, self.state
        session_id = state.session_ids[act.session]
        run_id = state.run_ids.get(act.run, "nobody")
        match act.kind:
            case "submit":
                return await self._submit(act, request, session_id)
            case "cancel":
                return await self._retry(lambda: client.cancel_session(workspace, session_id), request)
            case "cancel_run":
                return await self._retry(lambda: client.cancel_run(workspace, run_id), request)
            case "clear":
                return await self._retry(lambda: client.clear_queue(workspace, session_id), request)
            case "edit":
                prompt = f"p{act.run}e:say 2"
                return await self._retry(lambda: client.edit_run(workspace, run_id, prompt), request)
            case "move":
                before = None if act.before is None else state.run_ids.get(act.before, "nobody")
                return await self._retry(lambda: client.move_run(workspace, run_id, before), request)
            case "fold":
                return await self._retry(lambda: client.fold_run(workspace, run_id), request)
            case "delete":
                return await self._retry(lambda: client.delete_session(workspace, session_id), request)
            case "rewind":
                return await self._rewind(session_id, run_id)
            case "mode":
                switch = partial(client.change_session, workspace, session_id, mode=act.mode)
                return await self._retry(switch, request)
            case "wait":
                return await self._retry(lambda: client.wait_run(workspace, run_id, 30.0), request)
            case "look":
                return await self._retry(lambda: client.session_runs(workspace, session_id), request)
            case "open":
                return await self._retry(lambda: client.create_workspace(DIRECTORY), request)
            case "shell":
                state.typed[act.script] += 1
                return await client.shell(workspace, session_id, act.script)
            case "drop":
                state.network.cut_of(self.name)
            case "pause":
                self.transport.paused_until = state.loop.time() + act.for_s
                self.paused.append((state.loop.time(), self.transport.paused_until))
                state.counts["reader that does not read"] += 1
            case "leave":
                await self._leave(act.for_s)
        return None

    async def _submit(self, act: Act, request: Request, session_id: str) -> m.Receipt:
        own_id = f"run{act.run}" if act.own_id else None
        if own_id is not None:
            self.state.run_ids[act.run] = request.run_id = own_id
        prompt = m.SubmitPrompt(
            session_id=session_id,
            prompt=act.script,
            run_id=own_id or "",
            when_busy=act.when_busy,
            mode=act.mode,
            on_disconnect="cancel" if act.is_bound_to_client else "continue",
        )
        if own_id is None:
            request.attempts = 1
            receipt = await self.client.submit(self.state.workspace_id, prompt)
        else:
            receipt = await self._retry(lambda: self.client.submit(self.state.workspace_id, prompt), request)
        self.state.run_ids[act.run] = request.run_id = receipt.run_id
        return receipt

    async def _rewind(self, session_id: str, run_id: str) -> RewindReply | None:
        """Rewind the session to the prompt of this Run, if it has one. Not repeated: it may have happened."""
        workspace = self.state.workspace_id
        async for message in self.client.all_messages(workspace, session_id):
            if message.role == "user" and message.run_id == run_id:
                reply = await self.client.rewind(workspace, session_id, message.id, "conversation")
                self.state.counts["session rewound"] += 1
                return reply
        return None

    async def _leave(self, away_s: float) -> None:
        """Disconnect without notice, and return later."""
        self.state.counts["client that leaves"] += 1
        if self.watching is not None:
            self.watching.cancel()
            await asyncio.wait({self.watching})
        await asyncio.sleep(away_s * LEAVE_FACTOR)
        self.start_watching()
