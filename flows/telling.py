"""Telling people what became of a delivery: signed webhooks, an artifact on the run, a Prefect event.

The flow that knows tells it (docs/architecture.md says why no automation does). Each thing is told once, however often
its flow is run again: the audit log remembers what was. Telling stops nothing.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Callable, Mapping
from typing import Any

from evoplane.settings import AlertEvent, Settings
from flows import (
    alert_hooks,
    environment,  # noqa: F401  (before prefect)
)
from flows.alert_hooks import Report
from registry import audit, control, prefect_runs

from prefect.artifacts import create_markdown_artifact  # isort: skip

_log = logging.getLogger("flows.telling")

ABORTED: AlertEvent = "evoplane.canary.aborted"
PAUSED: AlertEvent = "evoplane.canary.paused"
WAITING: AlertEvent = "evoplane.approval.waiting"
ROLLED_BACK: AlertEvent = "evoplane.rollback.done"
TOLD = "people.told"
"""The audit log's entry about it."""
_SENTENCES: dict[AlertEvent, str] = {
    ABORTED: "The canary was aborted: nobody gets the version any more.",
    PAUSED: "The canary is paused: nobody gets the version, nothing is concluded.",
    WAITING: "A version waits for approval.",
    ROLLED_BACK: "Users were moved back.",
}


def tell(
    config: Settings, connection: sqlite3.Connection, event: AlertEvent, agent: str, id: str, payload: Mapping[str, Any]
) -> bool:
    """Tell it unless `id` was told before; True when it was told now.

    It is in the outbox before the log says so, and both under the database's lock: of two processes one tells it, and
    none that dies loses it.
    """
    with control.transaction(connection):
        if any(e.action == TOLD and e.detail["id"] == id for e in audit.entries(connection, agent)):
            return False
        alert_hooks.enqueue(config, event, id, payload, time.time())
        audit.append(connection, "flows", TOLD, agent, {"id": id, "event": event})
    report = alert_hooks.send(config, only=id)
    _try("the run", lambda: create_markdown_artifact(key=f"told-{agent}", markdown=_page(event, payload, report)))
    _try("Prefect", lambda: prefect_runs.emit_event(config, event, agent, payload))
    return True


def rolled_back(config: Settings, connection: sqlite3.Connection, agent: str, outcome: str = "") -> bool:
    """Tell of the agent's last move if it was a rollback, whoever made it, and not long ago."""
    moves = [e for e in audit.entries(connection, agent) if e.action in ("promote", "rollback")]
    if not moves or moves[-1].action != "rollback":
        return False
    last = moves[-1]
    if prefect_runs.seconds_since(last.at) > config.alerts.keep_hours * 3600:
        return False
    payload = {
        "agent": agent,
        "version": last.detail["to"],
        "from": last.detail["from"],
        "reason": last.detail["why"],
        "by": last.actor,
        "outcome": outcome,
    }
    return tell(config, connection, ROLLED_BACK, agent, f"rollback-{agent}-{last.seq}", payload)


def _page(event: AlertEvent, payload: Mapping[str, Any], report: Report) -> str:
    lines = [f"# {_SENTENCES[event]}", "", "| | |", "|---|---|"]
    lines += [f"| {name} | {str(value).replace('|', '/')} |" for name, value in payload.items() if value != ""]
    lines += ["", f"Told: {', '.join(report.sent) or 'no webhook asked for it or took it'}."]
    lines += [f"- **not told** {why}; tried again at the next look" for why in report.failed]
    return "\n".join(lines)


def _try(whom: str, work: Callable[[], object]) -> None:
    try:
        work()
    except Exception as error:  # whatever a client raises: the webhooks have it, and the delivery goes on
        _log.warning("%s could not be told: %s", whom, error)
