"""The state that all parts of one simulation share: time, random numbers, network, stored data, and names."""

from __future__ import annotations

import random
from collections import Counter

from kedge.client.client import Client
from kedge.client.http_transport import Transport
from kedge.core.modes import Mode
from kedge.core.transcript import Message
from kedge.store.memory import MemoryData
from proof.sim.loop import SimLoop
from proof.sim.machine import ProcessStart
from proof.sim.network import Network, ShortTransport, SimTransport
from proof.sim.plan import DAY_S, Plan

HOST, TOKEN = "http://localhost:1", "0123456789abcdef"


class SimClock:
    """The machine's clock. It is set by whole days only, and no simulation lasts a day: see `sim_time`."""

    def __init__(self, loop: SimLoop, days: int = 0) -> None:
        self._loop = loop
        self._day_s = (19_700 + days) * DAY_S

    def now_ms(self) -> int:
        return 1000 * self._day_s + int(1000 * self._loop.time())

    def set_by(self, days_s: float) -> None:
        self._day_s += int(days_s)


def sim_time(clock_ms: int) -> float:
    """Return the simulated time at which the clock showed `clock_ms`, however it was set since. Seconds."""
    return clock_ms % (1000 * DAY_S) / 1000


class SimState:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.loop = SimLoop(plan.seed, plan.schedule)
        self.rng = random.Random(plan.seed + 1)
        self.clock = SimClock(self.loop)
        self.network = Network(self.loop, self.rng)
        self.data = MemoryData()
        #: How often each kind of act and of fault happened.
        self.counts: Counter[str] = Counter()
        self.crashed_at: list[float] = []
        self.restarted_at: list[float] = []
        #: Nodes, and the times between which each was paused.
        self.node_pauses: list[tuple[str, float, float]] = []
        self.workspace_id = ""
        self.session_ids: list[str] = []
        #: The Run of each prompt of the plan, once it is known.
        self.run_ids: dict[int, str] = {}
        #: When each Position was written.
        self.appended_at: dict[int, float] = {}
        #: The modes of each session, with the times at which they were written.
        self.modes: dict[str, list[tuple[float, Mode]]] = {}
        #: The tool processes that were started.
        self.starts: list[ProcessStart] = []
        #: The messages that rewinds removed.
        self.cut: dict[str, Message] = {}
        #: Commands that users have run.
        self.typed: Counter[str] = Counter()

    def is_fork(self, session_id: str) -> bool:
        """Is this the copy of a session that was made for a rewind?"""
        session = self.data.sessions.get(session_id)
        return session is not None and bool(session.parent_session_id) and not session.parent_run_id

    @property
    def store_failed(self) -> bool:
        return any(count and kind.startswith("store") for kind, count in self.counts.items())

    @property
    def was_interrupted(self) -> bool:
        """Was a server process killed or stopped, or did it start again?"""
        return bool(self.crashed_at or self.restarted_at)

    def process_was_lost(self, since: float, until: float) -> bool:
        """Was a server process killed, stopped or paused between these times? Its memory is gone then."""
        paused_at = [began for _, began, _ in self.node_pauses]
        return any(since <= at <= until for at in (*self.crashed_at, *self.restarted_at, *paused_at))

    @property
    def is_calm(self) -> bool:
        """Has no fault happened that a client could notice? Then every request is answered, and at once."""
        lost = self.network.cuts or self.counts["client that leaves"] or self.counts["link between nodes down"]
        return not (self.was_interrupted or self.store_failed or self.counts["node paused"] or lost)

    def new_client(self, network: SimTransport, number: int) -> Client:
        transport = Transport if self.plan.uses_http_library else ShortTransport
        client = Client(transport=transport(HOST, TOKEN, network))
        client.client_id = f"00000000-0000-4000-8000-{number:012d}"
        return client
