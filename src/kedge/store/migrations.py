"""Schema migrations: numbered SQL files, applied in one transaction.

`shipped` reads the files of every database; `migrate` is for SQLite, whose `user_version` holds the number of the last
applied file. A process killed during a migration leaves the old version or the new one.
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
def shipped(folder: str = "sql") -> tuple[Migration, ...]:
    """Return the files in this folder of `store/`, which are numbered from 1 without a gap."""
    migrations: list[Migration] = []
    for file in resources.files("kedge.store").joinpath(folder).iterdir():
        if match := _FILE_NAME.fullmatch(file.name):
            migrations.append(Migration(int(match[1]), match[2], file.read_text("utf-8")))
    migrations.sort(key=lambda migration: migration.number)
    numbers = [migration.number for migration in migrations]
    if numbers != list(range(1, len(migrations) + 1)):
        raise StoreError(f"this installation of kedge is incomplete: it has the SQL files {numbers}; reinstall kedge")
    return tuple(migrations)


def version_of(db: apsw.Connection) -> int:
    version = db.pragma("user_version")
    assert isinstance(version, int)
    return version


def migrate(db: apsw.Connection, migrations: Sequence[Migration]) -> int:
    """Apply the pending migrations; return their number."""
    latest = migrations[-1].number if migrations else 0
    version = version_of(db)
    if version == latest:
        return 0
    if version > latest:
        raise StoreError(
            f"the database {db.filename} was written by a newer kedge (schema {version}, supported: {latest}); "
            "upgrade kedge or choose another data directory"
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
