"""Whether rollouts that only serve training should go on being made.

Asynchronous training bounds staleness at the source as well as where data is consumed: when so many rollouts wait that
the last of them would be older than η updates when its turn comes, no more are wanted (AReaL, Fu et al. 2025,
section 5.1). Whoever trains says so here; gateways tell it to those clients that asked to be told, and to no other.
"""

from __future__ import annotations

import sqlite3

import msgspec

from registry.control import now


class Admission(msgspec.Struct, frozen=True, kw_only=True):
    agent: str
    open: bool
    retry_after_s: int = 5
    why: str = ""


def put(connection: sqlite3.Connection, admission: Admission) -> None:
    """Say it; gateways follow within a second."""
    connection.execute(
        "INSERT INTO admissions VALUES (?,?,?) ON CONFLICT (agent) DO UPDATE SET body=excluded.body, at=excluded.at",
        (admission.agent, msgspec.json.encode(admission), now()),
    )


def closed(connection: sqlite3.Connection) -> dict[str, Admission]:
    """Agents for whom no more rollouts are wanted now."""
    rows = connection.execute("SELECT body FROM admissions")
    found = [msgspec.json.decode(row["body"], type=Admission) for row in rows]
    return {each.agent: each for each in found if not each.open}
