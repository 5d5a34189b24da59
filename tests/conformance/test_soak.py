"""G15: an hour of light and varied work. Resource usage must not grow in the second half.

KEDGE_SOAK_S sets another duration; caches fill in the first half. `pytest -m long -k soak -s` prints the samples.

Expected growth: SQLite's cache of the writing connection (2 MB, full after some 600 actions), the ring of the feed
(1 MB), the threads that read files, a table of Python that doubles once (1 MB after some 3,700 actions; by its size,
the interned names). KEDGE_SOAK_ACTS_PER_S=100 runs as fast as possible: then the memory per thousand actions counts.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import median

import pytest

from proof.figures import Figure, proof
from tests.conformance.harness import WAIT_S, Json, Server, unique
from tests.conformance.loops import Address, Envelope, Follower, Wire, address_of, new_client, open_workspace
from tests.conformance.test_i_agent import call
from tests.conformance.watching import open_files, words

SOAK_S = float(os.environ.get("KEDGE_SOAK_S", "3600"))
#: Samples, each taken while the server is idle. Items.
SAMPLES = min(240, max(8, int(SOAK_S / 5)))
#: With three, the server is busy for about a twentieth of the time. Items per second.
ACTS_PER_S = float(os.environ.get("KEDGE_SOAK_ACTS_PER_S", "3"))
#: Actions between two samples. Items.
ACTS = max(4, int(SOAK_S / SAMPLES * ACTS_PER_S))
AT_ONCE = 3
#: Limit of the growth in the second half. Bytes per hour.
SLOPE_BYTES_PER_H = 1_000_000
#: The size of a new database, and of one event in its log (217 were measured). Bytes.
DATABASE_BYTES_MIN, EVENT_BYTES_MAX = 5_000_000, 400
#: The shortest soak with a slope: in a shorter one, kilobytes of noise become megabytes per hour, and the expected
#: growth does not end in the first half. Seconds.
SLOPE_S_MIN = 2700.0
#: Idle connections to the model are closed after a while, so the number of files varies. Items.
FILES_NOISE = 6
#: The main thread, two of the store, and the pool of the event loop, which grows on demand. Items.
THREADS_MAX = 3 + min(32, (os.cpu_count() or 1) + 4)
WAL_BYTES_MAX = 32 * 1024 * 1024
#: Settings that make the memory of the process follow its use, without cached arenas of the allocator.
ALLOCATOR = {
    "PYTHONMALLOC": "malloc",
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_TRIM_THRESHOLD_": "65536",
    "MALLOC_MMAP_THRESHOLD_": "65536",
}


@dataclass
class Sample:
    at_s: float
    acts: int
    memory_bytes: int
    files: int
    threads: int


class Soak:
    def __init__(self, server: Server, home: Path, seed: int) -> None:
        self.server, self.home = server, home
        self.address: Address = address_of(server.url, server.token)
        self.chance = random.Random(seed)
        self.workspace = ""
        self.samples: list[Sample] = []
        self.done: Counter[str] = Counter()
        self.asks: asyncio.Queue[str] = asyncio.Queue()
        self.follower = Follower("")
        self.events = 0
        self._kinds: list[Callable[[Wire, str], Awaitable[None]]] = [
            self.talk,
            self.talk,
            self.look,
            self.command,
            self.cancel,
            self.approve,
            self.queue,
            self.come_and_go,
            self.other_workspace,
            self.fork_and_search,
        ]

    # --- actions --------------------------------------------------------------------------------------------

    async def act(self, kind: Callable[[Wire, str], Awaitable[None]]) -> None:
        wire = Wire(self.address)
        path = f"/workspaces/{self.workspace}/sessions"
        try:
            session = (await wire.expect(200, "POST", path, {"title": "soak"}))["id"]
            await kind(wire, session)
            wire.close()  # the server closes idle connections after some seconds
            await wire.expect(200, "DELETE", f"{path}/{session}")
        finally:
            wire.close()
        self.done[getattr(kind, "__name__", "")] += 1

    async def submit(self, wire: Wire, session: str, script: str, **more: object) -> str:
        body = {"session_id": session, "prompt": f"script: {script}", "run_id": unique("run"), **more}
        reply = await wire.expect(202, "POST", f"/workspaces/{self.workspace}/agent", body)
        return str(reply["run_id"])

    async def end_of(self, wire: Wire, run_id: str) -> Json:
        path = f"/workspaces/{self.workspace}/agent/runs/{run_id}/wait?timeout_s={WAIT_S}"
        run: Json = await wire.expect(200, "GET", path)
        assert run["state"] == "ended", run
        return run

    async def says(self, wire: Wire, session: str, script: str, text: str, **more: object) -> str:
        """Make a Run with this text, and return the id of its last message."""
        run = await self.end_of(wire, await self.submit(wire, session, script, **more))
        assert (run["outcome"], run["text"]) == ("completed", text), run
        return str(run["message_id"])

    async def talk(self, wire: Wire, session: str) -> None:
        count = self.chance.randint(20, 400)
        await self.says(wire, session, f"think so | pause 1 | words {count}", words(count))

    async def look(self, wire: Wire, session: str) -> None:
        tools = f"{call('ls')} | {call('grep', pattern='needle')} | step | {call('view', path='hay.txt')}"
        await self.says(wire, session, f"{tools} | say seen", "seen")

    async def command(self, wire: Wire, session: str) -> None:
        await self.says(wire, session, f"{call('bash', command='seq 2000; sleep 0.1')} | say ran", "ran", mode="yolo")

    async def cancel(self, wire: Wire, session: str) -> None:
        run_ids = [await self.submit(wire, session, f"say on | {what} | hang") for what in ("head", "say more")]
        await wire.expect(200, "POST", f"/workspaces/{self.workspace}/agent/sessions/{session}/cancel")
        for run_id in run_ids:
            assert (await self.end_of(wire, run_id))["outcome"] == "cancelled"

    async def approve(self, wire: Wire, session: str) -> None:
        run_id = await self.submit(wire, session, f"{call('bash', command='touch asked')} | say answered")
        body = {"id": await self.asks.get(), "action": self.chance.choice(("allow", "deny"))}
        wire.close()
        path = f"/workspaces/{self.workspace}/permissions/grant?client_id={self.follower.client_id}"
        await wire.expect(200, "POST", path, {**body, "message": ""})
        await self.end_of(wire, run_id)

    async def queue(self, wire: Wire, session: str) -> None:
        for run_id in [await self.submit(wire, session, f"pause 2 | say a b {number}") for number in range(4)]:
            assert (await self.end_of(wire, run_id))["outcome"] == "completed"

    async def come_and_go(self, wire: Wire, session: str) -> None:
        reader = Follower(self.workspace, deltas=bool(self.chance.randrange(2)))
        await reader.follow(self.address, lambda reader: reader.position is not None)
        run_id = await self.submit(wire, session, "pause 3 | words 100")

        def has_ended(reader: Follower) -> bool:
            return any(kind[1:3] == ("run_complete", run_id) for kind in reader.seen)

        while not has_ended(reader):
            how = self.chance.choice(("abort", "close", "half-close"))
            await reader.follow(self.address, has_ended, bytes_max=self.chance.randint(300, 3_000), how=how)

    async def other_workspace(self, wire: Wire, session: str) -> None:
        """Use one of a few workspaces; with new ones the store would grow."""
        directory = self.home / f"other-{self.chance.randrange(6)}"
        directory.mkdir(exist_ok=True)
        client = new_client()
        body = {"path": str(directory), "client_id": client}
        other = (await wire.expect(200, "POST", "/workspaces", body))["id"]
        made = await wire.expect(200, "POST", f"/workspaces/{other}/sessions", {"title": ""})
        await wire.expect(200, "DELETE", f"/workspaces/{other}/sessions/{made['id']}")
        await wire.expect(200, "DELETE", f"/workspaces/{other}?client_id={client}")

    async def fork_and_search(self, wire: Wire, session: str) -> None:
        kept = {"message_id": await self.says(wire, session, "say something to find", "something to find")}
        forked = await wire.expect(200, "POST", f"/workspaces/{self.workspace}/sessions/{session}/fork", kept)
        await wire.expect(200, "GET", f"/workspaces/{self.workspace}/search?q=something")
        await wire.expect(200, "DELETE", f"/workspaces/{self.workspace}/sessions/{forked['id']}")

    # --- the soak ------------------------------------------------------------------------------------------------

    def hook(self, position: int | None, envelope: Envelope) -> None:
        self.events += position is not None
        if envelope.type == "permission_request" and position is not None:
            self.asks.put_nowait(envelope.payload.payload.id)
        if len(self.follower.seen) > 1000:
            del self.follower.seen[:-1]

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        began, wire = loop.time(), Wire(self.address)
        self.workspace = await open_workspace(wire, self.home / "workspace")
        wire.close()
        self.follower = Follower(self.workspace, position=0, hook=self.hook)
        following = asyncio.create_task(self.follower.follow(self.address))
        try:
            for number in range(1, SAMPLES + 1):
                kinds = [self.chance.choice(self._kinds) for _ in range(ACTS)]
                for first in range(0, ACTS, AT_ONCE):
                    await asyncio.gather(*(self.act(kind) for kind in kinds[first : first + AT_ONCE]))
                    part = (number - 1 + min(1, (first + AT_ONCE) / ACTS)) / SAMPLES
                    await until(began + SOAK_S * part)
                self.samples.append(await self.sample(loop.time() - began))
                print(f"{self.samples[-1]} {self.disk_bytes()}", flush=True)
                assert not following.done(), "the stream ended"
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    async def sample(self, at_s: float) -> Sample:
        """Take a sample while the server is idle."""
        wire = Wire(self.address)
        async with asyncio.timeout(WAIT_S):
            while "kedge_streams_open 1\n" not in (await wire.expect(200, "GET", "/metrics")):
                pass
        assert await wire.expect(200, "GET", "/runs") == []
        wire.close()
        status = dict(line.split(":", 1) for line in Path(f"/proc/{self.server.pid}/status").read_text().splitlines())
        files = open_files(self.server.pid)
        return Sample(at_s, self.done.total(), int(status["RssAnon"].split()[0]) * 1024, files, int(status["Threads"]))

    def disk_bytes(self) -> tuple[int, int]:
        """Return the size of the database and of its WAL."""
        files = [self.server.data_dir / name for name in ("kedge.db", "kedge.db-wal")]
        return files[0].stat().st_size, files[1].stat().st_size


async def until(due: float) -> None:
    """Wait for the time of the next action."""
    is_due = asyncio.Event()
    asyncio.get_running_loop().call_at(due, is_due.set)
    await is_due.wait()


def slope(points: list[tuple[float, float]]) -> float:
    """Return the Theil-Sen slope, the median over all pairs: robust against a step and outliers."""
    return median((late[1] - early[1]) / (late[0] - early[0]) for early, late in combinations(points, 2))


@pytest.fixture
def allocator() -> Iterator[None]:
    before = {name: os.environ.get(name) for name in ALLOCATOR}
    os.environ.update(ALLOCATOR)
    yield
    for name, value in before.items():
        if value is None:
            del os.environ[name]
        else:
            os.environ[name] = value


@pytest.mark.long
@pytest.mark.proof
@pytest.mark.timeout(2 * SOAK_S + 600)
async def test_a_soak_does_not_grow_the_server(
    allocator: None, own_server: Callable[..., Server], tmp_path: Path
) -> None:
    seed = int(os.environ.get("KEDGE_SEED", "1"))
    server = own_server("[server]\nheartbeat_s = 5\n", titles=True)
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    (workspace / "hay.txt").write_text("hay\nneedle\nhay\n")
    # A shortened soak is not recorded as a figure.
    with proof("G15", "acts of an hour's soak", "leaks") if SOAK_S >= 3600 else nullcontext(Figure()) as figure:
        soak = Soak(server, tmp_path, seed)
        await soak.run()
        first, second = soak.samples[: SAMPLES // 2], soak.samples[SAMPLES // 2 :]
        per_h = slope([(sample.at_s / 3600, sample.memory_bytes) for sample in second])
        per_1000_acts = slope([(sample.acts / 1000, sample.memory_bytes) for sample in second])
        database, wal = soak.disk_bytes()
        figure.count = soak.done.total()
        if SOAK_S >= SLOPE_S_MIN:
            figure.notes["memory slope of the second half"] = f"{per_h / 1e6:+.2f} MB per hour"
            figure.notes["memory kept for a thousand acts"] = f"{per_1000_acts / 1e3:+.0f} kB"
        figure.notes["memory at the end"] = f"{second[-1].memory_bytes / 1e6:.1f} MB"
        figure.notes["files, threads at the end"] = f"{second[-1].files}, {second[-1].threads}"
        figure.notes["events in the log"] = soak.events
        figure.notes["database, WAL at the end"] = f"{database / 1e6:.1f} MB, {wal / 1e6:.1f} MB"
        figure.notes["duration"] = f"{SOAK_S:.0f} s"
        assert set(soak.done) == {getattr(kind, "__name__", "") for kind in soak._kinds}
        assert wal < WAL_BYTES_MAX
        # Sessions are deleted repeatedly: only the log remains, which is trimmed at the start of a server.
        assert database < DATABASE_BYTES_MIN + soak.events * EVENT_BYTES_MAX, f"{database} bytes, {soak.events} events"
        before, after = [max(sample.files for sample in half) for half in (first, second)]
        assert after <= before + FILES_NOISE, f"files: {before}, then {after}"
        assert max(sample.threads for sample in soak.samples) <= THREADS_MAX
        if SOAK_S >= SLOPE_S_MIN:
            assert per_h < SLOPE_BYTES_PER_H, f"{per_h / 1e6:.2f} MB per hour; seed {seed}"
        assert "Traceback" not in server.log, server.log[-3000:]
    shutil.rmtree(tmp_path / "server-0")
