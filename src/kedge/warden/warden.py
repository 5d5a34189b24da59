"""Starts processes for the server through the keeper, and starts a new keeper if the old one was lost."""

from __future__ import annotations

import asyncio
import itertools
import os
from dataclasses import replace
from typing import cast

from kedge.waiting import wait_uncancelled
from kedge.warden import bubblewrap, landlock
from kedge.warden.base import (
    Mechanism,
    MechanismChoice,
    ProcessFailed,
    ProcessSpec,
    Sandbox,
    SandboxChoice,
    WardenFailed,
)
from kedge.warden.keeper_client import KeeperClient
from kedge.warden.keeper_protocol import KEEPER_MESSAGE_BYTES_MAX, KeeperMessage, encode
from kedge.warden.stdio import open_stdio
from kedge.warden.warden_process import WardenProcess

#: Processes being started at the same time. Each has up to three descriptors on their way, and the kernel bounds those.
STARTS_MAX = 32


class Warden:
    """`mechanism`: the way to hold trees together; "any" takes the best this machine has. `sandbox`: its layers."""

    def __init__(self, mechanism: MechanismChoice = "any", sandbox: SandboxChoice = "any") -> None:
        self._wanted = mechanism
        self._wanted_sandbox = sandbox
        self._client: KeeperClient | None = None
        self._opening = asyncio.Lock()
        self._starting = asyncio.Semaphore(STARTS_MAX)
        self._keys = itertools.count(1)
        self._sandbox = Sandbox()
        self._is_closed = False

    async def start(self) -> None:
        """WardenFailed if this machine cannot have a keeper."""
        await self._open()
        self._sandbox = await self._find_sandbox()

    @property
    def mechanism(self) -> Mechanism:
        return cast(Mechanism, self._started().mechanism)

    @property
    def sandbox(self) -> Sandbox:
        """What holds processes with `writable` on this machine."""
        return self._sandbox

    @property
    def keeper_pid(self) -> int:
        return self._started().keeper_pid

    async def run(self, spec: ProcessSpec) -> WardenProcess:
        """The process is executing when this returns. ProcessFailed says why it could not."""
        async with self._starting:
            self._started()
            client = await self._open()
            if not self._sandbox.is_available and spec.writable is not None:
                raise WardenFailed("This machine has no sandbox: neither Landlock (Linux 6.2) nor bubblewrap.")
            process = self._launch(client, spec, self._sandbox)
            try:
                await process.started()
            except asyncio.CancelledError:
                # Nobody will get it: whatever did start is gone before anybody goes on.
                await wait_uncancelled([asyncio.ensure_future(process.end(0.0))])
                raise
            except BaseException:
                client.send({"end": process.key, "grace_s": 0.0})
                raise
            return process

    async def close(self) -> None:
        """Kills everything that is still running; it is dead when this returns."""
        self._is_closed = True
        async with self._opening:
            if self._client is not None:
                await asyncio.shield(self._client.close())

    def _started(self) -> KeeperClient:
        if self._client is None:
            raise WardenFailed("The warden is not started.")
        return self._client

    async def _open(self) -> KeeperClient:
        async with self._opening:
            if self._is_closed:
                raise WardenFailed("The warden is closed; no process is started any more.")
            if self._client is not None:
                self._client.receive_pending()
            if self._client is None or self._client.is_lost:
                if self._client is not None:
                    await self._client.close()
                self._client = await KeeperClient.open(self._wanted)
            return self._client

    async def _find_sandbox(self) -> Sandbox:
        """Each layer is tried with a process that it holds, as later ones are."""
        wanted, abi = self._wanted_sandbox, self._started().landlock
        layers = Sandbox(landlock=abi if abi >= landlock.ABI_MIN and wanted in ("any", "landlock") else 0)
        if self.mechanism == "pid namespace" and wanted in ("any", "mounts"):
            with_mounts = replace(layers, mounts=True)
            layers = with_mounts if await self._works(with_mounts) else layers
        if not layers.is_available and wanted in ("any", "bubblewrap"):
            with_bubblewrap = Sandbox(bubblewrap=True)
            layers = with_bubblewrap if await self._works(with_bubblewrap) else layers
        return layers

    async def _works(self, sandbox: Sandbox) -> bool:
        # Nothing from PATH, which may lead into a workspace. Every system has this shell.
        spec = ProcessSpec(
            ("/bin/sh", "-c", ":"), "/", {"PATH": os.defpath}, writable=("/var",), protected=("/etc",), hidden=("/tmp",)
        )
        process = self._launch(await self._open(), spec, sandbox)
        try:
            await process.started()
            return (await process.wait()).code == 0
        except ProcessFailed:
            return False
        finally:
            await process.end(0)

    def _launch(self, client: KeeperClient, spec: ProcessSpec, sandbox: Sandbox) -> WardenProcess:
        if not spec.argv or "\0" in "".join((*spec.argv, *spec.env, *spec.env.values(), spec.cwd)):
            raise ProcessFailed("A command needs at least one word, and none of its words can contain a NUL.")
        key = next(self._keys)
        argv, writable = spec.argv, spec.writable
        if writable is not None and sandbox.bubblewrap:
            argv, writable = bubblewrap.wrapped(spec), None
        order: KeeperMessage = {
            "run": key,
            "argv": argv,
            "cwd": spec.cwd,
            "env": dict(spec.env),
            "writable": writable,
            "protected": spec.protected,
            "hidden": spec.hidden,
            "reachable": spec.reachable,
            "landlock": sandbox.landlock > 0,
            "mounts": sandbox.mounts,
            "stdin": spec.stdin is not None,
            "apart": spec.output == "apart",
        }
        if len(encode(order)) > KEEPER_MESSAGE_BYTES_MAX:
            raise ProcessFailed(f"{spec.argv[0]}: Argument list too long")
        try:
            streams = open_stdio(spec)
        except OSError as error:
            raise WardenFailed(f"No pipes for a process: {error.strerror}.") from None
        process = WardenProcess(key, client.send, streams)
        client.processes[key] = process
        client.send(order, streams.theirs)
        return process
