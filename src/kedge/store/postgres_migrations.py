"""Schema migrations of the PostgreSQL database: the files of `postgres_sql/`, applied in one transaction.

An advisory lock makes other processes wait that open the same schema. The table `kedge_schema` holds the number of the
last applied file, and the cluster that the database belongs to.
"""

from __future__ import annotations

from collections.abc import Sequence

from kedge.errors import StoreError, StoreUnavailable
from kedge.store.migrations import Migration
from kedge.store.postgres_connect import DatabaseUrl, PostgresConnection

#: The cluster of a schema while a copy fills it (`postgres_transfer`): no server may serve a part of a copy.
COPYING = "(unfinished copy)"


async def share(db: PostgresConnection, url: DatabaseUrl) -> None:
    """Note that this process uses the tables of the schema, for as long as the connection lives."""
    if not await db.fetchval("SELECT pg_try_advisory_lock_shared(hashtextextended($1, 0))", _use(url)):
        raise StoreUnavailable(
            f"the schema {url.schema!r} of {url} is being copied by `kedge store copy`; start again when that has ended"
        )


async def take_over(db: PostgresConnection, url: DatabaseUrl) -> bool:
    """Lock the schema for this connection alone; return False if a server or a copy uses it."""
    return bool(await db.fetchval("SELECT pg_try_advisory_lock(hashtextextended($1, 0))", _use(url)))


def _use(url: DatabaseUrl) -> str:
    return f"kedge store {url.schema}"


async def migrate(db: PostgresConnection, url: DatabaseUrl, migrations: Sequence[Migration], cluster_id: str) -> None:
    latest = migrations[-1].number
    async with db.transaction():
        await db.execute("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", f"kedge schema {url.schema}")
        stored = await stored_state(db, url)
        if not await db.fetchval("SELECT 1 FROM pg_namespace WHERE nspname = $1::text::name", url.schema):
            await db.execute(f"CREATE SCHEMA {_quoted(url.schema)}")
        version, stored_cluster = stored or (0, "")
        if version > latest:
            raise newer(url, version, latest)
        for migration in migrations[version:]:
            await db.execute(migration.sql)
        if version < latest:
            await db.execute("UPDATE kedge_schema SET version = $1", latest)
        if stored_cluster == cluster_id:
            return
        if stored_cluster == COPYING:
            raise unfinished_copy(url)
        if stored_cluster:
            raise StoreError(
                f"the schema {url.schema!r} of {url} belongs to the cluster {stored_cluster!r}, not "
                f"{cluster_id or 'to a single server'!r}: this database belongs to another cluster; choose another one"
            )
        await db.execute("UPDATE kedge_schema SET cluster_id = $1", cluster_id)


async def stored_state(db: PostgresConnection, url: DatabaseUrl) -> tuple[int, str] | None:
    """Return the version and the cluster; None if the schema does not exist or is empty."""
    tables = await db.fetch(
        "SELECT relname::text FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace"
        " WHERE nspname = $1::text::name AND relkind IN ('r', 'v', 'm', 'p')",
        url.schema,
    )
    if not tables:
        return None
    if "kedge_schema" not in {row[0] for row in tables}:
        raise StoreError(
            f"the schema {url.schema!r} of {url} has tables of another program; add ?schema=NAME to the URL of "
            "the store, or choose another database"
        )
    version, cluster_id = await db.fetchrow("SELECT version, cluster_id FROM kedge_schema")
    return int(version), str(cluster_id)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def newer(url: DatabaseUrl, version: int, latest: int) -> StoreError:
    return StoreError(
        f"the schema {url.schema!r} of {url} was written by a newer kedge (schema {version}, supported: "
        f"{latest}); upgrade kedge or choose another database"
    )


def unfinished_copy(url: DatabaseUrl) -> StoreError:
    return StoreError(
        f"the schema {url.schema!r} of {url} has a part of a copy that was interrupted; repeat `kedge store copy`, "
        "which empties it first, or drop the schema"
    )
