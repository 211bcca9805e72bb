"""Alerts and the event that starts an evolution: the same way for what the watch finds and for what a person asks.

An alert is in the ledger before it is announced, so one whose event gets lost is announced again; the event carries
its id, so it is answered once however often it is announced (`registry.alerts`).
"""

from __future__ import annotations

import sqlite3

from evoplane.settings import Settings
from registry import alerts, control, pointers, prefect_runs
from registry.alerts import ASKED, Alert, Cause

EVENT = "evoplane.agent.degraded"


def ask(config: Settings, connection: sqlite3.Connection, agent: str, reason: str) -> tuple[Alert, bool]:
    """A person asks for an evolution; False where what they ask joined the alert that is open, and starts no second.

    Raises `RegistryError` for an agent that serves no version.
    """
    champion = pointers.read_route(connection, agent).champion
    alert, new = alerts.raise_alert(connection, agent, Cause(ASKED, reason, control.now(), champion))
    announce(config, connection, alert)
    return alert, new


def announce(config: Settings, connection: sqlite3.Connection, alert: Alert) -> None:
    """Emit the event for an open alert, for the first time or again."""
    first = alert.causes[0]
    payload = {"agent": alert.agent, "reason": alert.reason, "version": first.version, "cause": first.cause}
    prefect_runs.emit_event(config, EVENT, alert.agent, {**payload, "alert": alert.id, "evidence": alert.evidence})
    alerts.announced(connection, alert.id)
