"""Sessions of reinforcement-learning runs: which key speaks for which session, and what was exported.

A session's key is a secret of its own, kept as its SHA-256. It stays good after the session has ended
and after its export. Exports have a cursor a consumer, moved only by acknowledgement.
"""

from __future__ import annotations

import secrets
import sqlite3
from dataclasses import dataclass

from registry.control import now, transaction
from registry.tenants import Key, RegistryError, key_digest

_SCHEMA = """
CREATE TABLE IF NOT EXISTS rl_sessions (
  session_id TEXT NOT NULL, tenant TEXT NOT NULL, agent TEXT NOT NULL, key_id TEXT NOT NULL, task_id TEXT NOT NULL,
  group_id TEXT, digest TEXT NOT NULL, started_at TEXT NOT NULL, ended INTEGER,
  PRIMARY KEY (tenant, agent, session_id));
CREATE INDEX IF NOT EXISTS rl_sessions_key ON rl_sessions (digest);
CREATE INDEX IF NOT EXISTS rl_sessions_ended ON rl_sessions (tenant, agent, ended);
CREATE TABLE IF NOT EXISTS rl_cursors (
  consumer TEXT NOT NULL, tenant TEXT NOT NULL, agent TEXT NOT NULL, position INTEGER NOT NULL,
  PRIMARY KEY (consumer, tenant, agent));
"""

SESSION_KEY_PREFIX = "evs_"


class KeyInUse(RegistryError):
    """The key speaks for a session that has not ended."""


@dataclass(frozen=True)
class RlSession:
    """One run of one task."""

    session_id: str
    key_id: str
    """The deployment's key that began it; once that is revoked, so is the session's."""
    digest: str
    """SHA-256 of the session's own key."""
    task_id: str
    group_id: str | None
    """Of sessions begun together as a group."""
    ended: int | None
    """Its place in the order of ends; None while it runs."""


def prepare(connection: sqlite3.Connection) -> None:
    """Make the tables."""
    connection.executescript(_SCHEMA)


def start(
    connection: sqlite3.Connection, key: Key, task_id: str, group_id: str | None = None, secret: str | None = None
) -> tuple[RlSession, str]:
    """Begin a session under a new key, or under one given out before whose session has ended.

    Raises `KeyInUse` when that has not ended, and `RegistryError` for a key that is nobody's or another's.
    """
    with transaction(connection):
        if secret is not None:
            _reusable(connection, key, secret)
        secret = secret or SESSION_KEY_PREFIX + secrets.token_urlsafe(32)
        made = RlSession(_free(connection, key, task_id), key.id, key_digest(secret), task_id, group_id, None)
        connection.execute(
            "INSERT INTO rl_sessions VALUES (?,?,?,?,?,?,?,?,NULL)",
            (made.session_id, key.tenant, key.agent, key.id, task_id, group_id, made.digest, now()),
        )
    return made, secret


def end(connection: sqlite3.Connection, key: Key, session_id: str) -> None:
    """Give an ended session its place in the order of ends; ending again changes nothing."""
    with transaction(connection):
        (place,) = connection.execute(
            "SELECT coalesce(max(ended), 0) + 1 FROM rl_sessions WHERE tenant=? AND agent=?", (key.tenant, key.agent)
        ).fetchone()
        connection.execute(
            "UPDATE rl_sessions SET ended=? WHERE tenant=? AND agent=? AND session_id=? AND ended IS NULL",
            (place, key.tenant, key.agent, session_id),
        )


def load(connection: sqlite3.Connection) -> list[RlSession]:
    """Every session, oldest first: of several under one key the last is the one it speaks for."""
    return [_session(row) for row in connection.execute("SELECT * FROM rl_sessions ORDER BY rowid")]


def find(connection: sqlite3.Connection, key: Key, session_id: str) -> RlSession | None:
    """A session of this key's tenant and agent."""
    row = connection.execute(
        "SELECT * FROM rl_sessions WHERE tenant=? AND agent=? AND session_id=?", (key.tenant, key.agent, session_id)
    ).fetchone()
    return None if row is None else _session(row)


def ended_after(connection: sqlite3.Connection, key: Key, consumer: str, limit: int) -> list[RlSession]:
    """The next ended sessions that a consumer has not acknowledged, in the order of their ends."""
    rows = connection.execute(
        "SELECT * FROM rl_sessions WHERE tenant=:t AND agent=:a AND ended > coalesce((SELECT position FROM rl_cursors"
        " WHERE consumer=:c AND tenant=:t AND agent=:a), 0) ORDER BY ended LIMIT :n",
        {"t": key.tenant, "a": key.agent, "c": consumer, "n": limit},
    )
    return [_session(row) for row in rows]


def acknowledge(connection: sqlite3.Connection, key: Key, consumer: str, position: int) -> None:
    """Never give the sessions up to here to this consumer again; an older position changes nothing."""
    with transaction(connection):
        connection.execute(
            "INSERT INTO rl_cursors VALUES (?,?,?,?) ON CONFLICT (consumer, tenant, agent)"
            " DO UPDATE SET position=max(position, excluded.position)",
            (consumer, key.tenant, key.agent, position),
        )


def _reusable(connection: sqlite3.Connection, key: Key, secret: str) -> None:
    rows = connection.execute("SELECT * FROM rl_sessions WHERE digest=?", (key_digest(secret),)).fetchall()
    if not rows or any((row["tenant"], row["agent"]) != (key.tenant, key.agent) for row in rows):
        raise RegistryError("api_key was not given out by start_session")
    if running := next((row for row in rows if row["ended"] is None), None):
        raise KeyInUse(f"API key is already bound to active session {running['session_id']}.")


def _free(connection: sqlite3.Connection, key: Key, task_id: str) -> str:
    """`<task>-<n>` with the first free n."""
    (count,) = connection.execute(
        "SELECT count(*) FROM rl_sessions WHERE tenant=? AND agent=? AND task_id=?", (key.tenant, key.agent, task_id)
    ).fetchone()
    return f"{task_id}-{count}"


def _session(row: sqlite3.Row) -> RlSession:
    return RlSession(row["session_id"], row["key_id"], row["digest"], row["task_id"], row["group_id"], row["ended"])
