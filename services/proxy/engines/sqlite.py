"""SQLite: one file a tenant, so a cross-tenant read can't be written. WAL, `synchronous=FULL`."""

from __future__ import annotations

import os
import re
import sqlite3
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

import orjson

from services.proxy.engines.base import Row, StorageFailed, StorageRefused, require_tenant

_BUSY_TIMEOUT_S = 2.0
"""A writer waits this long for another one; a longer wait means trouble, and the spool is there for that."""

_CACHE_KIB = 8192
"""Pages a connection keeps in memory."""

_CHECKPOINT_PAGES = 4000
"""The write-ahead log is worked off every 16 MB: commits rewrite the same few pages, which then go to the file once."""

_VERSIONS = (
    """
CREATE TABLE IF NOT EXISTS trajectories (
  trajectory_id TEXT PRIMARY KEY, session_id TEXT, agent TEXT NOT NULL, opened_at TEXT NOT NULL,
  last_at TEXT NOT NULL, closed TEXT, next_seq INTEGER NOT NULL, head TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS trajectories_session ON trajectories (session_id);
CREATE INDEX IF NOT EXISTS trajectories_last ON trajectories (agent, last_at);
CREATE INDEX IF NOT EXISTS trajectories_open ON trajectories (last_at) WHERE closed IS NULL;
CREATE TABLE IF NOT EXISTS records (
  position INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, trajectory_id TEXT NOT NULL,
  seq INTEGER NOT NULL, record TEXT NOT NULL, kind TEXT NOT NULL, agent TEXT NOT NULL, committed REAL NOT NULL,
  body BLOB NOT NULL, UNIQUE (trajectory_id, seq));
CREATE TABLE IF NOT EXISTS contexts (id TEXT PRIMARY KEY, body BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS parts (digest TEXT PRIMARY KEY, media_type TEXT NOT NULL, data BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS pending (
  id TEXT PRIMARY KEY, target_kind TEXT NOT NULL, target TEXT NOT NULL, body BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS probe (id INTEGER PRIMARY KEY, data BLOB NOT NULL);
""",
    """
ALTER TABLE trajectories ADD COLUMN purpose TEXT NOT NULL DEFAULT 'serve';
ALTER TABLE trajectories ADD COLUMN opened INTEGER NOT NULL DEFAULT 0;
UPDATE trajectories SET (opened, purpose) =
  (SELECT position, coalesce(json_extract(CAST(body AS TEXT), '$.ext.purpose'), 'serve') FROM records
   WHERE records.trajectory_id=trajectories.trajectory_id AND seq=0);
CREATE INDEX trajectories_opened ON trajectories (opened);
ALTER TABLE parts ADD COLUMN packed INTEGER NOT NULL DEFAULT 0;
ALTER TABLE parts ADD COLUMN apart INTEGER;
ALTER TABLE pending ADD COLUMN arrived INTEGER NOT NULL DEFAULT 0;
DROP INDEX IF EXISTS pending_target;
CREATE INDEX pending_target ON pending (target);
CREATE TABLE sealed (id TEXT PRIMARY KEY, trajectory_id TEXT NOT NULL, data BLOB NOT NULL);
CREATE INDEX sealed_trajectory ON sealed (trajectory_id);
CREATE TABLE trajectory_keys (trajectory_id TEXT PRIMARY KEY, key_version INTEGER NOT NULL, wrapped BLOB);
CREATE INDEX trajectory_keys_version ON trajectory_keys (key_version);
CREATE TABLE answers (id TEXT PRIMARY KEY, event_id TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE consumers (name TEXT PRIMARY KEY, position INTEGER NOT NULL);
""",
)
"""Step n leads from `user_version` n to n + 1."""

_ROWS_AT_ONCE = (64, 16, 4, 2, 1)
"""Rows that one statement inserts. Python lets go of its lock around each statement, and another thread that computes
may keep it for a while: row by row, a commit of 150 exchanges took 0.2 s of which it computed 0.05."""

_LIST = re.compile(r"IN :(\w+)")
_SPELLED_OUT = 16
"""So many values of a list are bound one by one: reading them out of JSON takes three times as long."""


