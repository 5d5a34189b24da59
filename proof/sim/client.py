"""A client in the simulation: a real one, that does what the plan says and writes down what it was told."""

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
from proof.sim.network import SimTransport
from proof.sim.plan import Act
from proof.sim.scene import Scene

T = TypeVar("T")

#: The directory of the only workspace: nothing is read or written there.
DIRECTORY = "/"
#: A client asks again so often; with the longest pauses between this is far beyond the last fault.
ATTEMPTS_MAX = 60
#: Errors after which nobody knows whether it happened, or which pass.
_AGAIN = (Unreachable, Unavailable, WorkspaceClosing, WorkspaceNotFound)


@dataclass(slots=True)
class Told:
    """One request of a client and its answer, with the times between which the server must have acted."""

    act: Act
    asked_at: float
    answered_at: float = 0.0
    answer: Any = None
    error: KedgeError | None = None
    #: It was asked more than once: an earlier one may have acted, too.
    attempts: int = 0
    #: Of a Run that the client did not name: each attempt may have become a Run of its own.
    run_id: str = ""


@dataclass(slots=True)
class Watched:
    """One stream: everything that came, in order."""

    scene: Scene
    session_id: str | None
    deltas: bool
    events: list[StreamEvent] = field(default_factory=list)
    #: When each of them came.
    times: list[float] = field(default_factory=list)
    #: The stream while it is there; None once it will never show anything again.
    stream: EventStream | None = None
    #: The Position it was given when it was first connected.
    began_at: int | None = None
    connected_at: list[float] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)

    def begin(self, position: int) -> None:
        """The server has said where this stream begins, now."""
        self.connected_at.append(self.scene.loop.time())
        if self.began_at is None:
            self.began_at = position
        head = self.scene.data.logs[self.scene.workspace_id].head
        if position > head:
            self.broken.append(f"a stream begins at {position}, behind the head of the log, {head}")

    def came(self, event: StreamEvent) -> None:
        self.events.append(event)
        self.times.append(self.scene.loop.time())


