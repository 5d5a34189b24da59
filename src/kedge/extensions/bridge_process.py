"""A bridge of one workspace, seen from the server: started on the first request, and again after it was lost."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from kedge.bridge.bridge_peer import BridgeLost, CallFailed, OnNotice, OnRequest, Peer
from kedge.bridge.bridge_protocol import FAILED, BadFrame, Frames
from kedge.core.approvals import Confinement
from kedge.core.untrusted_text import one_line
from kedge.tools.process_port import PipedProcess, Processes
from kedge.tools.tool_failed import ToolFailed
from kedge.waiting import wait_uncancelled

log = logging.getLogger("kedge.extensions")

T = TypeVar("T")

#: Starts of a bridge within `STARTS_S`. One that dies more often is broken; its calls fail at once. Items, seconds.
STARTS_MAX = 5
STARTS_S = 60.0
#: Between TERM and KILL. Seconds.
GRACE_S = 2.0
#: Limit of a reason in a message. Characters.
REASON_CHARS_MAX = 300


class BridgeProcess:
    """The process and its connection. Everything that the bridge starts is in its process tree, and ends with it."""

    def __init__(
        self,
        program: Literal["mcp", "lsp"],
        root: Path,
        processes: Callable[[], Awaitable[Processes]],
        on_request: OnRequest,
        on_notice: OnNotice,
        on_lost: Callable[[str], None] = lambda why: None,
        confinement: Confinement = "configured",
    ) -> None:
        self._program = program
        self._root = root
        self._processes = processes
        self._on_request = on_request
        self._on_notice = on_notice
        self._on_lost = on_lost
        self._confinement = confinement
        self._starting = asyncio.Lock()
        self._process: PipedProcess | None = None
        self._peer: Peer | None = None
        self._reading: asyncio.Task[None] | None = None
        self._starts: list[float] = []
        self._is_closed = False

    @property
    def is_running(self) -> bool:
        return self._peer is not None and not self._peer.lost

    async def request(self, method: str, params: Any, kind: type[T], timeout_s: float) -> T:
        """Send a request; the bridge is started if it does not run. CallFailed if it cannot be, or the call fails."""
        peer = await self._connected()
        return await peer.request(method, params, kind, timeout_s)

    async def end(self, why: str) -> None:
        """End a bridge that does not respond. The next request starts it again."""
        async with self._starting:
            await self._end(why)

    async def close(self) -> None:
        """End the bridge with everything that it started. Later requests are refused."""
        self._is_closed = True
        async with self._starting:
            await self._end("the workspace is being closed")

    async def _connected(self) -> Peer:
        async with self._starting:
            if self._is_closed:
                raise BridgeLost("the workspace is being closed")
            if self._peer is not None and not self._peer.lost:
                return self._peer
            await self._end("")
            now = asyncio.get_running_loop().time()
            self._starts = [at for at in self._starts if now - at < STARTS_S]
            if len(self._starts) >= STARTS_MAX:
                raise BridgeLost(
                    f"the {self._program} bridge ended {STARTS_MAX} times within a minute; try again later"
                )
            self._starts.append(now)
            argv = (sys.executable, "-I", "-m", "kedge.bridge.bridge_worker", self._program)
            try:
                process = await (await self._processes()).start_piped(argv, self._root, confinement=self._confinement)
            except ToolFailed as error:
                raise CallFailed(f"the {self._program} bridge cannot be started: {error}") from None
            self._process = process
            self._peer = peer = Peer(process.write, self._on_request, self._on_own_notice)
            self._reading = asyncio.get_running_loop().create_task(self._read(process, peer), name="bridge")
            return peer

    def _on_own_notice(self, method: str, params: msgspec.Raw) -> None:
        if method == FAILED and self._peer is not None:
            reason = one_line(str(msgspec.json.decode(params)), REASON_CHARS_MAX)
            self._peer.lose(f"the {self._program} bridge cannot start: {reason}")
        else:
            self._on_notice(method, params)

    async def _read(self, process: PipedProcess, peer: Peer) -> None:
        frames, why = Frames(), f"the {self._program} bridge ended unexpectedly"
        try:
            while data := await process.read():
                for message in frames.feed(data):
                    peer.receive(message)
        except BadFrame as error:
            why = f"the {self._program} bridge failed: {one_line(str(error), REASON_CHARS_MAX)}"
        except ToolFailed as error:
            why = f"the {self._program} bridge was lost: {error}"
        finally:
            if not self._is_closed:
                log.warning("%s (workspace %s)", peer.lost or why, self._root)
            peer.lose(why)
            self._on_lost(peer.lost)

    async def _end(self, why: str) -> None:
        process, reading = self._process, self._reading
        if process is None or reading is None:
            return
        if self._peer is not None and why:
            self._peer.lose(why)
        process.close_input()
        if left := await process.end(GRACE_S):
            log.error("processes of the %s bridge could not be ended: %s", self._program, left)
        reading.cancel()
        await wait_uncancelled([reading])
        self._process = self._reading = self._peer = None
