"""One simulated world: a server that crashes and comes back, clients that want something of it, and a judge at the end.

Everything of ours in it is real: the engine, the server's routes and streams, the client and its stream. Simulated are
the event loop, the network, the store's disk, the clock, the ids, the model and the tool processes.
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

from kedge.client.client import Client
from kedge.config.schema import Config
from kedge.engine.engine import Engine
from kedge.engine.workspaces import FixedConfig
from kedge.errors import KedgeError, Unavailable, Unreachable, WorkspaceNotFound
from kedge.server.auth import Gate
from kedge.server.routes import make_app
from kedge.testing.machine import CountingIds
from kedge.tools.agent import AgentTool
from kedge.tools.question import QuestionTool
from kedge.tools.shell import BashTool
from kedge.wire import frames
from proof.sim.client import DIRECTORY, SimClient
from proof.sim.judge import judge
from proof.sim.loop import SimProcess, Stuck
from proof.sim.machine import COMMANDS, SimModel, SimProcesses
from proof.sim.network import SimTransport
from proof.sim.plan import Act, Plan
from proof.sim.scene import TOKEN, Scene, moment
from proof.sim.store import Faults, FaultyStore

#: When all faults are over every Run ends within as long, or it never does. Seconds of the simulated clock.
SETTLE_S = 600.0
#: How long a workspace waits for its first stream, and for one that was lost; by then it is let go. Seconds.
HOLD_S, GRACE_S = 3.0, 2.0
LET_GO_S = HOLD_S + GRACE_S + 1.0
#: Between its close and its exit a server lets connections end. Seconds.
LEAVE_S = 2.0
#: Clients that answer what they are asked have done so by then. Seconds.
ANSWER_S = 20.0
#: A server that starts again after it could not. Seconds.
BOOT_S = 0.3
#: A collection costs more than a simulation: what many of them left is collected at once. Items.
COLLECT_EACH = 200
T = TypeVar("T")
_CLIENT_FAULTS = frozenset({"drop", "pause", "leave"})


@dataclass(frozen=True, slots=True)
class Report:
    """What came of one simulation. `broken` is empty when every promise was kept."""

    plan: Plan
    broken: tuple[str, ...]
    #: How often each kind of fault and of deed happened.
    counted: Counter[str]
    #: Everything durable and everything clients saw, in a few bytes: equal for equal runs. Empty if nobody wants it.
    digest: str


class World:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.scene = scene = Scene(plan)
        self.loop, self.network, self.data = scene.loop, scene.network, scene.data
        self.faults = Faults(scene.chance, scene.counted)
        self.model = SimModel(scene.chance, scene.counted)
        self.machine = SimProcesses(scene.chance, scene.counted)
        self.ids = CountingIds()
        self.broken: list[str] = []
        self.faults.broken, self.faults.appended_at = self.broken, scene.appended_at
        self.faults.alive = lambda: [command for command in self.machine.alive if not command.startswith("typed")]
        self.clients: list[SimClient] = []
        #: Somebody who makes what all need, and answers at last what nobody else has answered.
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
                "server": {"hold_s": HOLD_S, "grace_s": GRACE_S, "stall_s": 20.0},
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
        engine = Engine(
            *(store, self.scene.clock, self.ids, frames, self.model, config),
            tools=tools,
            machine=self.machine,
            make_source=lambda path, strict: FixedConfig(config),  # no file of the real machine has a say
        )
        try:
            await engine.open()
        except KedgeError:
            self._lose(process)
            self.loop.call_later(BOOT_S, self._boot_again, context=contextvars.Context())  # not in the lost process
            return
        self._engine = engine
        self._small_rings()
        self.network.listen(process, make_app(engine, Gate(TOKEN), "data", lambda: None))

    def _small_rings(self) -> None:
        if self._engine is not None:
            for workspace in self._engine.workspaces.all():
                workspace.feed.ring_bytes_max = self.plan.ring_bytes

    def _lose(self, process: SimProcess) -> None:
        """The process is gone, with all that it had."""
        process.kill()
        self._server = self._engine = None
        self.network.stop_listening()
        self.machine.kill_all()
        self.model.forget_streams()
        self.data.owner = None

    def _crash(self, away_s: float) -> None:
        if self._server is None:
            return
        self.scene.counted["crash"] += 1
        self.scene.crashed_at.append(self.loop.time())
        self._lose(self._server)
        self.loop.call_later(away_s, self._boot_again, context=contextvars.Context())

    def _boot_again(self) -> None:
        if self._server is None:
            self._boot()

    async def _restart(self, act: Act) -> None:
        """An orderly end and a new beginning."""
        process, engine = self._server, self._engine
        if process is None or engine is None:
            return
        self.scene.counted["orderly restart"] += 1
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
        self.network.take_no_more()
        await asyncio.sleep(LEAVE_S)
        if process.is_dead:
            return
        self._check_left_behind(process)
        self._lose(process)
        await asyncio.sleep(act.for_s)
        self._boot_again()

    # --- what happens --------------------------------------------------------------------------------------------

    async def _live(self) -> None:
        self._boot()
        await self._prepare()
        acts = [self._begin(act) for act in self.plan.acts]
        if acts:
            _, late = await asyncio.wait(acts, timeout=SETTLE_S)
            if late:
                raise Stuck(
                    f"not answered within {SETTLE_S:g} s: {', '.join(sorted(task.get_name() for task in late))}"
                )
        await self._settle()
        for client in self.clients:
            await client.stop()
        self.broken += self.model.faults
        self.broken += judge(self.scene, self.clients)
        await self._close()

    async def _prepare(self) -> None:
        """A workspace with its sessions, before anything goes wrong."""
        client = self._helper = self.scene.new_client(SimTransport(self.network, "helper"), 90)
        self.clients = [SimClient(self.scene, number) for number in range(self.plan.clients)]
        opening = [
            _eventually(partial(one.create_workspace, DIRECTORY))
            for one in (client, *(made.client for made in self.clients))
        ]
        opened = {workspace.id for workspace in await asyncio.gather(*opening)}
        if len(opened) > 1:
            self.broken.append(f"one directory is {len(opened)} workspaces: {opened}")
        self.scene.workspace_id = min(opened)
        self._small_rings()
        for _ in range(self.plan.sessions):
            made_session = await _eventually(lambda: client.create_session(self.scene.workspace_id))
            self.scene.session_ids.append(made_session.id)
        for made in self.clients:
            made.begin_to_watch()

    def _begin(self, act: Act) -> asyncio.Task[None]:
        return self.loop.create_task(self._at(act), name=f"{act.kind} at {act.at:.3f}")

    async def _at(self, act: Act) -> None:
        await asyncio.sleep(act.at)
        self._small_rings()
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
            case "store_faults":
                faults.before_rate, faults.after_rate, faults.read_rate = act.rates
                await asyncio.sleep(act.for_s)
                faults.before_rate = faults.after_rate = faults.read_rate = 0.0
            case "clock":
                self.scene.counted["clock that is set"] += 1
                self.scene.clock.set_by(act.for_s)
            case "nth":
                faults.nth, faults.nth_after = faults.writes + act.run, act.own_id
            case "cuts":
                self.network.cut_rate = act.rates[0]
                await asyncio.sleep(act.for_s)
                self.network.cut_rate = 0.0
            case _:
                self.scene.counted[act.kind] += act.kind not in _CLIENT_FAULTS
                await self.clients[act.client].do(act)

    async def _settle(self) -> None:
        """All faults stop. Now every Run has to end, and every stream to come to the head of the log."""
        self.faults.stop()
        self.loop.nothing_between()
        self.network.cut_rate = 0.0
        for client in self.clients:
            client.transport.paused_until = 0.0
        deadline = self.loop.time() + SETTLE_S
        await _eventually(lambda: self._helper.create_workspace(DIRECTORY))
        await asyncio.sleep(2.0)  # what its client has given up asking for may still be on its way, and be accepted
        patience = self.loop.time() + ANSWER_S
        while self.data.live or not self._all_read():
            if self.loop.time() > deadline:
                raise Stuck(self._stuck_at())
            if self.loop.time() > patience:
                self._check_answered(patience - ANSWER_S)
                await self._answer_all()
            await asyncio.sleep(2.0)

    def _check_answered(self, since: float) -> None:
        """Whoever answers what it is asked has been shown what was pending, and was heard."""
        late = [ask for ask in self.data.asks.values() if ask.state == "pending"]
        for ask in late:
            for client in self.clients:
                if moment(ask.asked_at) < since and client.answers_in(ask.session_id):
                    self.broken.append(f"{client.name} would have answered {ask.id}, and was not shown it or not heard")

    async def _answer_all(self) -> None:
        """People who are asked at last say no: a Run that waits for them is not stuck."""
        for ask in list(self.data.asks.values()):
            if ask.state != "pending":
                continue
            try:
                if ask.kind == "question":
                    await self._helper.cancel_questions(self.scene.workspace_id, ask.id)
                else:
                    await self._helper.answer_permission(self.scene.workspace_id, ask.id, "deny")
            except KedgeError:
                pass  # somebody was quicker

    def _all_read(self) -> bool:
        streams = [(client, client.watched[-1].stream) for client in self.clients if client.watched]
        return all((stream.position or 0) >= client.own_head() for client, stream in streams if stream is not None)

    def _stuck_at(self) -> str:
        live = [f"{run.run_id} {run.state}" for run in self.data.live.values()]
        if live:
            return f"live {SETTLE_S:g} s after the last fault: {', '.join(live)}"
        return f"streams do not come to the head of the log within {SETTLE_S:g} s"

    async def _close(self) -> None:
        process, engine = self._server, self._engine
        if process is None or engine is None:
            self.broken.append("there is no server at the end")
            return
        await asyncio.sleep(LET_GO_S)
        if engine.workspaces.all():
            self.broken.append("the workspace is still open, and nobody holds it")
        if self.machine.alive:
            self.broken.append(f"at work, and nobody waits for it: {', '.join(self.machine.alive)}")
        closing = self.loop.spawn(process, engine.close(), "close")
        _, late = await asyncio.wait({closing}, timeout=60.0)
        if late:
            self.broken.append("the server did not close within 60 s")
        await asyncio.sleep(LEAVE_S)
        self._check_left_behind(process)

    def _check_left_behind(self, process: SimProcess) -> None:
        """Of a server that has closed."""
        mine = [task for task, owner in self.loop.tasks if owner is process and not task.done()]
        if mine:
            self.broken.append(f"tasks left behind: {', '.join(task.get_name() for task in mine)}")
        self.broken += self.loop.complaints_of(process)
        if self.machine.alive:
            self.broken.append(f"processes left behind: {', '.join(self.machine.alive)}")

    def run(self, *, with_digest: bool) -> Report:
        try:
            self.loop.run_until_complete(self._live())
        except Stuck as stuck:
            self.broken.append(str(stuck))
        self.broken += [f"asyncio complains: {complaint}" for complaint in self.loop.complaints()]
        self.scene.counted["connection cut"] += self.network.cuts
        digest = self._digest() if with_digest else ""
        return Report(self.plan, tuple(self.broken), self.scene.counted, digest)

    def _digest(self) -> str:
        told = hashlib.sha256()
        for log in self.data.logs.values():
            told.update(log.head_hash)
        for run in self.data.runs.values():
            told.update(repr(run).encode())
        for client in self.clients:
            for watched in client.watched:
                told.update(repr(watched.events).encode())
            for asked in client.told:
                told.update(repr((asked.asked_at, asked.answered_at, asked.answer, str(asked.error))).encode())
        return told.hexdigest()


def simulate(plan: Plan) -> Report:
    """Live through one plan."""
    return next(iter(simulate_all([plan])))


def simulate_all(plans: Iterable[Plan], *, with_digests: bool = False) -> Generator[Report, None, None]:
    """Live through one plan after another."""
    with _quiet() as alarms:
        for number, plan in enumerate(plans, 1):
            yield _simulate(plan, alarms, with_digests)
            if number % COLLECT_EACH == 0:
                gc.collect()


def _simulate(plan: Plan, alarms: _Alarms, with_digest: bool) -> Report:
    random.seed(plan.seed)  # clients shorten their pauses by chance
    world = World(plan)
    alarms.told = world.broken
    try:
        return world.run(with_digest=with_digest)
    finally:
        alarms.told = None
        world.loop.dispose()


class _Alarms(logging.Handler):
    """An error that the server logs with its traceback is one that nobody foresaw."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.told: list[str] | None = None

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and self.told is not None:
            self.told.append(f"logged: {record.getMessage()}: {record.exc_info[1]!r}")


@contextmanager
def _quiet() -> Iterator[_Alarms]:
    """Frozen tasks are thrown away in the middle of what they did, which Python finds remarkable. They are collected
    between simulations only, so that what happens in one does not depend on it."""
    hook, was_on = sys.unraisablehook, gc.isenabled()
    sys.unraisablehook = lambda about: None
    gc.disable()
    gc.freeze()  # what is there stays: no need to look at it each time
    alarms, logger = _Alarms(), logging.getLogger("kedge")
    logger.addHandler(alarms)
    propagate, logger.propagate = logger.propagate, False
    try:
        yield alarms
    finally:
        gc.unfreeze()
        gc.collect()
        logger.removeHandler(alarms)
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
