"""Fixtures that run a test once for each store implementation."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kedge.store.base import Store
from kedge.store.memory import MemoryData, MemoryStore
from kedge.store.sqlite import SqliteStore


class StoreData:
    """The data of a store, on which several stores can be opened in turn."""

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
async def data(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[StoreData]:
    data = StoreData(request.param, tmp_path)
    yield data
    await data.close()


@pytest.fixture
async def store(data: StoreData) -> Store:
    return await data.open()
