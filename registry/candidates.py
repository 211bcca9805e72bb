"""Candidates: where each version is on its way to users. One function moves them, by the table in `lifecycle`."""

from __future__ import annotations

import sqlite3
from typing import Literal

import msgspec

from registry import audit
from registry.control import now, transaction
from registry.lifecycle import CANDIDATE

State = Literal[
    "accepted", "shadow", "canary", "approval", "promoted", "serving",
    "aborted", "paused", "rejected", "expired", "withdrawn", "rolled_back", "superseded",
]  # fmt: skip


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    agent: str
    version: str
    state: State
    since: str
    why: str = ""


def move(
    connection: sqlite3.Connection, agent: str, version: str, to: State, why: str = "", actor: str = "deliver"
) -> Candidate:
    """Bring a candidate into a state; being there already is a no-op.

    Raises `IllegalTransition` when the table does not have it.
    """
    with transaction(connection):
        known = get(connection, agent, version)
        if known is not None and known.state == to:
            return known
        before = known.state if known is not None else None
        CANDIDATE.check(before, to, f"{agent} version {version}")
        moved = Candidate(agent=agent, version=version, state=to, since=now(), why=why)
        connection.execute(
            "INSERT INTO candidates VALUES (?,?,?,?)"
            " ON CONFLICT (agent, version) DO UPDATE SET state=excluded.state, body=excluded.body",
            (agent, version, to, msgspec.json.encode(moved)),
        )
        detail = {"version": version, "from": before, "to": to, "why": why}
        audit.append(connection, actor, "candidate.state", agent, detail)
    return moved


def settle(
    connection: sqlite3.Connection, agent: str, version: str, to: State, why: str = "", actor: str = "deliver"
) -> Candidate | None:
    """`move` where it is legal, nothing where it is not: for what happens to whatever is there (a rollback)."""
    known = get(connection, agent, version)
    if known is None or to not in CANDIDATE.transitions[known.state]:
        return known
    return move(connection, agent, version, to, why, actor)


def get(connection: sqlite3.Connection, agent: str, version: str) -> Candidate | None:
    """None for a version that was never delivered."""
    row = connection.execute("SELECT body FROM candidates WHERE agent=? AND version=?", (agent, version)).fetchone()
    return msgspec.json.decode(row["body"], type=Candidate) if row is not None else None


def list_candidates(connection: sqlite3.Connection, agent: str) -> list[Candidate]:
    rows = connection.execute("SELECT body FROM candidates WHERE agent=? ORDER BY rowid", (agent,))
    return [msgspec.json.decode(row["body"], type=Candidate) for row in rows]
