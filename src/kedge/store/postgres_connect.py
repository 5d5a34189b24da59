"""Connections to PostgreSQL: the URL, the settings of a connection, text values, and errors."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

import asyncpg

from kedge.errors import BadConfig, KedgeError, StoreError, StoreUnavailable, WrongType
from kedge.store import codec

SCHEMA = "kedge"
#: The limits of a connection attempt, of a statement, and of a wait for a lock. Work in one statement takes
#: milliseconds; one that takes this long waits for a disk or for a stopped process. Seconds.
CONNECT_S, STATEMENT_S, LOCK_S = 10.0, 30.0, 10.0
#: How much longer a client waits than its statement may take: then the connection is dead. Seconds.
ANSWER_S = 5.0
#: The limit of a pause inside a transaction, after which the server ends the connection: the process was stopped, and
#: holds locks that others wait for. Seconds.
PAUSE_S = 5.0
#: How long `close` waits for the server's answer to a farewell. Seconds.
_FAREWELL_S = 2.0
_OLDEST_VERSION = 14

#: U+0000, which PostgreSQL cannot store, and its escape character. Sorted byte by byte, the escaped texts have the same
#: order.
_ESCAPES = (("\x01", "\x01\x02"), ("\x00", "\x01\x01"))


class PostgresConnection:
    """A connection of asyncpg, which has no types. Texts may contain U+0000, also in lists."""

    __slots__ = ("_db",)

    def __init__(self, db: Any) -> None:
        self._db = db

    async def execute(self, query: str, *values: Any) -> str:
        status: str = await self._db.execute(query, *map(_escaped, values))
        return status

    async def fetch(self, query: str, *values: Any) -> list[Any]:
        rows: list[Any] = await self._db.fetch(query, *map(_escaped, values))
        return rows

    async def fetchrow(self, query: str, *values: Any) -> Any:
        return await self._db.fetchrow(query, *map(_escaped, values))

    async def fetchval(self, query: str, *values: Any) -> Any:
        return await self._db.fetchval(query, *map(_escaped, values))

    def transaction(self, **options: Any) -> AbstractAsyncContextManager[Any]:
        transaction: AbstractAsyncContextManager[Any] = self._db.transaction(**options)
        return transaction

    async def listen(self, channel: str, callback: Callable[[str], None]) -> None:
        await self._db.add_listener(channel, lambda _db, _pid, _channel, payload: callback(payload))

    def on_end(self, callback: Callable[[], None]) -> None:
        """Call back when the connection ends, however it does."""
        self._db.add_termination_listener(lambda _db: callback())

    @property
    def is_usable(self) -> bool:
        """False if the connection is closed, or inside a transaction."""
        return not self._db.is_closed() and not self._db.is_in_transaction()

    async def close(self) -> None:
        try:
            await self._db.close(timeout=_FAREWELL_S)
        except Exception:  # whatever it is, the connection is closed
            self.end()

    def end(self) -> None:
        """Close without a word to the server, which may not answer."""
        if not self._db.is_closed():
            self._db.terminate()


@dataclass(frozen=True, slots=True)
class DatabaseUrl:
    """The database that a URL names. Its text never contains the password."""

    dsn: str = field(repr=False)
    #: The password, as written in the URL and decoded.
    secrets: tuple[str, ...] = field(repr=False)
    schema: str
    #: For messages.
    name: str

    def __str__(self) -> str:
        return self.name


def parse_url(url: str) -> DatabaseUrl:
    """Read `postgresql://user:password@host:port/database?schema=NAME`; other parameters are those of libpq."""
    try:
        parts = urlsplit(url)
        port = parts.port
        password = unquote(parts.password or "")
    except ValueError:
        raise BadConfig("the URL of the store is not valid; use postgresql://user:password@host/database") from None
    if parts.scheme not in ("postgresql", "postgres"):
        raise BadConfig(f"the store has the scheme {parts.scheme!r}; use postgresql://user:password@host/database")
    options = parse_qsl(parts.query, keep_blank_values=True)
    named = dict(options)
    schema = named.get("schema", SCHEMA)
    if not schema or "\0" in schema or len(schema.encode()) > 63:
        raise BadConfig(f"{schema!r} is not a valid name of a schema; use 1 to 63 bytes")
    query = urlencode([(name, value) for name, value in options if name != "schema"])
    secrets = tuple({password, parts.password or "", named.get("password", "")} - {""})
    host = named.get("host") or parts.hostname or "the default host"
    database = unquote(parts.path[1:]) or named.get("dbname") or "the default database"
    name = f"{database} at {host}" + (f":{port}" if port else "")
    return DatabaseUrl(urlunsplit(parts._replace(query=query)), secrets, schema, name)


async def connect(target: DatabaseUrl) -> PostgresConnection:
    """Open a connection whose tables are those of the schema."""
    quoted_schema = '"' + target.schema.replace('"', '""') + '"'
    settings = {
        "application_name": "kedge",
        "search_path": quoted_schema,
        "statement_timeout": _milliseconds(STATEMENT_S),
        "lock_timeout": _milliseconds(LOCK_S),
        "idle_in_transaction_session_timeout": _milliseconds(PAUSE_S),
        # The server ends a connection whose client has vanished, and so releases its locks.
        "tcp_keepalives_idle": "5",
        "tcp_keepalives_interval": "2",
        "tcp_keepalives_count": "3",
        "tcp_user_timeout": _milliseconds(15.0),
        "jit": "off",
    }
    db: Any = await asyncpg.connect(
        target.dsn, timeout=CONNECT_S, command_timeout=STATEMENT_S + ANSWER_S, server_settings=settings
    )
    try:
        # Must hold for durable Writes, whatever the server's default; a stronger default is kept.
        row = await db.fetchrow(
            "SELECT current_setting('server_version_num')::int / 10000, current_setting('server_encoding'),"
            " set_config('synchronous_commit', CASE current_setting('synchronous_commit')"
            " WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, false)"
        )
        version, encoding, _ = row
        if version < _OLDEST_VERSION:
            raise StoreError(f"{target} runs PostgreSQL {version}; kedge needs {_OLDEST_VERSION} or newer")
        if encoding != "UTF8":
            raise StoreError(f"{target} has the encoding {encoding}; create the database with ENCODING 'UTF8'")
        await db.set_type_codec("text", schema="pg_catalog", encoder=_to_sql, decoder=_from_sql, format="binary")
    except BaseException:
        db.terminate()
        raise
    return PostgresConnection(db)


def _milliseconds(seconds: float) -> str:
    return str(int(seconds * 1000))


def _escaped(value: Any) -> Any:
    """Escape the texts of a list. asyncpg applies the codec of a type to single values only."""
    if type(value) in (list, tuple):
        return [escaped(item) if type(item) is str else item for item in value]
    return value


def escaped(text: str) -> str:
    if "\x00" in text or "\x01" in text:
        for character, escape in _ESCAPES:
            text = text.replace(character, escape)
    return text


def unescaped(text: str) -> str:
    if "\x01" in text:
        for character, escape in reversed(_ESCAPES):
            text = text.replace(escape, character)
    return text


def _to_sql(text: str) -> bytes:
    return escaped(text).encode()


def _from_sql(data: bytes) -> str:
    return unescaped(bytes(data).decode())


#: Errors of one statement that concern the Write, not the server or the connection.
REFUSED = (
    asyncpg.IntegrityConstraintViolationError,
    asyncpg.DataError,
    asyncpg.ProgramLimitExceededError,
)


def store_error(error: BaseException, target: DatabaseUrl) -> Exception:
    """Convert an exception of asyncpg to an error that states what happened and what to do."""
    converted = _converted(error, target)
    for secret in target.secrets:
        if secret in str(converted) and isinstance(converted, KedgeError):
            converted = type(converted)(str(converted).replace(secret, "***"))
    return converted


def _converted(error: BaseException, target: DatabaseUrl) -> Exception:
    match error:
        case KedgeError():
            return error
        case UnicodeEncodeError():
            return codec.not_unicode(error)
        case asyncpg.DataError() if isinstance(error.__cause__, UnicodeEncodeError):
            return codec.not_unicode(error.__cause__)
        case asyncpg.DataError() | asyncpg.ProgramLimitExceededError():
            return WrongType(f"the database {target} cannot store a value ({_line(error)}); send a shorter value")
        case UnicodeDecodeError() | asyncpg.DataCorruptedError() | asyncpg.IndexCorruptedError():
            return codec.damaged_database(str(target), _line(error))
        case _ if (remedy := _remedy(error)) is not None:
            return StoreUnavailable(f"the database {target} failed ({_line(error)}): {remedy}")
        case Exception():
            return error  # a bug: report it unchanged
        case _:
            return StoreUnavailable(f"the database {target} failed ({_line(error)}): try again")


def _remedy(error: BaseException) -> str | None:
    """Return what the user can do; None for an error that is not one of the system or the database."""
    match error:
        case asyncpg.InvalidPasswordError() | asyncpg.InvalidAuthorizationSpecificationError():
            return "check the user and the password in the URL of the store"
        case asyncpg.ClientConfigurationError():
            return "correct the URL of the store"
        case asyncpg.InvalidCatalogNameError():
            return "create the database, or correct its name in the URL of the store"
        case asyncpg.InsufficientPrivilegeError():
            return "grant its user the right to create and use the schema of kedge"
        case asyncpg.DiskFullError():
            return "its disk is full; free some space on the server of the database"
        case asyncpg.TooManyConnectionsError():
            return "it has no free connections; raise max_connections, or stop other clients"
        case asyncpg.ReadOnlySQLTransactionError():
            return "it is read-only; connect to the primary server"
        case asyncpg.QueryCanceledError():
            return "a statement took too long; check the load and the disk of its server, and try again"
        case asyncpg.LockNotAvailableError() | asyncpg.DeadlockDetectedError() | asyncpg.SerializationError():
            return "another process held a lock for too long; try again"
        case asyncpg.UndefinedTableError() | asyncpg.UndefinedColumnError():
            return "the tables of kedge are missing; restore them from a backup, or restart the server to create them"
        case asyncpg.PostgresConnectionError() | asyncpg.OperatorInterventionError() | asyncpg.InterfaceError():
            return "the connection was lost; check that PostgreSQL runs and can be reached, and try again"
        case asyncpg.PostgresError():
            return "try again, and report the error if it persists"
        case asyncpg.InternalClientError() | TimeoutError() | asyncio.IncompleteReadError():
            return "it does not answer; check that PostgreSQL runs and can be reached, and try again"
        case ssl.SSLError():
            return "check the TLS settings in the URL of the store (sslmode, sslrootcert)"
        case OSError() | ConnectionError():
            return "check that PostgreSQL runs and can be reached at this address"
    return None


def _line(error: BaseException) -> str:
    """Return the message on one line; its class if it has none."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return " ".join(str(error).split())[:300] or type(error).__name__
