"""Vectors for the two reducers of the view: operations from simulated schedules, and the views that follow.

In a simulated world one more client follows the workspace as the terminal interface does: it loads state while events
arrive, and again after a gap. Each vector also exists scrambled: durable events repeated, delayed and reordered.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from kedge.client.event_stream import EventStream, StreamEvent
from kedge.client.view.conversation import Conversation, ViewChanges
from kedge.client.view.workspace_view import WorkspaceView
from kedge.errors import KedgeError
from kedge.wire import models as m
from proof.sim.network import SimTransport
from proof.sim.plan import Plan, draw
from proof.sim.world import World, simulate_all

Operation = dict[str, Any]
#: A gap is reported to the reader after each event with this probability, and state is loaded again with this one.
GAP_RATE, LOAD_RATE = 0.01, 0.06
#: The complete view is compared after this many operations, and at the end. Items.
COMPARE_EACH = 6


class RecordingWorld(World):
    """A world with one more client, which records the operations of a view."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.operations: list[Operation] = []
        self._rng = random.Random(f"view of {plan.seed}")
        self._loads: set[asyncio.Task[None]] = set()
        self._stream: EventStream | None = None

    async def _prepare(self) -> None:
        await super()._prepare()
        self._reader = self.state.new_client(SimTransport(self.network, "viewer"), 91)
        self._watching = self.loop.create_task(self._watch(), name="viewer")

    async def _settle(self) -> None:
        await super()._settle()
        self._watching.cancel()
        for load in self._loads:
            load.cancel()
        await asyncio.wait({self._watching, *self._loads})

    async def _watch(self) -> None:
        while True:
            try:
                await self._reader.create_workspace("/")
                async with self._reader.events(self.state.workspace_id, deltas=True, give_up_s=20.0) as stream:
                    self._stream = stream
                    self._start_view()
                    async for event in stream:
                        self._record(event)
            except KedgeError:
                await asyncio.sleep(0.5)

    def _start_view(self) -> None:
        self.operations.append({"op": "reset"})
        self._load()

    def _record(self, event: StreamEvent) -> None:
        self.operations.append({"op": "event", "event": msgspec.to_builtins(event)})
        if event.type == "gap":
            self._start_view()
        elif self._rng.random() < GAP_RATE:
            gap = StreamEvent("gap", "created", {"reason": "unknown", "position": 0})
            self.operations.append({"op": "event", "event": msgspec.to_builtins(gap)})
            self._start_view()
        elif self._rng.random() < LOAD_RATE:
            self._load()

    def _load(self) -> None:
        task = self.loop.create_task(self._load_all(), name="viewer loads")
        self._loads.add(task)
        task.add_done_callback(self._loads.discard)

    async def _load_all(self) -> None:
        """Load everything as of the current Position. Events that arrive meanwhile are recorded before it."""
        stream, client, workspace = self._stream, self._reader, self.state.workspace_id
        at = (stream.position if stream else None) or 0
        sessions = self._rng.sample(self.state.session_ids, len(self.state.session_ids))
        try:
            for session_id in sessions:
                self._loaded("conversation", [], at, session_id)
            self._loaded("sessions", await client.sessions(workspace), at)
            self._loaded("runs", [run for run in await client.runs() if run.workspace_id == workspace], at)
            asks = [*await client.permissions(workspace), *await client.questions(workspace)]
            self._loaded("asks", asks, at)
            for session_id in sessions:
                self._loaded("runs", await client.session_runs(workspace, session_id), at)
                self._loaded("files", await client.changed_files(workspace, session_id), at, session_id)
                messages = [message async for message in client.all_messages(workspace, session_id)]
                self._loaded("conversation", messages, at, session_id)
        except KedgeError:
            pass  # the server is away, or the session was deleted: a later load may succeed

    def _loaded(self, kind: str, bodies: object, at: int, session_id: str = "") -> None:
        bodies = msgspec.to_builtins(bodies)
        self.operations.append({"op": kind, "bodies": bodies, "at": at, "session_id": session_id})


