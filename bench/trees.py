"""Processes of tools: how long it takes until one runs, and until a cancelled one is dead with all it started."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from bench.load import Client, Frame, Stream
from bench.report import Line, median, p95
from bench.setting import Setting
from kedge.tools.background import GRACE_S
from kedge.warden.base import ProcessSpec
from kedge.warden.warden import Warden

#: Four processes: the shell, a child, one in a session of its own, an orphan.
TREE = "export BENCH_MARK={mark}; sleep 1000 & setsid sleep 1000 & (sleep 1000 &); touch ready-{mark}; wait"
#: The same, and none of them takes note of SIGTERM: that is inherited.
STUBBORN = "trap '' TERM; " + TREE + "; sleep 1000"
TREE_PROCESSES = 4
#: Between two looks whether something has come about. Seconds.
LOOK_S = 0.002


async def tool_start(setting: Setting) -> list[Line]:
    """`true`, in a shell: through the server; then, in turns, through the warden alone and as a plain subprocess."""
    count = setting.count(20, 8)
    # Never the same command again, for a model that repeats itself is stopped.
    steps = " | step | ".join(f"tool bash {json.dumps({'command': f'true {number}'})}" for number in range(count + 1))
    async with setting.client() as client, client.stream() as stream:
        run_id = await client.submit(await client.session(), f"script: {steps} | say done", skip_approvals=True)
        await stream.until_complete(run_id)
    first_ms, *through_ms = _call_times_ms(stream)
    started_ms, ended_ms, plain_ms = await _bare_times_ms(count, str(setting.running.server.workspace))
    through, warden, plain = median(through_ms), median(ended_ms), median(plain_ms)
    return [
        Line(
            "bash true, from the model's call to its result",
            through,
            "ms",
            f"95 % below {p95(through_ms):.1f} ms, the first of a server {first_ms:.0f} ms; "
            f"a plain subprocess: {plain:.1f} ms (x{through / plain:.1f})",
        ),
        Line(
            "warden, until a process runs",
            median(started_ms),
            "ms",
            f"until it is over: {warden:.1f} ms; a plain subprocess: {plain:.1f} ms (x{warden / plain:.1f})",
        ),
    ]


def _call_times_ms(stream: Stream) -> list[float]:
    """From each call as a client sees it to its result."""
    called: dict[str, float] = {}
    took_ms: list[float] = []
    for frame in stream.find("message"):
        for part in frame.payload["parts"]:
            if part["type"] == "tool_call" and part["data"]["finished"]:
                called.setdefault(part["data"]["id"], frame.at)
            elif part["type"] == "tool_result":
                took_ms.append((frame.at - called[part["data"]["tool_call_id"]]) * 1000)
    return took_ms


async def _bare_times_ms(count: int, directory: str) -> tuple[list[float], list[float], list[float]]:
    """(the warden until it runs, the warden until it is over, a plain subprocess until it is over)"""
    started_ms: list[float] = []
    ended_ms: list[float] = []
    plain_ms: list[float] = []
    warden = Warden()
    await warden.start()
    try:
        spec = ProcessSpec(("bash", "-c", "true"), directory, {"PATH": os.environ.get("PATH", os.defpath)})
        for _ in range(count):
            begun = time.perf_counter()
            process = await warden.run(spec)
            started_ms.append((time.perf_counter() - begun) * 1000)
            await process.wait()
            await process.end(0)
            ended_ms.append((time.perf_counter() - begun) * 1000)
            begun = time.perf_counter()
            plain = await asyncio.create_subprocess_exec("bash", "-c", "true", cwd=directory, env=dict(spec.env))
            await plain.wait()
            plain_ms.append((time.perf_counter() - begun) * 1000)
    finally:
        await warden.close()
    return started_ms, ended_ms, plain_ms


# --- a tree and its end ----------------------------------------------------------------------------------------------


async def cancel_to_dead(setting: Setting) -> list[Line]:
    """From the POST cancel until every process of the tree is dead, and until a client sees the end of the Run."""
    lines: list[Line] = []
    async with setting.client() as client, client.stream() as stream:
        for name, command, grace_s, number, count in (
            ("cancel to dead, a tree that obeys", TREE, 0.0, signal.SIGTERM, setting.count(15, 5)),
            (
                "cancel to dead, a stubborn tree, beyond its grace",
                STUBBORN,
                GRACE_S,
                signal.SIGKILL,
                setting.count(5, 2),
            ),
        ):
            dead_ms: list[float] = []
            seen_ms: list[float] = []
            bare_ms: list[float] = []
            for _ in range(count):
                dead_s, seen_s = await _cancelled(setting, client, stream, command)
                dead_ms.append((dead_s - grace_s) * 1000)
                seen_ms.append((seen_s - dead_s) * 1000)
                bare_ms.append(await _killed_s(setting.running.server.workspace, command, number) * 1000)
            dead, bare = median(dead_ms), median(bare_ms)
            note = (
                f"{TREE_PROCESSES} processes, {count} times, at most {max(dead_ms):.1f} ms; end seen "
                f"{median(seen_ms):.1f} ms later; a bare {number.name} to each: {bare:.1f} ms (x{dead / bare:.1f})"
            )
            lines.append(Line(name, dead, "ms", note))
    return lines


async def _cancelled(setting: Setting, client: Client, stream: Stream, command: str) -> tuple[float, float]:
    """(until the last of them was dead, until the end of the Run was seen), in seconds from the cancel."""
    mark, session, start = uuid.uuid4().hex, await client.session(), len(stream.frames)
    given = json.dumps({"command": command.format(mark=mark)})
    run_id = await client.submit(session, f"script: tool bash {given} | say never", skip_approvals=True)
    async with _deaths(setting.running.server.workspace, mark) as last_death:
        sent = time.perf_counter()
        await client.cancel(session)
        end: Frame = await stream.until_complete(run_id, start)
        died = await last_death()
    if (end.payload["outcome"], end.payload["cleanup"]) != ("cancelled", "clean"):
        raise RuntimeError(f"a cancel did not clean up: {end.payload}")
    return died - sent, end.at - sent


async def _killed_s(directory: Path, command: str, number: signal.Signals) -> float:
    """The baseline: the same tree as a plain subprocess, and one signal to each of its processes."""
    mark = uuid.uuid4().hex
    shell = await asyncio.create_subprocess_exec("bash", "-c", command.format(mark=mark), cwd=directory)
    async with _deaths(directory, mark) as last_death:
        sent = time.perf_counter()
        for pid in _marked(mark):
            os.kill(pid, number)
        died = await last_death()
    await shell.wait()
    return died - sent


@contextlib.asynccontextmanager
async def _deaths(directory: Path, mark: str) -> AsyncIterator[Callable[[], asyncio.Future[float]]]:
    """When the tree is complete: what tells the time of the last death in it, by the kernel's own word."""
    while not (directory / f"ready-{mark}").exists() or len(_marked(mark)) < TREE_PROCESSES:  # noqa: ASYNC110
        await asyncio.sleep(LOOK_S)
    loop = asyncio.get_running_loop()
    alive = {os.pidfd_open(pid) for pid in _marked(mark)}
    last: asyncio.Future[float] = loop.create_future()

    def died(handle: int) -> None:
        loop.remove_reader(handle)
        os.close(handle)
        alive.remove(handle)
        if not alive:
            last.set_result(time.perf_counter())

    for handle in alive:
        loop.add_reader(handle, died, handle)
    try:
        yield lambda: last
    finally:
        for handle in alive:
            loop.remove_reader(handle)
            os.close(handle)


def _marked(mark: str) -> list[int]:
    """The processes of this machine with the mark in their environment, and the shell that was given it."""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if (
                mark.encode()
                in Path(f"/proc/{entry}/environ").read_bytes() + Path(f"/proc/{entry}/cmdline").read_bytes()
            ):
                found.append(int(entry))
    return found
