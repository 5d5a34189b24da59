"""The warden: starts processes through the keeper, and replaces a lost keeper."""

from __future__ import annotations

import asyncio
import itertools
import logging
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

log = logging.getLogger("kedge.warden")

#: Concurrent starts: each has up to three descriptors in flight, which the kernel limits. Items.
STARTS_MAX = 32

#: Keepers that one process is sent to: the second is new, so that a third would hang for the same reason. Keepers.
KEEPERS_MAX = 2

#: A program starts in some 20 ms. Its directory may be on a slow disk, or on a mount that does not answer. Seconds.
EXEC_S_MAX = 30.0


class Warden:
    """Starts processes in trees that can be killed as a whole, optionally in a sandbox."""

    def __init__(self, mechanism: MechanismChoice = "any", sandbox: SandboxChoice = "any") -> None:
        self._mechanism_choice = mechanism
        self._sandbox_choice = sandbox
        self._client: KeeperClient | None = None
        self._opening = asyncio.Lock()
        self._starting = asyncio.Semaphore(STARTS_MAX)
        self._keys = itertools.count(1)
        self._sandbox = Sandbox()
        self._is_closed = False
        #: See `stay_alive`; None: processes may run without a limit.
        self._alive_until: float | None = None

    async def start(self) -> None:
        """Start the keeper. Raises WardenFailed if that is not possible on this machine."""
        await self._open()
        self._sandbox = await self._find_sandbox()

    @property
    def mechanism(self) -> Mechanism:
        return cast(Mechanism, self._started().mechanism)

    @property
    def sandbox(self) -> Sandbox:
        """The sandbox layers that restrict processes with `writable`."""
        return self._sandbox

    @property
    def keeper_pid(self) -> int:
        return self._started().keeper_pid

    async def run(self, spec: ProcessSpec) -> WardenProcess:
        """Start a process. It has been executed on return; raises ProcessFailed with the reason if not."""
        async with self._starting:
            self._started()
            for keepers in range(1, KEEPERS_MAX + 1):
                client = await self._open()
                if not self._sandbox.is_available and spec.writable is not None:
                    raise WardenFailed("This machine has no sandbox: neither Landlock (Linux 6.2) nor bubblewrap.")
                if self._sandbox.network is None and not spec.network:
                    raise WardenFailed("This machine cannot take the network away from commands.")
                process = self._launch(client, spec, self._sandbox)
                try:
                    await process.started(EXEC_S_MAX)
                    break
                except asyncio.CancelledError:
                    # The caller will not receive the process: kill it before the cancellation continues.
                    ending = asyncio.ensure_future(process.end(0.0))
                    await wait_uncancelled([ending])
                    if left := ending.result():
                        log.error("processes of a cancelled start could not be ended: %s", ", ".join(map(str, left)))
                    raise
                except WardenFailed:
                    # A lost keeper that has not accepted the process has not begun it.
                    if process.is_accepted or keepers == KEEPERS_MAX:
                        raise
                except BaseException:
                    client.send({"end": process.key, "grace_s": 0.0})
                    raise
            return process

    def stay_alive(self, until: float) -> None:
        """Have the keeper kill all processes at this time, and start none, unless this is called again before.

        The time is that of CLOCK_BOOTTIME, in seconds. The keeper does that even if this process is stopped."""
        self._alive_until = until
        if self._client is not None:
            self._client.send({"alive_until": until})

    async def close(self) -> None:
        """Kill all processes that still run. They are dead on return."""
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
                raise WardenFailed("The warden is closed and starts no more processes.")
            if self._client is None or self._client.is_lost:
                if self._client is not None:
                    await self._client.close()
                self._client = await KeeperClient.open(self._mechanism_choice)
                if self._alive_until is not None:
                    self._client.send({"alive_until": self._alive_until})
            return self._client

    async def _find_sandbox(self) -> Sandbox:
        """Detect the layers by starting a process in each combination, the best first."""
        choice, abi = self._sandbox_choice, self._started().landlock
        has_namespaces = self.mechanism == "pid namespace"
        base = Sandbox(landlock=abi if abi >= landlock.ABI_MIN and choice in ("any", "landlock") else 0)
        candidates = [replace(base, mounts=True)] if has_namespaces and choice in ("any", "mounts") else []
        candidates += [base] if base.is_available else []
        candidates += [Sandbox(bubblewrap=True)] if choice in ("any", "bubblewrap") else []
        for layers in candidates:
            if has_namespaces or layers.bubblewrap:
                isolated = replace(layers, network="namespace")
                if await self._works(isolated):
                    return isolated
            filtered = replace(layers, network="filter")
            if not layers.bubblewrap and await self._works(filtered):
                return filtered
            if await self._works(layers):
                return layers
        return Sandbox()

    async def _works(self, sandbox: Sandbox) -> bool:
        # Not from PATH, which may lead into a workspace. Every system has this shell.
        spec = ProcessSpec(
            ("/bin/sh", "-c", ":"),
            "/",
            {"PATH": os.defpath},
            writable=("/var",),
            protected=("/etc",),
            hidden=("/tmp",),
            network=sandbox.network is None,
        )
        process = self._launch(await self._open(), spec, sandbox)
        try:
            await process.started(EXEC_S_MAX)
            return (await process.wait()).code == 0
        except ProcessFailed:
            return False
        finally:
            await process.end(0)

    def _launch(self, client: KeeperClient, spec: ProcessSpec, sandbox: Sandbox) -> WardenProcess:
        if not spec.argv or "\0" in "".join((*spec.argv, *spec.env, *spec.env.values(), spec.cwd)):
            raise ProcessFailed("A command needs at least one word, and its words cannot contain NUL characters.")
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
            "scratch": spec.scratch,
            "data_bytes_max": spec.data_bytes_max,
            "cpu_s_max": spec.cpu_s_max,
            "landlock": sandbox.landlock > 0,
            "mounts": sandbox.mounts,
            "network": None if spec.network or writable is None else sandbox.network,
            "stdin": spec.stdin is not None,
            "stderr": spec.separate_stderr,
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
