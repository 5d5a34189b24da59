"""Fixtures that run a test once for each store implementation."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from kedge.store.base import Store
from kedge.store.memory import MemoryData, MemoryStore
from kedge.store.postgres import PostgresStore
from kedge.store.postgres_connect import parse_url
from kedge.store.sqlite import SqliteStore
from tests.postgres_server import shared_url


class StoreData:
    """The data of a store, on which several stores can be opened in turn."""

    def __init__(self, kind: str, directory: Path, postgres: str = "") -> None:
        self.kind = kind
        self._directory = directory
        self._data = MemoryData()
        self._postgres = postgres
        self._opened: list[Store] = []

    def store(self) -> Store:
        if self.kind == "postgres":
            return PostgresStore(self._postgres)
        return MemoryStore(self._data) if self.kind == "memory" else SqliteStore(self._directory / "data")

    async def open(self) -> Store:
        store = self.store()
        await store.open()
        self._opened.append(store)
        return store

    async def close(self) -> None:
        for store in self._opened:
            await store.close()


@pytest.fixture(scope="session")
def postgres_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The server of this test run."""
    directory = tmp_path_factory.getbasetemp()
    return shared_url((directory.parent if "PYTEST_XDIST_WORKER" in os.environ else directory) / "postgres")


@pytest.fixture(scope="session")
def shared_schema(postgres_url: str) -> Iterator[str]:
    """The URL of a schema of this process, in which `database` leaves no rows."""
    url = new_schema(postgres_url)
    yield url
    asyncio.run(drop(url))


@pytest.fixture
def database(shared_schema: str) -> Iterator[str]:
    """The URL of an empty database. Creating the tables for each test would take most of its time."""
    yield shared_schema
    asyncio.run(empty(shared_schema))


@pytest.fixture
def new_database(postgres_url: str) -> Iterator[str]:
    """The URL of a schema that does not exist yet."""
    url = new_schema(postgres_url)
    yield url
    asyncio.run(drop(url))


async def drop(url: str) -> None:
    database = parse_url(url)
    await sql(url, f"DROP SCHEMA IF EXISTS {database.schema} CASCADE")


async def empty(url: str) -> None:
    tables = "SELECT relname FROM pg_class WHERE relnamespace = to_regnamespace($1) AND relkind = 'r'"
    rows = await sql(url, tables, parse_url(url).schema)
    names = [row[0] for row in rows if row[0] != "kedge_schema"]
    await sql(url, "; ".join(f"DELETE FROM {name}" for name in names))


async def sql(url: str, query: str, *values: Any) -> list[Any]:
    """Execute a query in the schema of this URL, past the store."""
    database = parse_url(url)
    db = await asyncpg.connect(database.dsn, server_settings={"search_path": database.schema})
    try:
        if query.count(";") > 0:
            await db.execute(query)
            return []
        rows: list[Any] = await db.fetch(query, *values)
        return rows
    finally:
        await db.close()


def new_schema(url: str) -> str:
    return with_schema(url, f"test_{secrets.token_hex(8)}")


def with_schema(url: str, schema: str) -> str:
    return f"{url}{'&' if '?' in url else '?'}schema={schema}"


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def data(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[StoreData]:
    data = StoreData(
        request.param, tmp_path, request.getfixturevalue("database") if request.param == "postgres" else ""
    )
    yield data
    await data.close()


@pytest.fixture
async def store(data: StoreData) -> Store:
    return await data.open()
