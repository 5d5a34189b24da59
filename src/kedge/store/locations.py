"""Copies and checks of stores that are named by URL: sqlite:///directory or postgresql://user:password@host/database."""

from __future__ import annotations

import os
from pathlib import Path
from types import ModuleType

from kedge.errors import BadConfig
from kedge.store import sqlite_transfer
from kedge.store.store_check import CheckReport, check_store
from kedge.store.transfer import CopyReport, CopyTarget, Report, StoreRows, copy_store

_SQLITE = "sqlite://"


async def check(url: str, report: Report) -> CheckReport:
    """Check a store. Servers may use a database meanwhile, but not a data directory."""
    store = await _open_rows(url, locked=False)
    try:
        return await check_store(store, report)
    finally:
        await store.close()


async def copy(source_url: str, target_url: str, report: Report) -> CopyReport:
    """Copy a store to an empty one, and lock both. If the copy fails, its target is empty again."""
    if _is_same(source_url, target_url):
        raise BadConfig("FROM and TO are the same store; copy to another one")
    source = await _open_rows(source_url, locked=True)
    try:
        target = await _open_target(target_url)
        try:
            return await copy_store(source, target, report)
        finally:
            await target.close()
    finally:
        await source.close()


async def _open_rows(url: str, *, locked: bool) -> StoreRows:
    if (directory := _directory(url)) is not None:
        return await sqlite_transfer.open_rows(directory)
    rows: StoreRows = await _postgres().open_rows(url, locked=locked)
    return rows


async def _open_target(url: str) -> CopyTarget:
    if (directory := _directory(url)) is not None:
        return await sqlite_transfer.open_target(directory)
    target: CopyTarget = await _postgres().open_target(url)
    return target


def _is_same(first: str, second: str) -> bool:
    """Return True if both URLs name the same store. Another spelling of a database is found by its lock."""
    directories = [_directory(url) for url in (first, second)]
    if None in directories:
        return first == second
    return len({os.path.realpath(str(directory)) for directory in directories}) == 1


def _directory(url: str) -> Path | None:
    """Return the directory of a SQLite store, None for a database."""
    if url.startswith(_SQLITE) and len(url) > len(_SQLITE):
        return Path(url.removeprefix(_SQLITE)).absolute()
    if url.startswith(("postgresql://", "postgres://")):
        return None
    # Without the rest of the URL, which may have a password.
    scheme = url.partition(":")[0]
    raise BadConfig(f"Unknown store {scheme}:...; use sqlite:///directory or postgresql://user:password@host/database")


def _postgres() -> ModuleType:
    try:
        from kedge.store import postgres_transfer
    except ModuleNotFoundError as error:
        if error.name != "asyncpg":
            raise
        raise BadConfig(
            "The store in PostgreSQL needs the extra: pip install 'kedge[postgres]' "
            "(in a clone: scripts/environment requirements-postgres.lock)."
        ) from None
    return postgres_transfer
