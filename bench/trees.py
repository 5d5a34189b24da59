"""Tool processes: the time to start one, and the time from a cancel to the death of its whole tree."""

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

#: Four processes: the shell, a child, a child in its own session, an orphan.
TREE = "export BENCH_MARK={mark}; sleep 1000 & setsid sleep 1000 & (sleep 1000 &); touch ready-{mark}; wait"
#: The same tree with SIGTERM ignored; children inherit that.
STUBBORN = "trap '' TERM; " + TREE + "; sleep 1000"
TREE_PROCESSES = 4
#: Poll interval. Seconds.
POLL_S = 0.002


async def tool_start(setting: Setting) -> list[Line]:
    """Run `true` in a shell: through the server, then alternately with the warden and as a plain subprocess."""
    count = setting.count(20, 8)
    # A different command each time: a model that repeats a call is stopped.
    steps = " | step | ".join(f"tool bash {json.dumps({'command': f'true {number}'})}" for number in range(count + 1))
    async with setting.client() as client, client.stream() as stream:
        run_id = await client.submit(await client.session(), f"script: {steps} | say done", mode="yolo")
        await stream.until_complete(run_id)
    first_ms, *through_ms = call_times_ms(stream)
    started_ms, ended_ms, plain_ms = await _bare_times_ms(count, str(setting.running.server.workspace))
    through, warden, plain = median(through_ms), median(ended_ms), median(plain_ms)
    return [
        Line(
            "bash true, from tool call to result",
            through,
            "ms",
            f"p95 {p95(through_ms):.1f} ms, first call of a server {first_ms:.0f} ms; "
            f"plain subprocess: {plain:.1f} ms (x{through / plain:.1f})",
        ),
        Line(
            "warden, time to start a process",
            median(started_ms),
            "ms",
            f"until it has ended: {warden:.1f} ms; plain subprocess: {plain:.1f} ms (x{warden / plain:.1f})",
        ),
    ]


def call_times_ms(stream: Stream, start: int = 0) -> list[float]:
    """Return the times from each call to its result, as seen by a client, from the frame with index `start` on."""
    called: dict[str, float] = {}
    took_ms: list[float] = []
    for frame in stream.find("message", start):
        for part in frame.payload["parts"]:
            if part["type"] == "tool_call" and part["data"]["finished"]:
                called.setdefault(part["data"]["id"], frame.at)
            elif part["type"] == "tool_result":
                took_ms.append((frame.at - called[part["data"]["tool_call_id"]]) * 1000)
    return took_ms


async def _bare_times_ms(count: int, directory: str) -> tuple[list[float], list[float], list[float]]:
    """Return the warden's times to start and to end a process, and the times of a plain subprocess."""
    started_ms: list[float] = []
    ended_ms: list[float] = []
    plain_ms: list[float] = []
    warden = Warden()
    await warden.start()
    try:
        spec = ProcessSpec(("bash", "-c", "true"), directory, {"PATH": os.environ.get("PATH", os.defpath)})
        for _ in range(count):
            start = time.perf_counter()
            process = await warden.run(spec)
            started_ms.append((time.perf_counter() - start) * 1000)
            await process.wait()
            await process.end(0)
            ended_ms.append((time.perf_counter() - start) * 1000)
            start = time.perf_counter()
            plain = await asyncio.create_subprocess_exec("bash", "-c", "true", cwd=directory, env=dict(spec.env))
            await plain.wait()
            plain_ms.append((time.perf_counter() - start) * 1000)
    finally:
        await warden.close()
    return started_ms, ended_ms, plain_ms


# --- the end of a process tree ---------------------------------------------------------------------------------------


async def cancel_to_dead(setting: Setting) -> list[Line]:
    """Time from the POST cancel to the death of every process of the tree, and to `run_complete` at a client."""
    lines: list[Line] = []
    async with setting.client() as client, client.stream() as stream:
        for name, command, grace_s, number, count in (
            ("cancel to dead process tree", TREE, 0.0, signal.SIGTERM, setting.count(15, 5)),
            (
                "cancel to dead process tree that ignores SIGTERM, excluding grace",
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
                f"{TREE_PROCESSES} processes, {count} samples, max {max(dead_ms):.1f} ms; run_complete "
                f"{median(seen_ms):.1f} ms later; bare {number.name} to each: {bare:.1f} ms (x{dead / bare:.1f})"
            )
            lines.append(Line(name, dead, "ms", note))
    return lines


async def _cancelled(setting: Setting, client: Client, stream: Stream, command: str) -> tuple[float, float]:
    """Return the seconds from the cancel to the last death, and to `run_complete`."""
    mark, session, start = uuid.uuid4().hex, await client.session(), len(stream.frames)
    arguments = json.dumps({"command": command.format(mark=mark)})
    run_id = await client.submit(session, f"script: tool bash {arguments} | say never", mode="yolo")
    async with _deaths(setting.running.server.workspace, mark) as last_death:
        sent = time.perf_counter()
        await client.cancel(session)
        end: Frame = await stream.until_complete(run_id, start)
        died = await last_death()
    if (end.payload["outcome"], end.payload["cleanup"]) != ("cancelled", "clean"):
        raise RuntimeError(f"a cancel did not clean up: {end.payload}")
    return died - sent, end.at - sent


async def _killed_s(directory: Path, command: str, number: signal.Signals) -> float:
    """The baseline: the same tree as a plain subprocess, with one signal sent to each process."""
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
    """Wait until the tree is complete, then yield a function for the time of its last death (from pidfds)."""
    while not (directory / f"ready-{mark}").exists() or len(_marked(mark)) < TREE_PROCESSES:  # noqa: ASYNC110
        await asyncio.sleep(POLL_S)
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
    """Return the processes with the mark in their environment or command line."""
    pids = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if (
                mark.encode()
                in Path(f"/proc/{entry}/environ").read_bytes() + Path(f"/proc/{entry}/cmdline").read_bytes()
            ):
                pids.append(int(entry))
    return pids
