"""The input of every measure."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from bench.load import Client
from bench.report import Line
from bench.server import Address, Running


@dataclass(frozen=True, slots=True)
class Setting:
    #: The scripted model.
    model: Address
    #: A warm server, shared by all measures that do not start or kill their own.
    running: Running
    quick: bool

    def count(self, full: int, quick: int) -> int:
        return quick if self.quick else full

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        async with Client.open(self.running.address, self.running.server) as client:
            yield client


Measure = Callable[[Setting], Awaitable[list[Line]]]
