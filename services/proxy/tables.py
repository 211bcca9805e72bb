"""The tables of a tenant's event log: one SQLite file a tenant, so a cross-tenant read can't be written."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path

_TENANT = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")

_BUSY_TIMEOUT_S = 2.0
"""Only this store's writer writes; a longer wait means trouble, and the spool is there for that."""

_SCHEMA = """
BEGIN;
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
CREATE INDEX IF NOT EXISTS pending_target ON pending (target_kind, target);
CREATE TABLE IF NOT EXISTS probe (id INTEGER PRIMARY KEY, data BLOB NOT NULL);
COMMIT;
"""


def database(root: Path, tenant: str) -> Path:
    """Where a tenant's log is; raises `ValueError` for what can't be a tenant's id."""
    if not _TENANT.fullmatch(tenant):
        raise ValueError(f"{tenant!r} is no tenant id")
    return root / f"{tenant}.sqlite"


def open_for_writing(root: Path, tenant: str) -> sqlite3.Connection:
    """The writer's connection: a commit returns when it is on the disk."""
    path = database(root, tenant)
    connection = sqlite3.connect(path, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.executescript(_SCHEMA)
    except BaseException:
        connection.close()
        raise
    return connection


def open_for_reading(root: Path, tenant: str) -> sqlite3.Connection | None:
    """A connection that can't write, for any process; None when the tenant has no log (yet)."""
    path = database(root, tenant)
    if not path.exists():
        return None
    connection = sqlite3.connect(
        f"file:{path}?mode=ro", uri=True, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
    )
    connection.row_factory = sqlite3.Row
    if connection.execute("SELECT 1 FROM sqlite_master WHERE name='records'").fetchone() is None:
        connection.close()
        return None
    return connection
