"""Clients that send each request to the other node, and repeat what was not answered."""

from __future__ import annotations

import asyncio
import random
from itertools import count
from pathlib import Path
from typing import Any

from tests.conformance.harness import Json
from tests.conformance.loops import Address, Follower, Lost, Refused, Wire, new_client

#: Before a request is repeated. Seconds.
PAUSE_S = 0.05
#: A client does not wait longer for a node that may be stopped. Seconds.
PATIENCE_S = 5.0
#: Durable events that a reader takes from one node. Items.
EVENTS_PER_NODE_MAX = 60


class Unknown(Exception):
    """The request was not answered, or with an error of the cluster: it may have been executed."""


class Traveller:
    """A client of one workspace."""

    def __init__(self, addresses: list[Address], directory: Path, first: int = 0) -> None:
        self._wires = [Wire(address) for address in addresses]
        self._next = count(first)
        self.directory = directory
        self.workspace = ""

    @property
    def at(self) -> str:
        return f"/workspaces/{self.workspace}"

    def close(self) -> None:
        for wire in self._wires:
            wire.close()

    async def once(self, method: str, path: str, body: Any = None, patience_s: float = 60.0) -> Any:
        """Return the reply of the next node. Unknown if it has none."""
        wire = self._wires[next(self._next) % len(self._wires)]
        try:
            async with asyncio.timeout(patience_s):
                status, reply = await wire.call(method, path, body)
        except (Lost, TimeoutError):
            wire.close()
            raise Unknown from None
        if status == 503:
            raise Unknown
        if status == 404 and reply["code"] == "workspace_not_found" and path != "/workspaces":
            await self.open()  # another node serves it now, or none
            raise Unknown
        assert status in (200, 202), f"{method} {path}: {status} {reply}"
        return reply

    async def call(self, method: str, path: str, body: Any = None) -> Any:
        """Return the reply to a request that may be executed twice."""
        while True:
            try:
                return await self.once(method, path, body, PATIENCE_S)
            except Unknown:
                await asyncio.sleep(PAUSE_S)

    async def open(self) -> None:
        body = {"path": str(self.directory), "client_id": new_client()}
        self.workspace = str((await self.call("POST", "/workspaces", body))["id"])

    async def session(self) -> str:
        return str((await self.call("POST", f"{self.at}/sessions", {"title": ""}))["id"])

    async def run(self, run_id: str) -> Json:
        run: Json = await self.call("GET", f"{self.at}/agent/runs/{run_id}")
        return run


async def follow(directory: Path, addresses: list[Address], reader: Follower, chance: random.Random) -> None:
    """Read the stream of a workspace for ever, some events from one node, then from the other."""
    traveller = Traveller(addresses, directory)
    for number in count(chance.randrange(2)):
        until = len(reader.seen) + chance.randrange(1, EVENTS_PER_NODE_MAX)
        try:
            await reader.follow(
                addresses[number % len(addresses)],
                lambda reader: len(reader.seen) >= until,  # noqa: B023 -- it ends before the next pass
            )
        except Refused as refused:
            if refused.args[0] not in (404, 503):
                raise
            await asyncio.sleep(PAUSE_S)
            await traveller.open()
            traveller.close()
