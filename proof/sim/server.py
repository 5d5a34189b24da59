"""A simulated server: the real engine and routes in a process that crashes, and starts again."""

from __future__ import annotations

import asyncio
import contextvars
from functools import partial

import msgspec

from kedge.agent.assembly import make_engine
from kedge.config.schema import Config
from kedge.engine.engine import Engine
from kedge.engine.feed import READ_BYTES_MAX
from kedge.engine.placement import Placement
from kedge.engine.workspace import FixedConfig
from kedge.errors import KedgeError
from kedge.server.auth import Gate
from kedge.server.forwarding import Forwarder
from kedge.server.routes import make_app
from kedge.testing.manual_system import CountingIds
from kedge.tools.agent import AgentTool
from kedge.tools.question import QuestionTool
from kedge.tools.shell import BashTool
from kedge.wire import frames
from proof.sim.loop import SimProcess
from proof.sim.machine import COMMANDS, SimModel, SimProcesses
from proof.sim.network import App
from proof.sim.plan import Act, Plan
from proof.sim.state import TOKEN, SimClock, SimState
from proof.sim.store import Faults, FaultyStore

#: How long a workspace waits for its first stream, and for a lost one; then it is closed. Seconds.
HOLD_S, GRACE_S = 3.0, 2.0
CLOSED_S = HOLD_S + GRACE_S + 1.0
#: Between its close and its exit a server lets connections finish. Seconds.
EXIT_S = 2.0
#: The pause before a server that could not start is started again. Seconds.
BOOT_S = 0.3


class Shared:
    """The parts that all servers of one simulation share."""

    def __init__(self, state: SimState, broken: list[str]) -> None:
        self.state = state
        self.broken = broken
        self.ids = CountingIds()
        self.faults = Faults(state.rng, state.counts)
        self.faults.broken, self.faults.appended_at, self.faults.cut = broken, state.appended_at, state.cut
        self.faults.modes = state.modes
        self.model = SimModel(state.rng, state.counts)
        self.model.cut = state.cut
        self.config = _config(state.plan)


class SimServer:
    """The only server of a store."""

    def __init__(self, shared: Shared, name: str = "") -> None:
        self.shared = shared
        self.name = name
        self.state = shared.state
        self.loop, self.network = self.state.loop, self.state.network
        self.clock: SimClock = self.state.clock
        self.machine = SimProcesses(self.state.rng, self.state.counts)
        self.machine.starts = self.state.starts
        self.process: SimProcess | None = None
        self.engine: Engine | None = None
        self.boots = 0

    def boot(self) -> None:
        self.boots += 1
        process = self.process = SimProcess(f"server {self.name}{self.boots}")
        self.loop.spawn(process, self._serve(process), process.name)

    async def _serve(self, process: SimProcess) -> None:
        shared, config = self.shared, self.shared.config
        store, placement = self._open_store(process)
        engine = make_engine(
            store,
            self.clock,
            shared.ids,
            frames,
            shared.model,
            config,
            tools=(BashTool(), QuestionTool(), AgentTool()),
            machine=self.machine,
            make_source=lambda path, strict: FixedConfig(config),  # no file of the real machine is read
            placement=placement,
        )
        gate = Gate(TOKEN)
        cluster = self._join(engine, gate)
        try:
            await engine.open(None if cluster is None else partial(cluster.node.start, "", self.name))
        except KedgeError:
            self.lose(process)
            self._boot_later(BOOT_S)
            return
        self.engine = engine
        self.limit_rings()
        app = make_app(engine, gate, "data", lambda: None, cluster=cluster)
        self.network.listen(process, self._served(app), self.name)

    def _open_store(self, process: SimProcess) -> tuple[FaultyStore, Placement | None]:
        return FaultyStore(self.state.data, self.shared.faults), None

    def _join(self, engine: Engine, gate: Gate) -> Forwarder | None:
        """Join the cluster, if the server is a node of one."""
        return None

    def _served(self, app: App) -> App:
        return app

    def limit_rings(self) -> None:
        if self.engine is not None:
            ring_bytes = self.state.plan.ring_bytes
            for workspace in self.engine.workspaces.all():
                workspace.feed.ring_bytes_max = ring_bytes
                # With the small ring, slices are shorter than most frames: the ring moves on within a frame.
                workspace.feed.read_bytes_max = min(ring_bytes // 10, READ_BYTES_MAX)

    def lose(self, process: SimProcess) -> None:
        """End the process, with all that it holds in memory."""
        process.kill()
        self.process = self.engine = None
        self.network.stop_listening(self.name)
        self.machine.start_again()
        self.state.data.owner = None

    def crash(self, away_s: float) -> None:
        if self.process is None:
            return
        self.state.counts["crash"] += 1
        self.state.crashed_at.append(self.loop.time())
        self.lose(self.process)
        self._boot_later(away_s)

    def _boot_later(self, away_s: float) -> None:
        self.loop.call_later(away_s, self._boot_again, context=contextvars.Context())  # not in the lost process

    def _boot_again(self) -> None:
        if self.process is None:
            self.boot()

    async def restart(self, act: Act) -> None:
        """Shut the server down in order, and start it again."""
        process, engine = self.process, self.engine
        if process is None or engine is None or engine.is_closing:
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
            self.report("the server did not close within 60 s")
        elif closing.exception() is not None:
            self.report(f"closing the server failed: {closing.exception()!r}")
        self.network.refuse_connections(self.name)
        await asyncio.sleep(EXIT_S)
        if process.is_dead:
            return
        if not process.is_paused:
            self._check_left_behind(process)
        self.lose(process)
        await asyncio.sleep(act.for_s)
        self._boot_again()

    async def close(self) -> None:
        """Check at the end of a simulation that nothing is left without a client."""
        process, engine = self.process, self.engine
        if process is None or engine is None:
            self.report("no server runs at the end")
            return
        await asyncio.sleep(CLOSED_S)
        self._check_closed(engine)
        closing = self.loop.spawn(process, engine.close(), "close")
        _, late = await asyncio.wait({closing}, timeout=60.0)
        if late:
            self.report("the server did not close within 60 s")
        await asyncio.sleep(EXIT_S)
        self._check_left_behind(process)

    def _check_closed(self, engine: Engine) -> None:
        if engine.workspaces.all():
            self.report("the workspace is still open without a claim")
        if self.machine.alive:
            self.report(f"processes without a Run: {', '.join(self.machine.alive)}")

    def _check_left_behind(self, process: SimProcess) -> None:
        """Check that a closed server has left no task and no process."""
        mine = [task for task, owner in self.loop.tasks if owner is process and not task.done()]
        if mine:
            self.report(f"tasks left behind: {', '.join(task.get_name() for task in mine)}")
        self.shared.broken += self.loop.complaints_of(process)
        if self.machine.alive:
            self.report(f"processes left behind: {', '.join(self.machine.alive)}")

    def report(self, problem: str) -> None:
        self.shared.broken.append(f"{self.name}: {problem}" if self.name else problem)


def _config(plan: Plan) -> Config:
    return msgspec.convert(
        {
            "runs": {
                "on_crash": plan.on_crash,
                "queue_runs_max": plan.queue_runs_max,
                "retries_max": 3,
                "titles": plan.titles,
            },
            "permissions": {"allow": [f"bash({name})" for name in COMMANDS]},
            "server": {"hold_s": HOLD_S, "grace_s": GRACE_S},
        },
        Config,
    )
