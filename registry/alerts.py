"""Alerts: why an agent should be looked at, each handled once however often and from wherever it is raised.

An agent has at most one open alert. Whatever else is raised before an evolution takes it joins it, so that N alerts
within a second start one evolution and none is lost. The event that starts the flow carries the alert's id; a second
run for the same alert finds it taken. An alert whose event got lost is still open, and announced again.
"""

from __future__ import annotations

import sqlite3
from typing import Any, Literal

import msgspec

from atdp.ids import new_id
from registry.control import now, transaction
from registry.tenants import RegistryError

Status = Literal["open", "taken", "done"]

ASKED = "asked"
"""The cause of what a person asks for: two who ask for two reasons are two causes."""

TRANSITIONS: dict[Status, frozenset[Status]] = {
    "open": frozenset({"taken"}),
    "taken": frozenset({"done", "open"}),
    "done": frozenset(),
}
"""Every legal change; taken becomes open again when the run that took it could not look (a delivery under way, no
budget left, a dry run), or was gone without an end."""


class Cause(msgspec.Struct, frozen=True):
    """One thing that was raised."""

    cause: str
    reason: str
    at: str
    version: str = ""


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    agent: str
    causes: tuple[Cause, ...]
    """In the order in which they were raised; a cause raised again is not repeated."""
    evidence: dict[str, Any] = {}
    """Of the first."""
    raised_at: str
    announced_at: str
    """When the event that starts an evolution was last emitted."""
    status: Status = "open"
    taken_by: str = ""
    ended: str = ""
    """How the run that took it ended."""

    @property
    def reason(self) -> str:
        """Of all its causes."""
        return "; ".join(dict.fromkeys(cause.reason for cause in self.causes))


def raise_alert(
    connection: sqlite3.Connection, agent: str, cause: Cause, evidence: dict[str, Any] | None = None
) -> tuple[Alert, bool]:
    """Record it; True when it is a new alert, False when it joined the one that is open."""
    with transaction(connection):
        found = open_alert(connection, agent)
        if found is not None:
            if not any(_same(c, cause) for c in found.causes):
                found = msgspec.structs.replace(found, causes=(*found.causes, cause))
                _put(connection, found)
            return found, False
        at = now()
        alert = Alert(
            id=new_id("al"), agent=agent, causes=(cause,), evidence=evidence or {}, raised_at=at, announced_at=at
        )
        _put(connection, alert)
        return alert, True


def take(connection: sqlite3.Connection, id: str, run: str) -> Alert | None:
    """Take an open alert for a run; None when another run has it or had it. The same run may take it again."""
    with transaction(connection):
        alert = get(connection, id)
        if alert.status == "taken" and alert.taken_by == run:
            return alert
        if alert.status != "open":
            return None
        return _change(connection, alert, "taken", taken_by=run)


def end(connection: sqlite3.Connection, id: str, how: str) -> Alert:
    """The run that took it is over."""
    with transaction(connection):
        alert = get(connection, id)
        return alert if alert.status == "done" else _change(connection, alert, "done", ended=how)


def give_back(connection: sqlite3.Connection, id: str) -> Alert:
    """The run that took it did not look, or is gone: open again, unless a newer alert is open, which it then joins."""
    with transaction(connection):
        alert = get(connection, id)
        newer = open_alert(connection, alert.agent)
        if newer is None:
            return _change(connection, alert, "open", taken_by="")
        joined = msgspec.structs.replace(newer, causes=(*alert.causes, *newer.causes))
        _put(connection, joined)
        _change(connection, alert, "done", ended=f"joined {newer.id}")
        return joined


def announced(connection: sqlite3.Connection, id: str) -> None:
    """Its event was emitted (again)."""
    with transaction(connection):
        _put(connection, msgspec.structs.replace(get(connection, id), announced_at=now()))


def get(connection: sqlite3.Connection, id: str) -> Alert:
    row = connection.execute("SELECT body FROM alerts WHERE id=?", (id,)).fetchone()
    if row is None:
        raise RegistryError(f"no alert {id!r}")
    return msgspec.json.decode(row["body"], type=Alert)


def open_alert(connection: sqlite3.Connection, agent: str) -> Alert | None:
    """The alert nobody has taken yet."""
    row = connection.execute("SELECT body FROM alerts WHERE agent=? AND status='open'", (agent,)).fetchone()
    return msgspec.json.decode(row["body"], type=Alert) if row else None


def taken(connection: sqlite3.Connection) -> list[Alert]:
    """Every alert that a run has taken and not ended, oldest first."""
    rows = connection.execute("SELECT body FROM alerts WHERE status='taken' ORDER BY rowid")
    return [msgspec.json.decode(row["body"], type=Alert) for row in rows]


def list_alerts(connection: sqlite3.Connection, agent: str | None = None, limit: int = 50) -> list[Alert]:
    """Newest first."""
    rows = connection.execute(
        "SELECT body FROM alerts WHERE (?1 IS NULL OR agent=?1) ORDER BY rowid DESC LIMIT ?2", (agent, limit)
    )
    return [msgspec.json.decode(row["body"], type=Alert) for row in rows]


def _same(one: Cause, other: Cause) -> bool:
    alike = (one.cause, one.version) == (other.cause, other.version)
    return alike and (one.cause != ASKED or one.reason == other.reason)


def _change(connection: sqlite3.Connection, alert: Alert, status: Status, **changes: str) -> Alert:
    if status not in TRANSITIONS[alert.status]:
        raise RegistryError(f"alert {alert.id} is {alert.status}; it can't become {status}")
    changed: Alert = msgspec.structs.replace(alert, status=status, **changes)
    _put(connection, changed)
    return changed


def _put(connection: sqlite3.Connection, alert: Alert) -> None:
    connection.execute(
        "INSERT INTO alerts (id, agent, status, body) VALUES (?,?,?,?)"
        " ON CONFLICT (id) DO UPDATE SET status=excluded.status, body=excluded.body",
        (alert.id, alert.agent, alert.status, msgspec.json.encode(alert)),
    )
