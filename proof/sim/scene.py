"""What everybody in a simulated world shares: its time, its chance, its network, its disk, and the names of things."""

from __future__ import annotations

import random
from collections import Counter

from kedge.client.client import Client
from kedge.client.http_transport import Transport
from kedge.store.memory import MemoryData
from proof.sim.loop import SimLoop
from proof.sim.network import Network, ShortTransport, SimTransport
from proof.sim.plan import DAY_S, Plan

HOST, TOKEN = "http://localhost:1", "0123456789abcdef"


class SimClock:
    """The machine's clock. It is set by whole days only, and no simulation lasts one: see `moment`."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self._day_s = 19_700 * DAY_S

    def now_ms(self) -> int:
        return 1000 * self._day_s + int(1000 * self._loop.time())

    def set_by(self, days_s: float) -> None:
        self._day_s += int(days_s)


def moment(read_ms: int) -> float:
    """The time of the simulation at which the clock showed this, whatever it has been set to since. Seconds."""
    return read_ms % (1000 * DAY_S) / 1000


class Scene:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.loop = SimLoop(plan.seed, plan.schedule)
        self.chance = random.Random(plan.seed + 1)
        self.clock = SimClock(self.loop)
        self.network = Network(self.loop, self.chance)
        self.data = MemoryData()
        #: How often each kind of deed and of fault happened.
        self.counted: Counter[str] = Counter()
        self.crashed_at: list[float] = []
        self.workspace_id = ""
        self.session_ids: list[str] = []
        #: Of each prompt of the plan, once it is known.
        self.run_ids: dict[int, str] = {}
        #: When each Position was written.
        self.appended_at: dict[int, float] = {}
        #: Commands that people have asked for.
        self.typed: Counter[str] = Counter()

    @property
    def store_failed(self) -> bool:
        return any(count and what.startswith("store") for what, count in self.counted.items())

    @property
    def was_interrupted(self) -> bool:
        """A process was lost or ended in the midst of things."""
        return bool(self.counted["crash"] or self.counted["orderly restart"])

    @property
    def is_calm(self) -> bool:
        """Nothing has happened that a client could notice: whatever it asks is answered, and at once."""
        lost = self.network.cuts or self.counted["client that leaves"]
        return not (self.was_interrupted or self.store_failed or lost)

    def new_client(self, network: SimTransport, number: int) -> Client:
        way = Transport if self.plan.takes_the_long_way else ShortTransport
        client = Client(transport=way(HOST, TOKEN, network))
        client.client_id = f"00000000-0000-4000-8000-{number:012d}"
        return client
