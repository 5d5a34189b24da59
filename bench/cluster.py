"""Several nodes on one PostgreSQL. All of them share the cores of one machine: so the CPU time of an operation says
more than its rate, and ratios within one run more than seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.load import Client, Connection, Stream
from bench.nodes import Cluster, Database, cluster
from bench.rates import CALLERS, PROMPTS, append
from bench.readers import Readers
from bench.report import Line, median, p95
from bench.server import Running, home
from bench.setting import Setting
from bench.streams import PACE_MS, SLOW_MS, Subject, stream_costs
from kedge.core.records import WorkspaceRecord
from kedge.engine.placement import ORPHANS_MAX
from kedge.store.leases import NodeInfo, NodeLoad
from kedge.store.postgres import PostgresStore
from kedge.store.sqlite import SqliteStore

#: Requests of a comparison, at most as many as a queue has; the first ones are not counted. Items.
QUEUED, WARM_UP = 95, 10
#: Workspaces, which are spread over the nodes. Items.
WORKSPACES = 8
#: The time in which nodes do nothing. Seconds.
IDLE_S = 12.0
#: Live Runs, those of one workspace, and questions to the database. Items.
LIVE, LIVE_EACH, LOOKS = 20_000, 20, 20
#: Runs at the same time. Items.
SESSIONS = 40
#: Readers whose memory is measured. Items.
READERS = 400


@dataclass(slots=True)
class Spent:
    """CPU time of servers and of the database, and wall-clock time. Seconds."""

    servers: float = 0.0
    database: float = 0.0
    wall: float = 0.0

    def each_us(self, count: int) -> str:
        """Return a note with the CPU time of one operation."""
        return f"{self.servers / count * 1e6:.0f} us of the node, {self.database / count * 1e6:.0f} us of PostgreSQL"


@contextlib.contextmanager
def spent(servers: Sequence[Running], database: Database) -> Iterator[Spent]:
    """Measure the body of the `with` statement."""
    result = Spent()
    before, began = (sum(one.cpu_s for one in servers), database.cpu_s), time.perf_counter()
    yield result
    result.wall = time.perf_counter() - began
    result.servers, result.database = sum(one.cpu_s for one in servers) - before[0], database.cpu_s - before[1]


def by_cpu(all_spent: list[Spent]) -> Spent:
    """Return the one with the median CPU time."""
    return sorted(all_spent, key=lambda one: one.servers + one.database)[len(all_spent) // 2]


# --- commands --------------------------------------------------------------------------------------------------------


async def commands(setting: Setting) -> list[Line]:
    """Submit prompts from concurrent callers, each to the node that holds its workspace, with 1, 2 and 4 nodes.

    The first Run of each session hangs, so the others are queued. One server with SQLite has the same load."""
    results: defaultdict[int, list[Spent]] = defaultdict(list)
    prompts = setting.count(PROMPTS, 20)
    with cluster(setting.model, 4) as opened, home() as directory:
        for number in range(setting.count(3, 2)):
            for nodes in (0, 1, 2, 4):
                servers = [setting.running] if nodes == 0 else opened.nodes[:nodes]
                directories = [directory / f"{number}-{nodes}-{index}" for index in range(WORKSPACES)]
                one = await _submit_all(servers, directories, prompts, opened.database)
                if number:  # the first round warms up
                    results[nodes].append(one)
    total = CALLERS * prompts
    sqlite, *clusters = (by_cpu(results[nodes]) for nodes in (0, 1, 2, 4))
    lines = []
    for nodes, one in zip((1, 2, 4), clusters, strict=True):
        note = f"x{clusters[0].wall / one.wall:.2f} of 1 node; CPU each: {one.each_us(total)}"
        lines.append(Line(f"prompts accepted, {nodes} node{'s' * (nodes > 1)}", total / one.wall, "/s", note))
    ratio = clusters[0].servers / sqlite.servers
    note = f"SQLite: {total / sqlite.wall:,.0f}/s, {sqlite.servers / total * 1e6:.0f} us of CPU each"
    return [*lines, Line("CPU of a node per prompt, by that of a server with SQLite", ratio, "x", note)]


async def _submit_all(servers: Sequence[Running], directories: list[Path], prompts: int, database: Database) -> Spent:
    async with contextlib.AsyncExitStack() as stack:
        callers: list[tuple[Client, str]] = []
        for index in range(CALLERS):
            directory = directories[index % len(directories)]
            directory.mkdir(exist_ok=True)
            address = servers[index % len(directories) % len(servers)].address
            client = await stack.enter_async_context(Client.at_directory(address, directory))
            callers.append((client, await client.session()))
            await client.submit(callers[-1][1], "script: hang")

        async def call(caller: Client, session: str) -> None:
            for _ in range(prompts):
                await caller.submit(session, "script: say hello")

        with spent(servers, database) as result:
            await asyncio.gather(*(call(*caller) for caller in callers))
        for caller, session in callers:
            await caller.cancel(session)
    return result


# --- the other node --------------------------------------------------------------------------------------------------


async def forwarded(setting: Setting) -> list[Line]:
    """Send requests to the node that holds the workspace, and to another one, alternating."""
    count = setting.count(QUEUED, 60)
    with cluster(setting.model, 2) as opened, home() as directory:
        holder, other = opened.nodes
        async with Client.at_directory(holder.address, directory) as direct, Connection.open(other.address) as second:
            clients = (direct, Client(second, direct.workspace_id))
            # One for each client: a queue is limited. Their first Runs hang.
            sessions = {client: await direct.session() for client in clients}
            run_ids = {client: await direct.submit(session, "script: hang") for client, session in sessions.items()}

            async def read(client: Client) -> None:
                await client.run(run_ids[client])

            async def submit(client: Client) -> None:
                await client.submit(sessions[client], "script: say hello")

            lines = [
                await _compared("GET of a Run through another node", read, clients, opened, count),
                await _compared("prompt through another node", submit, clients, opened, count),
            ]
            for session in sessions.values():
                await direct.cancel(session)
    return lines


async def _compared(
    name: str,
    call: Callable[[Client], Awaitable[None]],
    clients: tuple[Client, Client],
    opened: Cluster,
    count: int,
) -> Line:
    took_ms: tuple[list[float], list[float]] = ([], [])
    cpu_s = [0.0, 0.0]
    for number in range(count):
        for index, client in enumerate(clients):
            with spent(opened.nodes, opened.database) as one:
                await call(client)
            if number >= WARM_UP:
                took_ms[index].append(one.wall * 1000)
                cpu_s[index] += one.servers + one.database
    direct_us, through_us = (total / (count - WARM_UP) * 1e6 for total in cpu_s)
    cpu = f"CPU of all processes: {through_us:.0f} us, directly {direct_us:.0f} us"
    note = f"{cpu}; {median(took_ms[1]):.1f} ms, directly {median(took_ms[0]):.1f} ms"
    return Line(f"{name}, by a direct one", through_us / direct_us, "x", note)


async def streams(setting: Setting) -> list[Line]:
    """Read the answer of one Run at the node that works on it, and through another one, alternating."""
    lines = []
    words = setting.count(300, 200)
    with cluster(setting.model, 2) as opened, home() as directory:
        holder, other = opened.nodes
        async with Client.at_directory(holder.address, directory) as client:

            async def submit(script: str) -> None:
                await client.submit(await client.session(), script)

            def cpu_s() -> float:
                return opened.nodes_cpu_s

            for readers in (1, 50):
                both = [Subject(one.address, client.events(), cpu_s, submit) for one in (holder, other)]
                lines.append(await _stream_line(both, readers, words, setting.count(3, 1), opened))
            before = holder.rss_mib, other.rss_mib
            kib = []
            for index, one in enumerate((holder, other)):
                with Readers.open(one.address, client.events(), READERS):
                    await submit("script: say hello")
                    kib.append((one.rss_mib - before[index]) * 1024 / READERS)
    note = f"{READERS} readers; of one whose node forwards it {kib[1]:.0f} KiB"
    return [*lines, Line("memory per reader", kib[0], "KiB", note)]


async def _stream_line(both: list[Subject], readers: int, words: int, count: int, opened: Cluster) -> Line:
    """Open one group of readers after the other: both read the same stream."""
    costs = []
    with spent(opened.nodes, opened.database) as total:
        for subject in both:
            costs += await stream_costs([subject], readers, words, PACE_MS, count)
    direct, through = costs
    database_ms = total.database / (len(both) * count * words) * 1e6
    note = (
        f"CPU of both nodes per 1,000 words delivered: {through.per_1000_delivered * 1000:.2f} ms, directly "
        f"{direct.per_1000_delivered * 1000:.2f} ms, {direct.words_per_frame:.1f} words per frame; PostgreSQL "
        f"{database_ms:.0f} ms per 1,000 words of the model"
    )
    plural = "s" * (readers > 1)
    return Line(
        f"stream through another node, {readers} reader{plural}, by a direct one",
        through.cpu_s / direct.cpu_s,
        "x",
        note,
    )


async def sessions(setting: Setting) -> list[Line]:
    """Runs at the same time, at the pace of a model, each with a reader of its session: on a node, and on a server with
    SQLite."""
    words = setting.count(120, 60)
    results: list[Spent] = []
    with cluster(setting.model, 1) as opened, home() as directory:
        for server in (opened.nodes[0], setting.running):
            for round_words in (10, words):  # the first round warms up
                one = await _work(server, directory / str(server.pid), round_words, opened.database)
            results.append(one)
    on_node, sqlite = results
    session_s = SESSIONS * words * SLOW_MS / 1000
    note = (
        f"of the node, {on_node.database / session_s * 1000:.1f} ms of PostgreSQL; with SQLite "
        f"{sqlite.servers / session_s * 1000:.1f} ms; {SESSIONS} sessions, {1000 / SLOW_MS:.0f} words/s each"
    )
    return [Line("working session, CPU per second", on_node.servers / session_s * 1000, "ms", note)]


async def _work(server: Running, directory: Path, words: int, database: Database) -> Spent:
    async with contextlib.AsyncExitStack() as stack:
        opened: list[tuple[Client, str, Stream]] = []
        for number in range(SESSIONS):
            path = directory / str(number % WORKSPACES)
            path.mkdir(parents=True, exist_ok=True)
            client = await stack.enter_async_context(Client.at_directory(server.address, path))
            session = await client.session()
            opened.append((client, session, await stack.enter_async_context(client.stream(f"session_id={session}"))))
        script = f"script: pause {SLOW_MS} | words {words}"
        with spent([server], database) as result:
            run_ids = [await client.submit(session, script) for client, session, _ in opened]
            for run_id, (_, _, stream) in zip(run_ids, opened, strict=True):
                await stream.until_complete(run_id)
    return result


# --- Steps -----------------------------------------------------------------------------------------------------------


async def steps(setting: Setting) -> list[Line]:
    """One Run of many Steps, each with a call of a tool that does not exist: on a node, and on a server with SQLite."""
    count, calls = setting.count(5, 2), 20
    tools = " | step | ".join(f'tool nothing {{"call": {number}}}' for number in range(calls))
    script = f"script: {tools} | say done"
    results: list[list[Spent]] = []
    with cluster(setting.model, 1) as opened, home() as directory:
        for server in (opened.nodes[0], setting.running):
            results.append([])
            path = directory / str(server.pid)
            path.mkdir()
            async with Client.at_directory(server.address, path) as client, client.stream() as stream:
                for _ in range(count + 1):
                    with spent([server], opened.database) as one:
                        await stream.until_complete(await client.submit(await client.session(), script))
                    results[-1].append(one)
    on_node, sqlite = (by_cpu(runs[1:]) for runs in results)  # the first Run warms up
    note = f"{on_node.each_us(calls + 1)}; SQLite: {sqlite.servers / (calls + 1) * 1e6:.0f} us"
    ratio = (on_node.servers + on_node.database) / sqlite.servers
    return [Line("CPU per Step, by that of a server with SQLite", ratio, "x", note)]


# --- claims, and nodes that do nothing -------------------------------------------------------------------------------


async def claims(setting: Setting) -> list[Line]:
    """Open a new workspace, and wait for the first word of its first Run: on a node, which claims it, and on a server
    with SQLite, alternating."""
    took_ms: tuple[list[float], list[float]] = ([], [])
    with cluster(setting.model, 2) as opened, home() as directory:
        for number in range(setting.count(40, 10)):
            for index, server in enumerate((opened.nodes[number % 2], setting.running)):
                path = directory / f"{number}-{index}"
                path.mkdir()
                began = time.perf_counter()
                async with Client.at_directory(server.address, path) as client, client.stream() as stream:
                    run_id = await client.submit(await client.session(), "script: say hello")
                    first = await stream.until_delta(0)
                    if number >= 2:  # the first warm up
                        took_ms[index].append((first.at - began) * 1000)
                    await stream.until_complete(run_id)
        with spent(opened.nodes, opened.database) as idle:
            await asyncio.sleep(IDLE_S)
    note = f"workspace, stream, session, prompt; p95 {p95(took_ms[0]):.0f} ms; with SQLite {median(took_ms[1]):.0f} ms"
    each = f"PostgreSQL: {idle.database / 2 / IDLE_S * 1000:.2f} ms per second and node"
    return [
        Line("claim of a new workspace to the first delta", median(took_ms[0]), "ms", note),
        Line("idle node, CPU per second", idle.servers / 2 / IDLE_S * 1000, "ms", f"it renews its leases; {each}"),
    ]


async def looks(setting: Setting) -> list[Line]:
    """Ask the database what each node asks it five times per lease, with many workspaces and live Runs."""
    count = setting.count(LIVE, 2_000)
    workspaces = count // LIVE_EACH
    with Database.open() as database:
        store = PostgresStore(database.url)
        await store.open()
        try:
            await store.register(NodeInfo("bench", "", ("/",), store.incarnation, "bench"))
            for number in range(workspaces):
                path = f"/bench/{number}"
                record = await store.workspace(path, WorkspaceRecord(f"w{number}", path, 1, 1_000))
                await store.heartbeat(NodeLoad())
                await store.claim(record.id)
                await asyncio.gather(*(append(store, record.id, f"w{number}-{one}", 1) for one in range(LIVE_EACH)))
            before = database.cpu_s
            for _ in range(LOOKS):
                await store.orphans(ORPHANS_MAX)
            orphans_ms = (database.cpu_s - before) / LOOKS * 1000
            before = database.cpu_s
            for _ in range(LOOKS):
                await store.nodes()
            nodes_ms = (database.cpu_s - before) / LOOKS * 1000
        finally:
            await store.close()
    note = f"{count:,} live Runs in {workspaces:,} workspaces; the list of nodes {nodes_ms:.2f} ms"
    return [Line("CPU of PostgreSQL for one look for orphans", orphans_ms, "ms", note)]


# --- the store alone --------------------------------------------------------------------------------------------------


async def appends(setting: Setting) -> list[Line]:
    """Append the data of an accept directly to PostgreSQL and to SQLite, in this process."""
    count = setting.count(100, 30)
    with Database.open() as database, home() as directory:
        rates = {}
        for name, store in (("PostgreSQL", PostgresStore(database.url)), ("SQLite", SqliteStore(directory / "data"))):
            await store.open()
            try:
                rates[name] = await _append_all(store, database, count)
            finally:
                await store.close()
    together, alone, one_us, database_us = rates["PostgreSQL"]
    note = f"{CALLERS} callers, {WORKSPACES} workspaces, durable; x{together / rates['SQLite'][0]:.2f} of SQLite"
    cpu = f"CPU of each: {one_us:.0f} us of the client, {database_us:.0f} us of PostgreSQL"
    return [
        Line("PostgreSQL appends", together, "/s", f"{note}; {cpu}"),
        Line("PostgreSQL appends, 1 caller", alone, "/s", f"x{alone / rates['SQLite'][1]:.2f} of SQLite"),
    ]


async def _append_all(store: PostgresStore | SqliteStore, database: Database, count: int) -> tuple[float, ...]:
    """Return the appends per second of many callers and of one, and the CPU time of each of the former."""
    paths = [f"/bench/{number}" for number in range(WORKSPACES)]
    ids = [(await store.workspace(path, WorkspaceRecord(path[1:], path, 1, 1_000))).id for path in paths]
    await append(store, ids[0], "warm", 20)
    began, cpu_s, database_s = time.perf_counter(), time.process_time(), database.cpu_s
    await asyncio.gather(*(append(store, ids[one % WORKSPACES], f"s{one}", count) for one in range(CALLERS)))
    total = CALLERS * count
    together = total / (time.perf_counter() - began)
    used = [(time.process_time() - cpu_s) / total * 1e6, (database.cpu_s - database_s) / total * 1e6]
    began = time.perf_counter()
    await append(store, ids[0], "alone", count)
    return together, count / (time.perf_counter() - began), *used