class SimClient:
    def __init__(self, scene: Scene, number: int) -> None:
        self.scene = scene
        self.name = f"c{number}"
        self.transport = SimTransport(scene.network, self.name)
        self.client = scene.new_client(self.transport, number)
        self.id = self.client.client_id
        session, deltas = scene.plan.streams[number]
        self.session = session
        self.answers = scene.plan.answers[number]
        self.deltas = deltas
        self.watched: list[Watched] = []
        self.told: list[Told] = []
        #: From when until when it did not read.
        self.paused: list[tuple[float, float]] = []
        #: What it was asked, what it said, and what it was told.
        self.answered: list[tuple[str, str, m.Resolved | KedgeError]] = []
        self.watching: asyncio.Task[None] | None = None
        self._answering: set[asyncio.Task[None]] = set()

    # --- watching ------------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Follow the stream until the world ends; one that was given up is opened anew."""
        session_id = None if self.session is None else self.scene.session_ids[self.session]
        while True:
            watched = Watched(self.scene, session_id, self.deltas)
            self.watched.append(watched)
            events = self.client.events(
                self.scene.workspace_id, session_id=session_id, deltas=self.deltas, give_up_s=20.0
            )
            watched.stream = events
            self.transport.on_connected = watched.begin
            try:
                async with events:
                    async for event in events:
                        watched.came(event)
                        self._react(event)
            except SessionNotFound:
                watched.stream = None
                return  # it was deleted, and nothing more will come of it
            except KedgeError as error:
                if watched.connected_at:  # the first attempt is the only one; later ones are repeated
                    watched.broken.append(f"gave its stream up: {type(error).__name__}: {error}")
                await asyncio.sleep(0.5)

    def _react(self, event: StreamEvent) -> None:
        if event.change != "created" or self.answers == "silent":
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
        await asyncio.sleep(self.scene.chance.random())
        action: Any = self.answers
        await self._answer(
            ask_id, action, lambda: self.client.answer_permission(self.scene.workspace_id, ask_id, action, "because")
        )

    async def _answer_question(self, ask_id: str) -> None:
        await asyncio.sleep(self.scene.chance.random())
        if self.answers == "deny":
            call = partial(self.client.cancel_questions, self.scene.workspace_id, ask_id)
            await self._answer(ask_id, "cancelled", call)
            return
        response = m.QuestionResponse(request_id="q1", fill_in_text="this one")
        call = partial(self.client.answer_questions, self.scene.workspace_id, ask_id, [response])
        await self._answer(ask_id, "answered", call)

    async def _answer(self, ask_id: str, said: str, call: Callable[[], Awaitable[m.Resolved]]) -> None:
        try:
            self.answered.append((ask_id, said, await self.insist(call)))
        except KedgeError as error:
            self.answered.append((ask_id, said, error))

    def answers_in(self, session_id: str) -> bool:
        watched = self.watched[-1] if self.watched else None
        watches = watched is not None and watched.stream is not None and watched.session_id in (None, session_id)
        return watches and self.answers != "silent"

    def own_head(self) -> int:
        """The last Position that this client's stream is to show."""
        wanted = self.watched[-1].session_id if self.watched else None
        rows = self.scene.data.logs[self.scene.workspace_id].rows
        return max((row.position for row in rows if wanted in (None, row.session_id)), default=0)

    async def stop(self) -> None:
        if self.watching is not None:
            self.watching.cancel()
            await asyncio.wait({self.watching})
        await asyncio.gather(*self._answering)

    # --- asking --------------------------------------------------------------------------------------------------

    async def insist(self, call: Callable[[], Awaitable[T]], told: Told | None = None) -> T:
        """Ask until there is an answer; what may be asked again is."""
        for attempt in range(ATTEMPTS_MAX):
            if told is not None:
                told.attempts += 1
            try:
                return await call()
            except _AGAIN as error:
                if told is not None and isinstance(error, NotConnected):
                    told.attempts -= 1  # this one was certainly not seen
                if attempt == ATTEMPTS_MAX - 1:
                    raise
            await asyncio.sleep(min(0.05 * 2**attempt, 1.0) * (0.5 + self.scene.chance.random()))
        raise AssertionError("not reached")

    async def do(self, act: Act) -> None:
        told = Told(act, self.scene.loop.time())
        self.told.append(told)
        try:
            told.answer = await self._ask(act, told)
        except KedgeError as error:
            told.error = error
        told.answered_at = self.scene.loop.time()

    async def _ask(self, act: Act, told: Told) -> Any:
        client, workspace, scene = self.client, self.scene.workspace_id, self.scene
        session_id = scene.session_ids[act.session]
        run_id = scene.run_ids.get(act.run, "nobody")
        match act.kind:
            case "submit":
                return await self._submit(act, told, session_id)
            case "cancel":
                return await self.insist(lambda: client.cancel_session(workspace, session_id), told)
            case "cancel_run":
                return await self.insist(lambda: client.cancel_run(workspace, run_id), told)
            case "clear":
                return await self.insist(lambda: client.clear_queue(workspace, session_id), told)
            case "edit":
                prompt = f"p{act.run}e:say 2"
                return await self.insist(lambda: client.edit_run(workspace, run_id, prompt), told)
            case "move":
                before = None if act.before is None else scene.run_ids.get(act.before, "nobody")
                return await self.insist(lambda: client.move_run(workspace, run_id, before), told)
            case "fold":
                return await self.insist(lambda: client.fold_run(workspace, run_id), told)
            case "delete":
                return await self.insist(lambda: client.delete_session(workspace, session_id), told)
            case "wait":
                return await self.insist(lambda: client.wait_run(workspace, run_id, 30.0), told)
            case "look":
                return await self.insist(lambda: client.session_runs(workspace, session_id), told)
            case "shell":
                scene.typed[act.script] += 1
                return await client.shell(workspace, session_id, act.script)
            case "drop":
                scene.network.cut_of(self.name)
            case "pause":
                self.transport.paused_until = scene.loop.time() + act.for_s
                self.paused.append((scene.loop.time(), self.transport.paused_until))
                scene.counted["reader that does not read"] += 1
            case "leave":
                await self._leave(act.for_s)
        return None

    async def _submit(self, act: Act, told: Told, session_id: str) -> m.Receipt:
        own_id = f"run{act.run}" if act.own_id else None
        if own_id is not None:
            self.scene.run_ids[act.run] = told.run_id = own_id
        prompt = m.SubmitPrompt(
            session_id=session_id,
            prompt=act.script,
            run_id=own_id or "",
            when_busy=act.when_busy,
            on_disconnect="cancel" if act.is_bound_to_client else "continue",
        )
        if own_id is None:
            told.attempts = 1
            receipt = await self.client.submit(self.scene.workspace_id, prompt)
        else:
            receipt = await self.insist(lambda: self.client.submit(self.scene.workspace_id, prompt), told)
        self.scene.run_ids[act.run] = told.run_id = receipt.run_id
        return receipt

    async def _leave(self, away_s: float) -> None:
        """Go without a word, and come back later."""
        self.scene.counted["client that leaves"] += 1
        if self.watching is not None:
            self.watching.cancel()
            await asyncio.wait({self.watching})
        await asyncio.sleep(away_s * 5)
        self.begin_to_watch()

    def begin_to_watch(self) -> None:
        if self.watching is not None and not self.watching.done():
            return
        self.watching = asyncio.get_running_loop().create_task(self._watch(), name=f"{self.name} watches")
