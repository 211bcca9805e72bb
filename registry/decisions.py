"""Decision records: what was chosen, what lost, and why. Written once, never changed."""

from __future__ import annotations

import sqlite3
from typing import Any

import msgspec

from registry.control import now
from registry.tenants import RegistryError


def put(connection: sqlite3.Connection, id: str, agent: str, record: dict[str, Any]) -> None:
    """Keep a decision. The same id again is a no-op: a re-run flow decides once."""
    connection.execute(
        "INSERT INTO decisions VALUES (?,?,?,?) ON CONFLICT (id) DO NOTHING",
        (id, agent, now(), msgspec.json.encode(record)),
    )


def get(connection: sqlite3.Connection, id: str) -> dict[str, Any]:
    row = connection.execute("SELECT * FROM decisions WHERE id=?", (id,)).fetchone()
    if row is None:
        raise RegistryError(f"no decision {id!r}")
    return _record(row)


def list_decisions(connection: sqlite3.Connection, agent: str) -> list[dict[str, Any]]:
    return [_record(row) for row in connection.execute("SELECT * FROM decisions WHERE agent=? ORDER BY at", (agent,))]


def _record(row: sqlite3.Row) -> dict[str, Any]:
    return {**msgspec.json.decode(row["body"]), "id": row["id"], "agent": row["agent"], "at": row["at"]}
