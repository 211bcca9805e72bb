"""PostgreSQL: one database, tables partitioned by tenant, and row-level security that knows one tenant a transaction.

`tenant` is filled in by the database from `app.tenant`, which every transaction sets, and no statement
can name another. The role must be no superuser and must not have BYPASSRLS, or the policies would not
hold for it: such a role is refused.

A writer locks its tenant's row in `logs` first. So chains have one writer at a time whatever the number of
gateways, and positions, which that row counts, grow in the order of commits: a consumer that has seen
position n will never find a new record before it. A sequence would not give that.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from services.proxy.engines.base import Misconfigured, Row, StorageFailed, StorageRefused

SCHEMA_VERSION = "0001"
"""The migration this code is written for."""

_CONNECT_TIMEOUT_S = 3
_LOCK_TIMEOUT_MS = 2000
"""A writer waits this long for another gateway's transaction; then its drafts go to the spool."""

_STATEMENT_TIMEOUT_MS = 60_000
_NETWORK_TIMEOUT_MS = 5000
"""A server that does not acknowledge for this long is gone."""

_VALUE = re.compile(r":(\w+)")
_LIST = re.compile(r"IN :(\w+)")
_TENANT = "SELECT set_config('app.tenant', %s, true)"


class PostgresEngine:
    """The logs in one database. One connection writes, whoever's log it is; reading has connections of its own."""

    name = "postgres"

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._writer: psycopg.Connection | None = None

    def prepare(self) -> None:
        with connected(self._dsn) as connection:
            version = schema_version(connection)
        if version is None:
            from services.proxy.migrations.run import migrate

            migrate(self._dsn)
        elif version != SCHEMA_VERSION:
            raise Misconfigured(
                f"the event log's tables have version {version} and this Evoplane needs {SCHEMA_VERSION}: "
                "run `evoplane store migrate`"
            )

    def writing(self, tenant: str) -> PostgresWriter:
        return PostgresWriter(self, tenant)

    def connection(self) -> psycopg.Connection:
        """The writing connection; a new one when the last was lost. Raises `StorageFailed`."""
        if self._writer is None or self._writer.closed:
            self._writer = connect(self._dsn)
        return self._writer

    def reading(self) -> PostgresReader:
        return PostgresReader(self._dsn)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


class PostgresWriter:
    def __init__(self, engine: PostgresEngine, tenant: str) -> None:
        self._engine = engine
        self._tenant = tenant
        self._connection = engine.connection()
        self._position = -1
        self._changes = -1
        """How often anybody has written, as of this writer's last transaction."""
        with _failures(), self._connection.transaction():
            self._connection.execute("INSERT INTO tenants (tenant) VALUES (%s) ON CONFLICT DO NOTHING", (tenant,))
            self._connection.execute(_TENANT, (tenant,))
            self._connection.execute("INSERT INTO logs (position, changes) VALUES (0, 0) ON CONFLICT DO NOTHING")

    def in_place(self) -> bool:
        """A server's own: its tables are found by name."""
        return True

    @contextmanager
    def transaction(self, sync: bool = True) -> Iterator[bool]:
        """The server has every commit on its disk, as far as it is configured to."""
        self._connection = self._engine.connection()
        seen, self._changes = self._changes, -1
        with _failures(), self._connection.transaction():
            with self._connection.pipeline():
                self._connection.execute(_TENANT, (self._tenant,))
                locked = self._connection.execute("SELECT position, changes FROM logs FOR UPDATE")
            row = locked.fetchone()
            if row is None:
                raise StorageFailed(f"the log of {self._tenant} is gone")
            self._position, changes = row
            yield seen == changes
            self._connection.execute("UPDATE logs SET position=%s, changes=%s", (self._position, changes + 1))
        self._changes = changes + 1

    def sync(self) -> None:
        """Nothing is left to do."""

    def query(self, statement: str, **values: Any) -> list[Row]:
        with _failures():
            cursor = self._connection.execute(_dialect(statement), values)
            return cursor.fetchall() if cursor.description else []

    def insert(self, table: str, columns: str, rows: Iterable[Row], ignore: bool = False) -> None:
        with _failures(), self._connection.cursor() as cursor:
            cursor.executemany(_insert(table, columns, ignore), rows)

    def update(self, table: str, columns: str, key: str, rows: Iterable[Row]) -> None:
        with _failures(), self._connection.cursor() as cursor:
            cursor.executemany(_update(table, columns, key), rows)

    def next_position(self) -> int:
        return self._position + 1

    def used_position(self, position: int) -> None:
        self._position = position

    def scrub(self) -> None:
        """PostgreSQL's own: dead rows go with the next vacuum."""

    def close(self) -> None:
        """A connection whose state is unknown is not used again, by any tenant."""
        if self._connection.info.transaction_status != TransactionStatus.IDLE:
            self._connection.close()


