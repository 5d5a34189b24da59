"""The time from the death of a node to the first event of its Run on another one."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from pathlib import Path

from bench.load import Client, Connection
from bench.nodes import Database, node
from bench.report import Line, median
from bench.server import Address, Running, Server, home
from bench.setting import Setting
from kedge.store.leases import LEASE_S

SHORT_S = 2.0
#: Clusters of two nodes at the same time, each with its own schema, and kills in each of them. Items.
PAIRS, KILLS = 5, 10
#: Between two looks whether the other node has the workspace. Seconds.
LOOK_S = 0.02


async def failover(setting: Setting) -> list[Line]:
    """Kill the node that holds a workspace with an active Run, start it again, and kill the other one, again and again.

    No client asks the other node to open the workspace: it looks for orphans on its own."""
    lines = []
    kills = setting.count(KILLS, 1)
    for lease_s in (SHORT_S, LEASE_S):
        with Database.open() as database, home() as directory:
            pairs = [
                _pair(directory / f"pair{number}", setting.model, f"{database.url}&schema=pair{number}", lease_s, kills)
                for number in range(PAIRS)
            ]
            took_s = [one for pair in await asyncio.gather(*pairs) for one in pair]
        note = f"{min(took_s):.1f} to {max(took_s):.1f} s, {len(took_s)} kills"
        lines.append(Line(f"kill -9 to the next event, lease of {lease_s:g} s", median(took_s), "s", note))
    return lines


async def _pair(directory: Path, model: Address, store: str, lease_s: float, kills: int) -> list[float]:
    secret, token = secrets.token_hex(32), secrets.token_hex(16)
    servers = [node(directory / name, model, store, secret, token, lease_s) for name in ("a", "b")]
    took_s = []
    with contextlib.ExitStack() as stack:
        running = [await _started(stack, server) for server in servers]
        for number in range(kills):
            holder, other = number % 2, 1 - number % 2
            took_s.append(await _killed(directory, running[holder], running[other].address))
            running[holder] = await _started(stack, servers[holder])
    return took_s


async def _started(stack: contextlib.ExitStack, server: Server) -> Running:
    return await asyncio.to_thread(stack.enter_context, server.run())


async def _killed(directory: Path, holder: Running, other: Address) -> float:
    """Kill the holder of a workspace while a model answers. Return the seconds until another event of the Run."""
    async with Client.at_directory(holder.address, directory) as client:
        session = await client.session()
        async with client.stream() as stream:
            run_id = await client.submit(session, "script: say before | hang")
            await stream.until_delta(0)
            holder.kill()
            killed_at = time.perf_counter()
            last = max(frame.position or 0 for frame in stream.frames)
    async with Connection.open(other) as connection:
        survivor = Client(connection, client.workspace_id)
        while not await _is_served(survivor, run_id):  # noqa: ASYNC110 -- another process
            await asyncio.sleep(LOOK_S)
        async with survivor.stream(f"after={last}") as resumed:
            await resumed.until(lambda: [frame for frame in resumed.frames if frame.position])
            took_s = time.perf_counter() - killed_at
        await survivor.cancel(session)
    return took_s


async def _is_served(client: Client, run_id: str) -> bool:
    try:
        await client.run(run_id)
    except RuntimeError:  # 404 or 503
        return False
    return True
