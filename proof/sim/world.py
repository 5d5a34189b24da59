"""One simulation: a server that crashes and restarts, clients with requests, and the judge at the end.

Real are the engine, the server's routes and streams, and the client library. Simulated are the event loop, the network,
the store's disk, the clock, the ids, the model and the tool processes.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import hashlib
import logging
import random
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import msgspec

from kedge.agent.assembly import make_engine
from kedge.client.client import Client
from kedge.config.schema import Config
from kedge.engine.engine import Engine
from kedge.engine.feed import READ_BYTES_MAX
from kedge.engine.workspace import FixedConfig
from kedge.errors import KedgeError, Unavailable, Unreachable, WorkspaceNotFound
from kedge.server.auth import Gate
from kedge.server.routes import make_app
from kedge.testing.manual_system import CountingIds
from kedge.tools.agent import AgentTool
from kedge.tools.question import QuestionTool
from kedge.tools.shell import BashTool
from kedge.wire import frames
from kedge.wire import models as m
from proof.sim.client import DIRECTORY, Request, SimClient
from proof.sim.judge import judge
from proof.sim.loop import SimProcess, Stuck
from proof.sim.machine import COMMANDS, SimModel, SimProcesses
from proof.sim.network import SimTransport
from proof.sim.plan import Act, Plan
from proof.sim.state import TOKEN, SimState, sim_time
from proof.sim.store import Faults, FaultyStore

#: After the last fault every Run must end within this time. Seconds of simulated time, as below.
SETTLE_S = 600.0
#: How long a workspace waits for its first stream, and for a lost one; then it is closed. Seconds.
HOLD_S, GRACE_S = 3.0, 2.0
CLOSED_S = HOLD_S + GRACE_S + 1.0
#: Between its close and its exit a server lets connections finish. Seconds.
EXIT_S = 2.0
#: The tools of a cancelled Run are dead within this time: `cleanup_s` and a moment. Seconds.
STOPPED_S = 11.0
#: Clients that answer asks have answered within this time. Seconds.
ANSWER_S = 20.0
#: The pause before a server that could not start is started again. Seconds.
BOOT_S = 0.3
#: A garbage collection costs more than a simulation, so there is one for this many. Items.
COLLECT_EACH = 200
T = TypeVar("T")
_CLIENT_FAULTS = frozenset({"drop", "pause", "leave"})


@dataclass(frozen=True, slots=True)
class Report:
    """The result of one simulation. `broken` is empty if every promise was kept."""

    plan: Plan
    broken: tuple[str, ...]
    #: How often each kind of act and of fault happened.
    counts: Counter[str]
    #: A digest of all stored data and all events and replies of clients. Empty unless requested.
    digest: str


class World:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.state = state = SimState(plan)
        self.loop, self.network, self.data = state.loop, state.network, state.data
        self.faults = Faults(state.rng, state.counts)
        self.model = SimModel(state.rng, state.counts)
        self.machine = SimProcesses(state.rng, state.counts)
        self.ids = CountingIds()
        self.broken: list[str] = []
        self.faults.broken, self.faults.appended_at, self.faults.cut = self.broken, state.appended_at, state.cut
        self.model.cut, self.faults.modes, self.machine.starts = state.cut, state.modes, state.starts
        self.faults.alive = lambda: [command for command in self.machine.alive if not command.startswith("typed")]
        self.clients: list[SimClient] = []
        #: A client that creates the sessions, and finally answers the asks that no other client has answered.
        self._helper: Client
        self._server: SimProcess | None = None
        self._engine: Engine | None = None
        self._boots = 0

    # --- the server ----------------------------------------------------------------------------------------------

    def _config(self) -> Config:
        return msgspec.convert(
            {
                "runs": {
                    "on_crash": self.plan.on_crash,
                    "queue_runs_max": self.plan.queue_runs_max,
                    "retries_max": 3,
                    "titles": self.plan.titles,
                },
                "permissions": {"allow": [f"bash({name})" for name in COMMANDS]},
                "server": {"hold_s": HOLD_S, "grace_s": GRACE_S},
            },
            Config,
        )

    def _boot(self) -> None:
        self._boots += 1
        process = self._server = SimProcess(f"server {self._boots}")
        self.loop.spawn(process, self._serve(process), process.name)

    async def _serve(self, process: SimProcess) -> None:
        store = FaultyStore(self.data, self.faults)
        tools = (BashTool(), QuestionTool(), AgentTool())
        config = self._config()
        engine = make_engine(
            store,
            self.state.clock,
            self.ids,
            frames,
            self.model,
            config,
            tools=tools,
            machine=self.machine,
            make_source=lambda path, strict: FixedConfig(config),  # no file of the real machine is read
        )
        try:
            await engine.open()
        except KedgeError:
            self._lose(process)
            self.loop.call_later(BOOT_S, self._boot_again, context=contextvars.Context())  # not in the lost process
            return
        self._engine = engine
        self._limit_rings()
        self.network.listen(process, make_app(engine, Gate(TOKEN), "data", lambda: None))

    def _limit_rings(self) -> None:
        if self._engine is not None:
            for workspace in self._engine.workspaces.all():
                workspace.feed.ring_bytes_max = self.plan.ring_bytes
                # With the small ring, slices are shorter than most frames: the ring moves on within a frame.
                workspace.feed.read_bytes_max = min(self.plan.ring_bytes // 10, READ_BYTES_MAX)

    def _lose(self, process: SimProcess) -> None:
        """End the process, with all that it holds in memory."""
        process.kill()
        self._server = self._engine = None
        self.network.stop_listening()
        self.machine.kill_all()
        self.model.forget_streams()
        self.data.owner = None

    def _crash(self, away_s: float) -> None:
        if self._server is None:
            return
        self.state.counts["crash"] += 1
        self.state.crashed_at.append(self.loop.time())
        self._lose(self._server)
        self.loop.call_later(away_s, self._boot_again, context=contextvars.Context())

    def _boot_again(self) -> None:
        if self._server is None:
            self._boot()

    async def _restart(self, act: Act) -> None:
        """Shut the server down in order, and start it again."""
        process, engine = self._server, self._engine
        if process is None or engine is None:
            return
        self.state.counts["orderly restart"] += 1
        self.state.restarted_at.append(self.loop.time())
        closing = self.loop.spawn(process, engine.close(), "close")
        for _ in range(600):
            if closing.done() or process.is_dead:
                break
            await asyncio.sleep(0.1)
        if process.is_dead:
            return
        if not closing.done():
            self.broken.append("the server did not close within 60 s")
        elif closing.exception() is not None:
            self.broken.append(f"closing the server failed: {closing.exception()!r}")
        self.network.refuse_connections()
        await asyncio.sleep(EXIT_S)
        if process.is_dead:
            return
        self._check_left_behind(process)
        self._lose(process)
        await asyncio.sleep(act.for_s)
        self._boot_again()

    # --- the course of a simulation ------------------------------------------------------------------------------

    async def _run(self) -> None:
        self._boot()
        await self._prepare()
        acts = [self._begin(act) for act in self.plan.acts]
        if acts:
            _, late = await asyncio.wait(acts, timeout=SETTLE_S)
            if late:
                raise Stuck(f"no reply within {SETTLE_S:g} s: {', '.join(sorted(task.get_name() for task in late))}")
        await self._settle()
        for client in self.clients:
            await client.stop()
        self.broken += self.model.faults
        self.broken += judge(self.state, self.clients)
        await self._close()

    async def _prepare(self) -> None:
        """Create a workspace and its sessions, before the first fault."""
        client = self._helper = self.state.new_client(SimTransport(self.network, "helper"), 90)
        self.clients = [SimClient(self.state, number) for number in range(self.plan.clients)]
        opening = [
            _eventually(partial(one.create_workspace, DIRECTORY))
            for one in (client, *(other.client for other in self.clients))
        ]
        opened = {workspace.id for workspace in await asyncio.gather(*opening)}
        if len(opened) > 1:
            self.broken.append(f"one directory is {len(opened)} workspaces: {opened}")
        self.state.workspace_id = min(opened)
        self._limit_rings()
        for _ in range(self.plan.sessions):
            session = await _eventually(lambda: client.create_session(self.state.workspace_id))
            self.state.session_ids.append(session.id)
        for other in self.clients:
            other.start_watching()

    def _begin(self, act: Act) -> asyncio.Task[None]:
        return self.loop.create_task(self._at(act), name=f"{act.kind} at {act.at:.3f}")

    async def _at(self, act: Act) -> None:
        await asyncio.sleep(act.at)
        self._limit_rings()
        faults = self.faults
        match act.kind:
            case "crash":
                self._crash(act.for_s)
            case "kill":
                self.loop.after_calls(act.run, partial(self._crash, act.for_s))
            case "restart":
                await self._restart(act)
            case "store_down":
                faults.down_until = max(faults.down_until, self.loop.time() + act.for_s)
            case "store_full":
                faults.full_until = max(faults.full_until, self.loop.time() + act.for_s)
            case "store_slow":
                faults.slow_until = max(faults.slow_until, self.loop.time() + act.for_s)
            case "store_faults":
                faults.before_rate, faults.after_rate, faults.read_rate = act.rates
                await asyncio.sleep(act.for_s)
                faults.before_rate = faults.after_rate = faults.read_rate = 0.0
            case "clock":
                self.state.counts["clock that is set"] += 1
                self.state.clock.set_by(act.for_s)
            case "nth":
                faults.nth, faults.nth_after = faults.writes + act.run, act.own_id
            case "cuts":
                self.network.cut_rate = act.rates[0]
                await asyncio.sleep(act.for_s)
                self.network.cut_rate = 0.0
            case _:
                self.state.counts[act.kind] += act.kind not in _CLIENT_FAULTS
                client = self.clients[act.client]
                await client.do(act)
                if act.kind in ("cancel", "cancel_run"):
                    await self._check_stopped([request for request in client.requests if request.act is act])

    async def _check_stopped(self, requests: list[Request]) -> None:
        """The tools of a Run that a reply names as covered are dead within its time to clean up, store or no store."""
        for request in requests:
            reply: m.CancelReply | None = request.reply
            active = [] if reply is None else [run.run_id for run in reply.covered if run.was == "active"]
            await asyncio.sleep(STOPPED_S if active else 0)
            for run_id in active:
                children = [run.run_id for run in self.data.runs.values() if run.options.parent_run_id == run_id]
                for one in (run_id, *children):
                    for command in self.machine.started_by(one, request.replied_at):
                        self.broken.append(f"{run_id} was cancelled, and {command} runs {STOPPED_S:g} s later")

    async def _settle(self) -> None:
        """Stop all faults. Then every Run must end, and every stream must reach the head of the log."""
        self.faults.stop()
        self.loop.nothing_between()
        self.network.cut_rate = 0.0
        for client in self.clients:
            client.transport.paused_until = 0.0
        deadline = self.loop.time() + SETTLE_S
        await _eventually(lambda: self._helper.create_workspace(DIRECTORY))
        await asyncio.sleep(2.0)  # a request that its client has given up may still arrive and be accepted
        answered_by = self.loop.time() + ANSWER_S
        while self.data.live or not self._all_read():
            if self.loop.time() > deadline:
                raise Stuck(self._stuck_at())
            if self.loop.time() > answered_by:
                self._check_answered(answered_by - ANSWER_S)
                await self._answer_all()
            await asyncio.sleep(2.0)

    def _check_answered(self, since: float) -> None:
        """A client that answers asks has received every pending one, and its answer was accepted."""
        late = [ask for ask in self.data.asks.values() if ask.state == "pending"]
        for ask in late:
            for client in self.clients:
                if sim_time(ask.asked_at) < since and client.answers_in(ask.session_id):
                    self.broken.append(
                        f"{client.name} would have answered {ask.id}: it was not shown, or its answer was lost"
                    )

    async def _answer_all(self) -> None:
        """Deny all pending asks: a Run that waits for an answer is not stuck."""
        for ask in list(self.data.asks.values()):
            if ask.state != "pending":
                continue
            try:
                if ask.kind == "question":
                    await self._helper.cancel_questions(self.state.workspace_id, ask.id)
                else:
                    await self._helper.answer_permission(self.state.workspace_id, ask.id, "deny")
            except KedgeError:
                pass  # another client was faster

    def _all_read(self) -> bool:
        streams = [(client, client.watched[-1].stream) for client in self.clients if client.watched]
        return all((stream.position or 0) >= client.own_head() for client, stream in streams if stream is not None)

    def _stuck_at(self) -> str:
        live = [f"{run.run_id} {run.state}" for run in self.data.live.values()]
        if live:
            return f"live {SETTLE_S:g} s after the last fault: {', '.join(live)}"
        return f"streams do not reach the head of the log within {SETTLE_S:g} s"

    async def _close(self) -> None:
        process, engine = self._server, self._engine
        if process is None or engine is None:
            self.broken.append("no server runs at the end")
            return
        await asyncio.sleep(CLOSED_S)
        if engine.workspaces.all():
            self.broken.append("the workspace is still open without a claim")
        if self.machine.alive:
            self.broken.append(f"processes without a Run: {', '.join(self.machine.alive)}")
        closing = self.loop.spawn(process, engine.close(), "close")
        _, late = await asyncio.wait({closing}, timeout=60.0)
        if late:
            self.broken.append("the server did not close within 60 s")
        await asyncio.sleep(EXIT_S)
        self._check_left_behind(process)

    def _check_left_behind(self, process: SimProcess) -> None:
        """Check that a closed server has left no task and no process."""
        mine = [task for task, owner in self.loop.tasks if owner is process and not task.done()]
        if mine:
            self.broken.append(f"tasks left behind: {', '.join(task.get_name() for task in mine)}")
        self.broken += self.loop.complaints_of(process)
        if self.machine.alive:
            self.broken.append(f"processes left behind: {', '.join(self.machine.alive)}")

    def run(self, *, with_digest: bool) -> Report:
        try:
            self.loop.run_until_complete(self._run())
        except Stuck as stuck:
            self.broken.append(str(stuck))
        self.broken += [f"asyncio complains: {complaint}" for complaint in self.loop.complaints()]
        self.state.counts["connection cut"] += self.network.cuts
        digest = self._digest() if with_digest else ""
        return Report(self.plan, tuple(self.broken), self.state.counts, digest)

    def _digest(self) -> str:
        digest = hashlib.sha256()
        for log in self.data.logs.values():
            digest.update(log.head_hash)
        for run in self.data.runs.values():
            digest.update(repr(run).encode())
        for client in self.clients:
            for watched in client.watched:
                digest.update(repr(watched.events).encode())
            for request in client.requests:
                digest.update(repr((request.sent_at, request.replied_at, request.reply, str(request.error))).encode())
        return digest.hexdigest()


def simulate(plan: Plan) -> Report:
    """Run one plan."""
    return next(iter(simulate_all([plan])))


def simulate_all(
    plans: Iterable[Plan], *, with_digests: bool = False, make_world: Callable[[Plan], World] = World
) -> Generator[Report, None, None]:
    """Run one plan after another."""
    with _quiet() as errors:
        for number, plan in enumerate(plans, 1):
            yield _simulate(make_world(plan), errors, with_digests)
            if number % COLLECT_EACH == 0:
                gc.collect()


def _simulate(world: World, errors: _ErrorLog, with_digest: bool) -> Report:
    random.seed(world.plan.seed)  # clients randomise their backoff
    errors.broken = world.broken
    try:
        return world.run(with_digest=with_digest)
    finally:
        errors.broken = None
        world.loop.dispose()


class _ErrorLog(logging.Handler):
    """Collects the errors that the server logs with a traceback: unexpected errors."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.broken: list[str] | None = None

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and self.broken is not None:
            self.broken.append(f"logged: {record.getMessage()}: {record.exc_info[1]!r}")


@contextmanager
def _quiet() -> Iterator[_ErrorLog]:
    """Silence the warnings about frozen tasks. Collect them only between simulations, so that no simulation depends on
    the garbage collector."""
    hook, was_on = sys.unraisablehook, gc.isenabled()
    sys.unraisablehook = lambda unraisable: None
    gc.disable()
    gc.freeze()  # collections need not visit the objects that exist now
    errors, logger = _ErrorLog(), logging.getLogger("kedge")
    logger.addHandler(errors)
    propagate, logger.propagate = logger.propagate, False
    try:
        yield errors
    finally:
        gc.unfreeze()
        gc.collect()
        logger.removeHandler(errors)
        logger.propagate = propagate
        if was_on:
            gc.enable()
        sys.unraisablehook = hook


async def _eventually(call: Callable[[], Awaitable[T]]) -> T:
    while True:
        try:
            return await call()
        except (Unreachable, Unavailable, WorkspaceNotFound):
            await asyncio.sleep(0.1)