class PostgresReader:
    """One connection, opened when it is needed and again after it was lost."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._connection: psycopg.Connection | None = None
        self._snapshot: str | None = None
        self._lock = threading.RLock()

    def tenants(self) -> list[str]:
        with self._lock, _failures(), self._open().transaction():
            rows = self._open().execute("SELECT tenant FROM tenants ORDER BY tenant").fetchall()
        return [row[0] for row in rows]

    def query(self, tenant: str, statement: str, **values: Any) -> list[Row]:
        with self._lock, _failures():
            if self._snapshot is not None:
                if self._snapshot != tenant:
                    raise ValueError(f"{tenant} can't be read in a snapshot of {self._snapshot}")
                return self._open().execute(_dialect(statement), values).fetchall()
            connection = self._open()
            with connection.transaction():
                with connection.pipeline():
                    connection.execute("SET TRANSACTION READ ONLY")
                    connection.execute(_TENANT, (tenant,))
                    cursor = connection.execute(_dialect(statement), values)
                return cursor.fetchall()

    @contextmanager
    def snapshot(self, tenant: str) -> Iterator[None]:
        with self._lock, _failures():
            connection = self._open()
            with connection.transaction():
                connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
                connection.execute(_TENANT, (tenant,))
                self._snapshot = tenant
                try:
                    yield
                finally:
                    self._snapshot = None

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
            self._connection = None

    def _open(self) -> psycopg.Connection:
        if self._connection is None or self._connection.closed:
            self._connection = connect(self._dsn)
        return self._connection


def connect(dsn: str) -> psycopg.Connection:
    """A connection in autocommit, so that transactions are those asked for.

    Raises `StorageFailed`, and `Misconfigured` for a role that row-level security does not hold for.
    """
    with _failures():
        connection = psycopg.connect(
            dsn, autocommit=True, connect_timeout=_CONNECT_TIMEOUT_S, tcp_user_timeout=_NETWORK_TIMEOUT_MS
        )
        try:
            connection.execute(
                "SELECT set_config('lock_timeout', %s, false), set_config('statement_timeout', %s, false)",
                (str(_LOCK_TIMEOUT_MS), str(_STATEMENT_TIMEOUT_MS)),
            )
            _require_bound_by_policies(connection)
        except BaseException:
            connection.close()
            raise
        return connection


@contextmanager
def connected(dsn: str) -> Iterator[psycopg.Connection]:
    connection = connect(dsn)
    try:
        with _failures():
            yield connection
    finally:
        connection.close()


def _require_bound_by_policies(connection: psycopg.Connection) -> None:
    """Raises `Misconfigured` for a role that row-level security does not hold for."""
    row = connection.execute(
        "SELECT rolname, rolsuper, rolbypassrls FROM pg_roles WHERE rolname=current_user"
    ).fetchone()
    if row is None or row[1] or row[2]:
        raise Misconfigured(
            f"EVOPLANE_STORE__DSN connects as {row[0] if row else 'an unknown role'}, which row-level security does "
            "not hold for: use a role that is no superuser and has no BYPASSRLS"
        )


def schema_version(connection: psycopg.Connection) -> str | None:
    """The migration the tables are at; None when there are no tables."""
    exists = connection.execute("SELECT to_regclass('alembic_version')").fetchone()
    if exists is None or exists[0] is None:
        return None
    row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    return str(row[0]) if row else None


@contextmanager
def _failures() -> Iterator[None]:
    try:
        yield
    except (psycopg.DataError, psycopg.IntegrityError, UnicodeError) as error:
        raise StorageRefused(str(error)) from error
    except psycopg.Error as error:
        raise StorageFailed(str(error)) from error


@lru_cache(maxsize=256)
def _dialect(statement: str) -> str:
    return _VALUE.sub(r"%(\1)s", _LIST.sub(r"= ANY(:\1)", statement))


@lru_cache(maxsize=64)
def _insert(table: str, columns: str, ignore: bool) -> str:
    marks = ",".join(["%s"] * (columns.count(",") + 1))
    return f"INSERT INTO {table} ({columns}) VALUES ({marks})" + (" ON CONFLICT DO NOTHING" if ignore else "")  # noqa: S608


@lru_cache(maxsize=64)
def _update(table: str, columns: str, key: str) -> str:
    return f"UPDATE {table} SET {','.join(f'{c}=%s' for c in columns.split(','))} WHERE {key}=%s"  # noqa: S608