def recorded(seeds: Iterable[int]) -> Iterator[tuple[int, list[Operation]]]:
    """Return the operations of each simulation."""
    worlds: list[RecordingWorld] = []

    def make_world(plan: Plan) -> World:
        worlds.append(RecordingWorld(plan))
        return worlds[-1]

    for report in simulate_all((draw(seed) for seed in seeds), make_world=make_world):
        yield report.plan.seed, worlds.pop().operations


def scrambled(operations: list[Operation], seed: int) -> list[Operation]:
    """Repeat, delay and reorder operations. Loads are delayed for longer."""
    rng = random.Random(f"scrambled {seed}")
    keyed = []
    for number, operation in enumerate(operations):
        is_load = operation["op"] not in ("event", "reset")
        delay = rng.random() * (60 if is_load else 12) if rng.random() < (0.5 if is_load else 0.25) else 0.0
        keyed.append((number + delay, operation))
        if rng.random() < 0.1 and operation["op"] != "reset":
            keyed.append((number + rng.random() * 40, operation))
    order = [operation for _, operation in sorted(keyed, key=lambda pair: pair[0])]
    complete = [more for operation in order for more in (operation, *_more(operation, rng))]
    # Some providers repeat the ids of calls.
    text = json.dumps(complete)
    same = re.sub(r'"call(\d+)"', lambda match: f'"call{int(match[1]) % 2}"', text) if seed % 3 == 0 else text
    return json.loads(same)  # type: ignore[no-any-return]


def _more(operation: Operation, rng: random.Random) -> Iterator[Operation]:
    """Events that the simulated machine does not have, or rarely."""
    event = operation.get("event", {})
    payload = event.get("payload", {})
    if event.get("type") == "run" and (payload.get("parent_run_id") or rng.random() < 0.1):
        names = {name: payload[name] for name in ("session_id", "run_id")}
        yield _transient("progress", {**names, "tool_call_id": "call1", "text": f"progress {rng.random():.3f}"})
    if rng.random() < 0.2 and (named := _named(event, rng)):
        yield named
    if event.get("type") == "message" and event["position"] is not None and rng.random() < 0.08:
        position = event["position"] + rng.choice((-1, 0, 1))
        yield _event("message", "deleted", payload, position)
        rewind = {"session_id": payload["session_id"], "message_id": payload["id"], "fork_session_id": "f"}
        yield from [_event("rewind", "created", rewind, position + rng.choice((-1, 0, 1)))] * rng.randrange(2)
    if event.get("type") == "session" and rng.random() < 0.3:
        name, number = payload["id"], rng.randrange(3)
        yield _transient("presence", {"session_id": name, "attached_clients": number})
        yield _transient("job_output", {"session_id": name, "id": f"job{number}", "text": f"line {number}"})
        yield _transient("config_problem", {"problem": "" if number else "kedge.toml: line 1 is not valid"})
        yield _transient("extension", {"kind": "mcp", "name": f"server{number}", "condition": "ready"})
        file = {"path": "a", "run_id": "r", "session_id": name, "version_id": "v", "undone": False}
        yield _transient("file", file)
        yield _transient("later_version", {"session_id": name})


def _named(event: dict[str, Any], rng: random.Random) -> Operation | None:
    """The same event with the names of users: the simulated server has only its owner."""
    fields = {
        "run": ("author", "cancelled_by"),
        "permission_notification": ("author",),
        "question_batch_notification": ("author",),
    }
    if (names := fields.get(event.get("type", ""))) is None or event["change"] == "deleted":
        return None
    users = {name: rng.choice(("ann", "bob")) for name in names if rng.random() < 0.7}
    if event["type"] == "run":
        users["queue_order"] = max(1, event["payload"]["queue_order"] - rng.randrange(2))
    return _event(event["type"], event["change"], event["payload"] | users, event["position"] + rng.randrange(2))


def _transient(kind: str, payload: dict[str, Any]) -> Operation:
    return _event(kind, "updated", payload, None)


def _event(kind: str, change: str, payload: dict[str, Any], position: int | None) -> Operation:
    return {"op": "event", "event": {"type": kind, "change": change, "payload": payload, "position": position}}


