"""Canaries: every exposure of a candidate to live sessions, from its start to how it ended.

`registry.pointers` writes them in the transaction that changes what users get, so the two never disagree: a route
names a canary exactly while one of the agent's canaries is running.
"""

from __future__ import annotations

import sqlite3
from typing import Literal

import msgspec

from atdp.ids import uuid7
from registry.control import now
from registry.lifecycle import CANARY

State = Literal["running", "passed", "aborted", "paused", "withdrawn", "superseded"]
End = Literal["passed", "aborted", "paused", "withdrawn", "superseded"]


class Canary(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    agent: str
    version: str
    champion: str
    """The version it is compared with."""
    state: State = "running"
    weight: float = 0.0
    tenants: tuple[str, ...] | None = None
    started_at: str = ""
    ended_at: str = ""
    why: str = ""


def start(
    connection: sqlite3.Connection,
    agent: str,
    version: str,
    champion: str,
    weight: float,
    tenants: tuple[str, ...] | None,
) -> Canary:
    """A canary begins: the same version's running one goes on, another version's is superseded."""
    known = running(connection, agent)
    if known is not None and known.version == version:
        return _write(connection, msgspec.structs.replace(known, weight=weight, tenants=tenants))
    if known is not None:
        move(connection, known, "superseded", f"version {version} took its place")
    CANARY.check(None, "running")
    begun = Canary(
        id=f"can_{uuid7()}", agent=agent, version=version, champion=champion, weight=weight, tenants=tenants,
        started_at=now(),
    )  # fmt: skip
    return _write(connection, begun)


def move(connection: sqlite3.Connection, canary: Canary, to: End, why: str = "") -> Canary:
    """End a canary; raises `IllegalTransition` when its state does not allow it."""
    CANARY.check(canary.state, to, f"{canary.id} of {canary.agent}")
    return _write(connection, msgspec.structs.replace(canary, state=to, ended_at=now(), why=why))


def reweigh(connection: sqlite3.Connection, canary: Canary, weight: float) -> Canary:
    return _write(connection, msgspec.structs.replace(canary, weight=weight))


def running(connection: sqlite3.Connection, agent: str) -> Canary | None:
    return next((c for c in list_canaries(connection, agent) if c.state == "running"), None)


def list_canaries(connection: sqlite3.Connection, agent: str) -> list[Canary]:
    """In the order in which they began."""
    rows = connection.execute("SELECT body FROM canaries WHERE agent=? ORDER BY id", (agent,))
    return [msgspec.json.decode(row["body"], type=Canary) for row in rows]


def _write(connection: sqlite3.Connection, canary: Canary) -> Canary:
    connection.execute(
        "INSERT INTO canaries VALUES (?,?,?,?,?)"
        " ON CONFLICT (id) DO UPDATE SET state=excluded.state, body=excluded.body",
        (canary.id, canary.agent, canary.version, canary.state, msgspec.json.encode(canary)),
    )
    return canary
