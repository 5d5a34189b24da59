"""Starts processes for the server through the keeper, and starts a new keeper if the old one was lost."""

from __future__ import annotations

import asyncio
import itertools
import os
from typing import Literal, cast

from kedge.waiting import wait_out
from kedge.warden import bubblewrap, landlock
from kedge.warden.base import Mechanism, ProcessFailed, ProcessSpec, Wanted, WardenFailed
from kedge.warden.lines import LINE_BYTES_MAX, Line, encode
from kedge.warden.link import Link
from kedge.warden.process import Process
from kedge.warden.streams import open_streams

#: Processes being started at the same time. Each has up to three descriptors on their way, and the kernel bounds those.
STARTS_MAX = 32

Sandbox = Literal["landlock", "bubblewrap", "none"]


class Warden:
    """`mechanism`: the way to hold trees together; "any" takes the best this machine has."""

    def __init__(self, mechanism: Wanted = "any") -> None:
        self._wanted = mechanism
        self._link: Link | None = None
        self._opening = asyncio.Lock()
        self._starting = asyncio.Semaphore(STARTS_MAX)
        self._keys = itertools.count(1)
        self._sandbox: Sandbox = "none"
        self._is_closed = False

    async def start(self) -> None:
        """WardenFailed if this machine cannot have a keeper."""
        await self._open()
        self._sandbox = await self._find_sandbox()

    @property
    def mechanism(self) -> Mechanism:
        return cast(Mechanism, self._started().mechanism)

    @property
    def sandbox(self) -> str:
        """What holds processes with `writable` on this machine: "landlock ABI 5", "bubblewrap" or "none"."""
        return f"landlock ABI {self._started().landlock}" if self._sandbox == "landlock" else self._sandbox

    @property
    def keeper_pid(self) -> int:
        return self._started().keeper_pid

    async def run(self, spec: ProcessSpec) -> Process:
        """The process is executing when this returns. ProcessFailed says why it could not."""
        async with self._starting:
            self._started()
            link = await self._open()
            if self._sandbox == "none" and spec.writable is not None:
                raise WardenFailed("This machine has no sandbox: neither Landlock (Linux 6.2) nor bubblewrap.")
            process = self._launch(link, spec)
            try:
                await process.started()
            except asyncio.CancelledError:
                # Nobody will get it: whatever did start is gone before anybody goes on.
                await wait_out([asyncio.ensure_future(process.end(0.0))])
                raise
            except BaseException:
                link.send({"end": process.key, "grace_s": 0.0})
                raise
            return process

    async def close(self) -> None:
        """Kills everything that is still running; it is dead when this returns."""
        self._is_closed = True
        async with self._opening:
            if self._link is not None:
                await asyncio.shield(self._link.close())

    def _started(self) -> Link:
        if self._link is None:
            raise WardenFailed("The warden is not started.")
        return self._link

    async def _open(self) -> Link:
        async with self._opening:
            if self._is_closed:
                raise WardenFailed("The warden is closed; no process is started any more.")
            if self._link is not None:
                self._link.look()
            if self._link is None or self._link.is_lost:
                if self._link is not None:
                    await self._link.close()
                self._link = await Link.open(self._wanted)
            return self._link

    async def _find_sandbox(self) -> Sandbox:
        if self._started().landlock >= landlock.ABI_MIN:
            return "landlock"
        trial = ProcessSpec(bubblewrap.wrapped(("true",), ()), "/", {"PATH": os.environ.get("PATH", os.defpath)})
        try:
            process = await self.run(trial)
        except ProcessFailed:
            return "none"
        try:
            return "bubblewrap" if (await process.wait()).code == 0 else "none"
        finally:
            await process.end(0)

    def _launch(self, link: Link, spec: ProcessSpec) -> Process:
        if not spec.argv or "\0" in "".join((*spec.argv, *spec.env, *spec.env.values(), spec.cwd)):
            raise ProcessFailed("A command needs at least one word, and none of its words can contain a NUL.")
        key = next(self._keys)
        argv, writable = spec.argv, spec.writable
        if writable is not None and self._sandbox == "bubblewrap":
            argv, writable = bubblewrap.wrapped(argv, writable), None
        order: Line = {
            "run": key,
            "argv": argv,
            "cwd": spec.cwd,
            "env": dict(spec.env),
            "writable": writable,
            "stdin": spec.stdin is not None,
            "apart": spec.output == "apart",
        }
        if len(encode(order)) > LINE_BYTES_MAX:
            raise ProcessFailed(f"{spec.argv[0]}: Argument list too long")
        try:
            streams = open_streams(spec)
        except OSError as error:
            raise WardenFailed(f"No pipes for a process: {error.strerror}.") from None
        process = Process(key, link.send, streams)
        link.processes[key] = process
        link.send(order, streams.theirs)
        return process
