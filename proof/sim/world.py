"""One simulation: a server that crashes and restarts, clients with requests, and the judge at the end.

Real are the engine, the server's routes and streams, and the client library. Simulated are the event loop, the network,
the store's disk, the clock, the ids, the model and the tool processes.
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import itertools
import logging
import random
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from kedge.client.client import Client
from kedge.errors import KedgeError, Unavailable, Unreachable, WorkspaceNotFound
from kedge.wire import models as m
from proof.sim.client import DIRECTORY, Request, SimClient
from proof.sim.cluster import SimCluster
from proof.sim.judge import judge
from proof.sim.loop import Stuck
from proof.sim.network import SimTransport
from proof.sim.plan import Act, Plan
from proof.sim.server import Shared, SimServer
from proof.sim.state import SimState, sim_time

#: After the last fault every Run must end within this time. Seconds of simulated time, as below.
SETTLE_S = 600.0
#: The tools of a cancelled Run are dead within this time: `cleanup_s` and a moment. Seconds.
STOPPED_S = 11.0
#: Clients that answer asks have answered within this time. Seconds.
ANSWER_S = 20.0
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
        self.broken: list[str] = []
        shared = Shared(state, self.broken)
        self.faults, self.model = shared.faults, shared.model
        self.cluster = SimCluster(shared) if plan.nodes > 1 else None
        self.servers: Sequence[SimServer] = self.cluster.nodes if self.cluster else [SimServer(shared)]
        self.faults.alive = lambda: [command for command in self._alive() if not command.startswith("typed")]
        self.clients: list[SimClient] = []
        #: A client that creates the sessions, and finally answers the asks that no other client has answered.
        self._helper: Client

    def _alive(self) -> list[str]:
        """Return the tool processes of all servers that are alive."""
        return [command for server in self.servers for command in server.machine.alive]

    def _limit_rings(self) -> None:
        for server in self.servers:
            server.limit_rings()

    # --- the course of a simulation ------------------------------------------------------------------------------

    async def _run(self) -> None:
        for server in self.servers:
            server.boot()
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
        for server in self.servers:
            await server.close()

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
                self._target(act).crash(act.for_s)
            case "kill":
                self.loop.after_calls(act.run, lambda: self._target(act).crash(act.for_s))
            case "restart":
                await self._target(act).restart(act)
            case "node_pause" | "node_store" | "link_down" if self.cluster is not None:
                await self.cluster.begin(act)
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

    def _target(self, act: Act) -> SimServer:
        return self.servers[0] if self.cluster is None else self.cluster.target(act)

    async def _check_stopped(self, requests: list[Request]) -> None:
        """The tools of a Run that a reply names as covered are dead within its time to clean up, store or no store."""
        for request in requests:
            reply: m.CancelReply | None = request.reply
            active = [] if reply is None else [run.run_id for run in reply.covered if run.was == "active"]
            await asyncio.sleep(STOPPED_S if active else 0)
            for run_id in active:
                children = [run.run_id for run in self.data.runs.values() if run.options.parent_run_id == run_id]
                for one in (run_id, *children):
                    own = [server.machine.started_by(one, request.replied_at) for server in self.servers]
                    for command in itertools.chain(*own):
                        self.broken.append(f"{run_id} was cancelled, and {command} runs {STOPPED_S:g} s later")

    async def _settle(self) -> None:
        """Stop all faults. Then every Run must end, and every stream must reach the head of the log."""
        self.faults.stop()
        self.loop.nothing_between()
        self.network.repair()
        if self.cluster is not None:
            self.cluster.repair()
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
