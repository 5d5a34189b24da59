"""The files of a workspace that match what a user types after `@`."""

from __future__ import annotations

import asyncio
import os

from kedge.core.name_matching import best_matches, can_be_mentioned
from kedge.engine.ports import Machine
from kedge.engine.workspace import Workspace
from kedge.errors import Busy
from kedge.tools.process_port import Process
from kedge.tools.ripgrep import END_GRACE_S, LIMITED, find_rg
from kedge.tools.tool_failed import ToolFailed
from kedge.waiting import wait_uncancelled

#: Names returned: more than a user reads. Items.
NAMES_MAX = 50
#: How long a listing may take; the names found by then are searched. Seconds.
LIST_S = 2.0
#: Output read of one listing: about 20,000 long names. Bytes.
LISTING_BYTES_MAX = 4_000_000
#: Listings at the same time, of all clients. Each takes a processor. Items.
LISTINGS_MAX = 2
#: Listings that wait: a client asks after each pause in typing. Items.
WAITING_MAX = 20
#: Without hidden and git-ignored files, as in the terminal interface.
_LIST = ("--no-config", "--no-require-git", "--no-messages", "--files", "--null", "--", "./")


class FileNames:
    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._listing = asyncio.Semaphore(LISTINGS_MAX)
        self._waiting = 0

    async def matching(self, workspace: Workspace, word: str) -> list[str]:
        """Return the names relative to the workspace, the best match first; none without ripgrep."""
        if self._waiting >= WAITING_MAX:
            raise Busy("The server lists files for many clients; try again in a moment.")
        self._waiting += 1
        try:
            async with self._listing:
                data = await self._listed(workspace)
        finally:
            self._waiting -= 1
        return await workspace.files.run(_matches, word, data)

    async def _listed(self, workspace: Workspace) -> bytes:
        workspace.require_directory()
        processes = await self._machine.processes(workspace.config, workspace.record.path, workspace.files)
        path = processes.environment.get("PATH", os.defpath)
        try:
            rg = await workspace.files.run(find_rg, path, workspace.root)
            return await _output(await processes.start((*LIMITED, rg, *_LIST), workspace.root)) if rg else b""
        except ToolFailed:
            return b""


async def _output(process: Process) -> bytes:
    data = bytearray()
    try:
        async with asyncio.timeout(LIST_S):
            while len(data) < LISTING_BYTES_MAX and (piece := await process.read()):
                data += piece
    except TimeoutError:
        pass  # the names listed by then are searched
    finally:
        await wait_uncancelled([asyncio.ensure_future(process.end(END_GRACE_S))])
        if (task := asyncio.current_task()) is not None and task.cancelling():
            raise asyncio.CancelledError
    return bytes(data)


def _matches(word: str, data: bytes) -> list[str]:
    *listed, _ = os.fsdecode(data).split("\0")  # the last is empty or incomplete
    names = (name.removeprefix("./") for name in listed if name.startswith("./"))
    return best_matches(word, filter(can_be_mentioned, names), NAMES_MAX)
