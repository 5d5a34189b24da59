"""Throughput: prompts accepted over HTTP, and appends to the store."""

from __future__ import annotations

import asyncio
import time

from bench.load import Client
from bench.report import Line, median
from bench.runs import connections
from bench.server import home
from bench.setting import Setting
from kedge.core.events import RunAccepted
from kedge.core.records import LaneRecord, Prompt, RunOptions, RunRecord, SessionRecord, WorkspaceRecord
from kedge.store.base import LaneWrite, Store, Write
from kedge.store.sqlite import SqliteStore

CALLERS = 32
#: Prompts per session; the queue limit is 100. Items.
PROMPTS = 60


async def submit_rate(setting: Setting) -> list[Line]:
    """Submit prompts from concurrent callers. The first Run of each session hangs, so the others are queued."""
    rates: list[float] = []
    cpu_us: list[float] = []
    prompts = setting.count(PROMPTS, 20)
    async with setting.client() as client, connections(setting, CALLERS) as opened:
        callers = [Client(connection, client.workspace_id) for connection in opened]
        for _ in range(setting.count(3, 1)):
            sessions = [await client.session() for _ in callers]
            for session in sessions:
                await client.submit(session, "script: hang")

            async def call(caller: Client, session: str) -> None:
                for _ in range(prompts):
                    await caller.submit(session, "script: say hello")

            start, used = time.perf_counter(), setting.running.cpu_s
            await asyncio.gather(*(call(*pair) for pair in zip(callers, sessions, strict=True)))
            wall, cpu = time.perf_counter() - start, setting.running.cpu_s - used
            rates.append(CALLERS * prompts / wall)
            cpu_us.append(cpu / (CALLERS * prompts) * 1e6)
            for session in sessions:
                await client.cancel(session)
    note = f"{CALLERS} callers, durable; {median(cpu_us):.0f} us of CPU each"
    return [Line("prompts accepted", median(rates), "/s", note)]


async def append_rate(setting: Setting) -> list[Line]:
    """Append the same data as an accept directly to the store, in this process."""
    count = setting.count(100, 30)
    with home() as directory:
        store = SqliteStore(directory / "data")
        await store.open()
        try:
            record = await store.workspace("/bench", WorkspaceRecord("w", "/bench", 1, 1_000))
            start = time.perf_counter()
            await asyncio.gather(*(append(store, record.id, f"s{number}", count) for number in range(CALLERS)))
            together = CALLERS * count / (time.perf_counter() - start)
            commits = store.commits
            start = time.perf_counter()
            await append(store, record.id, "alone", count)
            alone = count / (time.perf_counter() - start)
        finally:
            await store.close()
    note = f"{CALLERS} callers, durable, {CALLERS * count / commits:.0f} per transaction"
    return [
        Line("store appends", together, "/s", note),
        Line("store appends, 1 caller", alone, "/s", "one disk flush each"),
    ]


async def append(store: Store, workspace_id: str, session_id: str, count: int) -> None:
    session = SessionRecord(session_id, workspace_id, "A title", 1, 1)
    for seq in range(1, count + 1):
        run_id = f"{session_id}-{seq}"
        run = RunRecord(run_id, session_id, workspace_id, seq, Prompt("Say hello."), RunOptions(), "digest", 1)
        lane = LaneWrite(LaneRecord(session_id, seq, seq + 1, 0), seq - 1)
        event = RunAccepted(run_id, seq, False, 1)
        await store.append(Write(workspace_id, ((session_id, event),), lane, (session,), (run,)))
