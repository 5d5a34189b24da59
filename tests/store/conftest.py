"""Every test that asks for `store` or `place` runs once for each store there is."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kedge.store.base import Store
from kedge.store.memory import MemoryData, MemoryStore
from kedge.store.sqlite import SqliteStore


class Place:
    """Where a store keeps its data: stores can be opened on it one after the other."""

    def __init__(self, kind: str, directory: Path) -> None:
        self.kind = kind
        self._directory = directory
        self._data = MemoryData()
        self._opened: list[Store] = []

    def store(self) -> Store:
        return MemoryStore(self._data) if self.kind == "memory" else SqliteStore(self._directory / "data")

    async def open(self) -> Store:
        store = self.store()
        await store.open()
        self._opened.append(store)
        return store

    async def close(self) -> None:
        for store in self._opened:
            await store.close()


@pytest.fixture(params=["memory", "sqlite"])
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    place = Place(request.param, tmp_path)
    yield place
    await place.close()


@pytest.fixture
async def store(place: Place) -> Store:
    return await place.open()