def database(root: Path, tenant: str) -> Path:
    """Where a tenant's log is; raises `ValueError` for what can't be a tenant's id."""
    return root / f"{require_tenant(tenant)}.sqlite"


class SqliteEngine:
    """The logs under a directory."""

    name = "sqlite"

    def __init__(self, root: Path) -> None:
        self._root = root

    def prepare(self) -> None:
        try:
            self._root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageFailed(str(error)) from error

    def writing(self, tenant: str) -> SqliteWriter:
        return SqliteWriter(database(self._root, tenant))

    def reading(self) -> SqliteReader:
        return SqliteReader(self._root)

    def close(self) -> None:
        """Nothing is shared between connections."""


def connect(path: Path) -> sqlite3.Connection:
    """A connection for writing, with the log's settings: what is committed is on the disk, what is deleted is gone."""
    connection = sqlite3.connect(path, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute(f"PRAGMA cache_size=-{_CACHE_KIB}")
        connection.execute("PRAGMA secure_delete=ON")
        connection.execute(f"PRAGMA wal_autocheckpoint={_CHECKPOINT_PAGES}")
    except BaseException:
        connection.close()
        raise
    return connection


def _file(path: Path) -> tuple[int, int] | None:
    """Which file that is; None when there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


class SqliteWriter:
    """The writer's connection: a commit returns when it is on the disk."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._data_version = -1
        self._syncs = True
        self._next_position: int | None = None
        """The position after the last record's, while nobody else writes."""
        with _failures:
            self._connection = connect(path)
            try:
                self._migrate()
            except BaseException:
                self._connection.close()
                raise
        self._file = _file(path)

    def in_place(self) -> bool:
        return _file(self._path) == self._file

    @contextmanager
    def transaction(self, sync: bool = True) -> Iterator[bool]:
        with _failures:
            if sync is not self._syncs:
                self._connection.execute(f"PRAGMA synchronous={'FULL' if sync else 'NORMAL'}")
                self._syncs = sync
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                seen, self._data_version = self._data_version, self._changes_by_others()
                if seen != self._data_version:
                    self._next_position = None
                yield seen == self._data_version
                self._connection.execute("COMMIT")
            except BaseException:
                self._next_position = None
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    def sync(self) -> None:
        """The write-ahead log: what is no longer in it, SQLite has forced to the disk itself.

        (Never so the database: to close a second handle of that would let go of SQLite's locks.)
        """
        with _failures:
            try:
                log = os.open(f"{self._path}-wal", os.O_RDONLY)
            except FileNotFoundError:
                return
            try:
                os.fdatasync(log)
            finally:
                os.close(log)

    def query(self, statement: str, **values: Any) -> list[Row]:
        with _failures:
            return self._connection.execute(*_dialect(statement, values)).fetchall()

    def insert(self, table: str, columns: str, rows: Iterable[Row], ignore: bool = False) -> None:
        left = list(rows)
        with _failures:
            for many in _ROWS_AT_ONCE:
                while len(left) >= many:
                    taken, left = left[:many], left[many:]
                    self._connection.execute(_insert(table, columns, ignore, many), [*chain.from_iterable(taken)])

    def update(self, table: str, columns: str, key: str, rows: Iterable[Row]) -> None:
        with _failures:
            self._connection.executemany(_update(table, columns, key), rows)

    def next_position(self) -> int:
        if self._next_position is None:
            rows = self.query("SELECT seq FROM sqlite_sequence WHERE name='records'")
            self._next_position = int(rows[0][0]) + 1 if rows else 1
        return self._next_position

    def used_position(self, position: int) -> None:
        self._next_position = position + 1

    def scrub(self) -> None:
        """Old pages go from the write-ahead log too; a reader that is in the way leaves that to the next checkpoint."""
        with _failures:
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def close(self) -> None:
        self._connection.close()

    def _changes_by_others(self) -> int:
        return int(self._connection.execute("PRAGMA data_version").fetchone()[0])

    def _migrate(self) -> None:
        found = self._version()
        if found > len(_VERSIONS):
            raise StorageFailed(f"the log has version {found}, this Evoplane knows {len(_VERSIONS)}: update it")
        if found == len(_VERSIONS):
            return
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            for step in _VERSIONS[self._version() :]:
                for statement in step.split(";"):
                    self._connection.execute(statement)
            self._connection.execute(f"PRAGMA user_version={len(_VERSIONS)}")
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise

    def _version(self) -> int:
        return int(self._connection.execute("PRAGMA user_version").fetchone()[0])


class SqliteReader:
    """Connections that can't write, one a tenant."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._connections: dict[str, sqlite3.Connection] = {}
        self._lock = threading.RLock()

    def tenants(self) -> list[str]:
        return sorted(path.stem for path in self._root.glob("*.sqlite"))

    def query(self, tenant: str, statement: str, **values: Any) -> list[Row]:
        with self._lock, _failures:
            connection = self._connection(tenant)
            if connection is None:
                return []
            return connection.execute(*_dialect(statement, values)).fetchall()

    @contextmanager
    def snapshot(self, tenant: str) -> Iterator[None]:
        with self._lock, _failures:
            connection = self._connection(tenant)
            if connection is None:
                yield
                return
            connection.execute("BEGIN")
            try:
                yield
            finally:
                connection.execute("ROLLBACK")

    def close(self) -> None:
        with self._lock:
            for connection in self._connections.values():
                connection.close()
            self._connections.clear()

    def _connection(self, tenant: str) -> sqlite3.Connection | None:
        connection = self._connections.get(tenant)
        if connection is None:
            connection = _open_for_reading(database(self._root, tenant))
            if connection is not None:
                self._connections[tenant] = connection
        return connection


def _open_for_reading(path: Path) -> sqlite3.Connection | None:
    """None when there is no log (yet)."""
    if not path.exists():
        return None
    connection = sqlite3.connect(
        f"file:{path}?mode=ro", uri=True, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
    )
    try:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
    except sqlite3.Error:
        connection.close()
        raise
    if version == 0:
        connection.close()
        # a log of the first version has tables; one that was just made has none
        SqliteWriter(path).close()
        return _open_for_reading(path)
    return connection


class _Failures:
    """Raises what SQLite says as what the store knows. Entered with every statement: a generator would cost more."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, sqlite3.IntegrityError | sqlite3.DataError | UnicodeError | OverflowError):
            raise StorageRefused(str(error)) from error
        if isinstance(error, sqlite3.Error):
            raise StorageFailed(str(error)) from error


_failures = _Failures()


def _dialect(statement: str, values: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The statement and its values as SQLite takes them: it knows no list."""
    lists = {name: value for name, value in values.items() if type(value) is list}
    if not lists:
        return statement, values
    bound = {name: value for name, value in values.items() if name not in lists}
    for name, items in lists.items():
        if len(items) <= _SPELLED_OUT:
            bound |= {f"{name}_{place}": item for place, item in enumerate(items)}
        else:
            bound[name] = _as_json(items)
    return _with_lists(statement, tuple((name, len(items)) for name, items in lists.items())), bound


def _as_json(items: list[Any]) -> str:
    try:
        return orjson.dumps(items).decode()
    except TypeError as error:  # a text that is no Unicode: refused, as where it is bound by itself
        raise UnicodeError(str(error)) from error


@lru_cache(maxsize=256)
def _with_lists(statement: str, sizes: tuple[tuple[str, int], ...]) -> str:
    known = dict(sizes)

    def spelled(match: re.Match[str]) -> str:
        name = match[1]
        if known[name] > _SPELLED_OUT:
            return f"IN (SELECT value FROM json_each(:{name}))"  # noqa: S608 (our own statements name it)
        return f"IN ({','.join(f':{name}_{place}' for place in range(known[name]))})"

    return _LIST.sub(spelled, statement)


@lru_cache(maxsize=128)
def _insert(table: str, columns: str, ignore: bool, rows: int) -> str:
    marks = f"({','.join('?' * (columns.count(',') + 1))})"
    values = ",".join([marks] * rows)
    return f"INSERT INTO {table} ({columns}) VALUES {values}" + (" ON CONFLICT DO NOTHING" if ignore else "")  # noqa: S608


@lru_cache(maxsize=64)
def _update(table: str, columns: str, key: str) -> str:
    return f"UPDATE {table} SET {','.join(f'{c}=?' for c in columns.split(','))} WHERE {key}=?"  # noqa: S608