@dataclass(slots=True)
class Replay:
    """A view, and what its dump has to ask for: the names that have occurred."""

    view: WorkspaceView = field(default_factory=WorkspaceView)
    sessions: set[str] = field(default_factory=set)
    runs: set[str] = field(default_factory=set)

    def do(self, operation: Operation) -> dict[str, Any]:
        """Do one operation, and return the changes that an event made."""
        # Decoded again, as from the network: a view may keep and change what it receives.
        operation = json.loads(json.dumps(operation))
        at, session_id = operation.get("at", 0), operation.get("session_id", "")
        bodies: Any = operation.get("bodies")
        match operation["op"]:
            case "reset":
                self.view.reset()
            case "sessions":
                self.view.load_sessions(msgspec.convert(bodies, list[m.SessionBody]), at)
            case "runs":
                self.view.load_runs(msgspec.convert(bodies, list[m.RunBody]), at)
            case "asks":
                kinds = [m.QuestionBatch if "questions" in body else m.PermissionRequest for body in bodies]
                self.view.load_asks([msgspec.convert(*pair) for pair in zip(bodies, kinds, strict=True)])
            case "files":
                self.view.load_files(session_id, msgspec.convert(bodies, m.ChangedFiles), at)
            case "conversation":
                self.view.load_conversation(session_id, msgspec.convert(bodies, list[m.MessageBody]), at)
            case _:
                event = msgspec.convert(operation["event"], StreamEvent)
                self.sessions |= {event.payload.get("session_id", "")} - {""}
                self.runs |= {event.payload.get("run_id", "")} - {""}
                return _changes(self.view.apply(event))
        return {}

    def dump(self) -> dict[str, Any]:
        """Return the view as JSON. `dump` of web/tests/view.test.ts returns the same."""
        view = self.view
        sessions, runs = sorted(self.sessions), sorted(self.runs)
        return msgspec.to_builtins(  # type: ignore[no-any-return]
            {
                "config_problem": view.config_problem,
                "extensions": list(view.extensions.values()),
                "sessions": view.sessions(),
                "known_sessions": {name: view.session(name) for name in sessions},
                "child_sessions": [name for name in sessions if view.is_child(name)],
                "active": {name: view.active(name) for name in sessions},
                "queue": {name: [run.run_id for run in view.queue(name)] for name in sessions},
                "files": {name: view.files(name) for name in sessions},
                "runs": {name: view.run(name) for name in runs},
                "children": {name: [run.run_id for run in view.children(name)] for name in runs},
                "job_outputs": [view.job_output(f"job{number}") for number in range(3)],
                "progress": {name: view.progress_of(name) for name in runs},
                "asks": view.asks(),
                "closed_asks": view.closed_asks,
                "conversations": {name: _conversation(view, shown) for name, shown in view.conversations.items()},
            }
        )


def _conversation(view: WorkspaceView, conversation: Conversation) -> dict[str, Any]:
    return {
        "retries": conversation.retries,
        "entries": [
            {
                "body": entry.body,
                "order": entry.order,
                "at": entry.at,
                "follows": entry.follows,
                "version": entry.version,
                "is_finished": entry.is_finished,
                "calls": [
                    {
                        "id": call,
                        "result": conversation.result_of(entry, call),
                        "progress": conversation.progress_of(entry, call),
                        "is_waiting": view.is_waiting(entry.body.run_id, call),
                    }
                    for part in entry.body.parts
                    if part.type == "tool_call"
                    for call in [part.data["id"]]
                ],
            }
            for entry in conversation.ordered()
        ],
    }


def _changes(changes: ViewChanges) -> dict[str, Any]:
    return {
        "messages": sorted(changes.messages),
        "files": sorted(changes.files),
        "ended": [complete.run_id for complete in changes.ended],
        "asked": [ask.id for ask in changes.asked],
        **{flag: getattr(changes, flag) for flag in ("order", "runs", "sessions", "asks", "gap", "moved")},
    }


def vector(name: str, operations: list[Operation]) -> dict[str, Any]:
    """Return the operations with the changes that each made, and the view after every few of them."""
    replay = Replay()
    changes, views = [], []
    for number, operation in enumerate(operations, 1):
        changes.append(replay.do(operation))
        if number % COMPARE_EACH == 0 or number == len(operations):
            views.append(replay.dump())
    return {
        "name": name,
        "compare_each": COMPARE_EACH,
        "operations": operations,
        "changes": changes,
        "views": views,
    }
