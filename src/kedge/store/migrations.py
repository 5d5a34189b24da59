"""Numbered SQL files bring a database up to date: all that are missing, in one transaction, or none.

The database says in `user_version` which file it has got to. Killed anywhere, it is at the old version or the new one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from importlib import resources

import apsw
from msgspec import Struct

from kedge.errors import StoreError

_FILE_NAME = re.compile(r"(\d{4})_(\w+)\.sql")


class Migration(Struct, frozen=True):
    number: int
    name: str
    sql: str


@cache
def shipped() -> tuple[Migration, ...]:
    """The files in `store/sql/`, by number, which count up from 1 without a gap."""
    found: list[Migration] = []
    for file in resources.files("kedge.store").joinpath("sql").iterdir():
        if match := _FILE_NAME.fullmatch(file.name):
            found.append(Migration(int(match[1]), match[2], file.read_text("utf-8")))
    found.sort(key=lambda migration: migration.number)
    numbers = [migration.number for migration in found]
    if numbers != list(range(1, len(found) + 1)):
        raise StoreError(f"the SQL files of this kedge are numbered {numbers}; they must count up from 1: install anew")
    return tuple(found)


def version_of(db: apsw.Connection) -> int:
    version = db.pragma("user_version")
    assert isinstance(version, int)
    return version


def migrate(db: apsw.Connection, migrations: Sequence[Migration]) -> int:
    """Bring `db` to the last of these; the number of files that it took."""
    latest = migrations[-1].number if migrations else 0
    version = version_of(db)
    if version == latest:
        return 0
    if version > latest:
        raise StoreError(
            f"the database {db.filename} is of a newer kedge (schema {version}, this one knows {latest}); "
            "use that kedge, or another data directory"
        )
    if version == 0 and db.execute("SELECT count(*) FROM sqlite_schema").fetchall() != [(0,)]:
        raise StoreError(f"{db.filename} is a database of another program; choose another data directory")
    pending = [migration for migration in migrations if migration.number > version]
    db.execute("BEGIN IMMEDIATE")
    try:
        for migration in pending:
            db.execute(migration.sql).fetchall()
        db.execute(f"PRAGMA user_version = {latest}")
        db.execute("COMMIT")
    except apsw.Error:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
    return len(pending)
