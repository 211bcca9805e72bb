"""The control database: one SQLite file with what is small, shared and must survive.

Everything a gateway needs to serve (keys, manifests, pointers) and everything a promotion must
remember (approvals, decisions, audit) is here, behind one schema. Trajectories are not.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

_BUSY_TIMEOUT_S = 15.0
"""Writers are short; a longer wait means a stuck process, which should be heard of."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS tenants (
  id TEXT PRIMARY KEY, name TEXT NOT NULL, train TEXT NOT NULL, created_at TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS agents (
  name TEXT PRIMARY KEY, model TEXT NOT NULL, environment TEXT, approvers TEXT NOT NULL, created_at TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS keys (
  id TEXT PRIMARY KEY, digest TEXT NOT NULL UNIQUE, tenant TEXT NOT NULL REFERENCES tenants(id),
  agent TEXT NOT NULL REFERENCES agents(name), scopes TEXT NOT NULL, purpose TEXT NOT NULL,
  owner TEXT NOT NULL, created_at TEXT NOT NULL, revoked_at TEXT);
CREATE TABLE IF NOT EXISTS versions (
  agent TEXT NOT NULL REFERENCES agents(name), version TEXT NOT NULL, digest TEXT NOT NULL,
  body BLOB NOT NULL, created_at TEXT NOT NULL, PRIMARY KEY (agent, version));
CREATE TABLE IF NOT EXISTS routes (agent TEXT PRIMARY KEY REFERENCES agents(name), body BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS admissions (
  agent TEXT PRIMARY KEY REFERENCES agents(name), body BLOB NOT NULL, at TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS approvals (
  id TEXT PRIMARY KEY, agent TEXT NOT NULL, version TEXT NOT NULL, status TEXT NOT NULL, body BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS candidates (
  agent TEXT NOT NULL REFERENCES agents(name), version TEXT NOT NULL, state TEXT NOT NULL, body BLOB NOT NULL,
  PRIMARY KEY (agent, version));
CREATE TABLE IF NOT EXISTS canaries (
  id TEXT PRIMARY KEY, agent TEXT NOT NULL REFERENCES agents(name), version TEXT NOT NULL, state TEXT NOT NULL,
  body BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS decisions (
  id TEXT PRIMARY KEY, agent TEXT NOT NULL, at TEXT NOT NULL, body BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS alerts (
  id TEXT PRIMARY KEY, agent TEXT NOT NULL, status TEXT NOT NULL, body BLOB NOT NULL);
CREATE UNIQUE INDEX IF NOT EXISTS alerts_open ON alerts (agent) WHERE status='open';
CREATE TABLE IF NOT EXISTS tenant_keys (
  tenant TEXT NOT NULL REFERENCES tenants(id), version INTEGER NOT NULL, wrapped BLOB NOT NULL,
  created_at TEXT NOT NULL, PRIMARY KEY (tenant, version));
CREATE TABLE IF NOT EXISTS tenant_policies (
  tenant TEXT PRIMARY KEY REFERENCES tenants(id), body BLOB NOT NULL, changed_at TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS grants (
  id TEXT PRIMARY KEY, tenant TEXT NOT NULL, status TEXT NOT NULL, body BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS roles (
  name TEXT NOT NULL, role TEXT NOT NULL, tenant TEXT NOT NULL, PRIMARY KEY (name, role, tenant));
CREATE TABLE IF NOT EXISTS audit (
  seq INTEGER PRIMARY KEY, at TEXT NOT NULL, actor TEXT NOT NULL, action TEXT NOT NULL, subject TEXT NOT NULL,
  detail TEXT NOT NULL, prev_hash TEXT, hash TEXT NOT NULL);
"""

_STEPS = (
    # manifests once had free-form tools and guardrails, which nothing filled
    """
UPDATE versions SET body=CAST(json_set(CAST(body AS TEXT), '$.manifest.tools', json('[]')) AS BLOB)
 WHERE json_type(CAST(body AS TEXT), '$.manifest.tools')='object';
UPDATE versions SET body=CAST(json_set(CAST(body AS TEXT), '$.manifest.guardrails', json('[]')) AS BLOB)
 WHERE json_type(CAST(body AS TEXT), '$.manifest.guardrails')='object'
""",
)
"""Step n leads from `user_version` n to n + 1; new tables are made by the schema above."""


def connect(path: Path, *, read_only: bool = False, must_exist: bool = False) -> sqlite3.Connection:
    """Open the control database, creating it unless `read_only` or `must_exist`.

    Autocommit mode: whoever writes more than one row does it inside `transaction`.
    """
    mode = "ro" if read_only else "rw" if must_exist else "rwc"
    if mode == "rwc":
        path.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={mode}",
        uri=True,
        timeout=_BUSY_TIMEOUT_S,
        check_same_thread=False,
        isolation_level=None,
    )
    if not read_only:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA foreign_keys=ON")
        connection.executescript(_SCHEMA)
        _upgrade(connection)
    connection.row_factory = sqlite3.Row
    return connection


def _upgrade(connection: sqlite3.Connection) -> None:
    if connection.execute("PRAGMA user_version").fetchone()[0] == len(_STEPS):
        return
    with transaction(connection):
        found = int(connection.execute("PRAGMA user_version").fetchone()[0])
        for step in _STEPS[found:]:
            for statement in step.split(";"):
                connection.execute(statement)
        connection.execute(f"PRAGMA user_version={max(found, len(_STEPS))}")


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """One atomic write; joins the caller's transaction when there already is one."""
    if connection.in_transaction:
        yield
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def data_version(connection: sqlite3.Connection) -> int:
    """A number that changes when another connection has written: the cheap question gateways poll."""
    return int(connection.execute("PRAGMA data_version").fetchone()[0])


def now() -> str:
    """The present as RFC 3339 in UTC, microseconds: the one time format of the control database."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
