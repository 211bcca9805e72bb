"""Which deliveries have begun and not ended, as the audit log and the approvals tell it."""

from __future__ import annotations

import sqlite3
from datetime import datetime

from registry import approvals, audit

_BEGINS = frozenset({"candidate.accepted", "delivery.started"})
_ENDS = frozenset({"delivery.ended", "shadow.abort", "canary.abort"})
"""An aborted stage is the end, whether or not the run lived to write it down."""


def under_way(connection: sqlite3.Connection, agent: str) -> list[str]:
    """Versions on their way to users, in the order their deliveries began.

    A delivery ends by itself, by an aborted stage, by promotion, or by an approval that was refused or
    nobody gave in time. A version may be delivered again later.
    """
    begun: dict[str, str] = {}
    for entry in audit.entries(connection, agent):
        if entry.action in _BEGINS:
            begun[entry.detail["version"]] = entry.at
        elif entry.action in _ENDS:
            begun.pop(entry.detail["version"], None)
        elif entry.action == "promote":
            begun.pop(entry.detail["champion"], None)
    return [version for version, at in begun.items() if not _refused(connection, agent, version, at)]


def _refused(connection: sqlite3.Connection, agent: str, version: str, since: str) -> bool:
    asked = [a.id for a in approvals.list_approvals(connection, agent) if a.version == version]
    if not asked:
        return False
    last = approvals.get(connection, asked[-1])
    # expiry is noticed late: what counts is when the time was up
    at = last.expires_at if last.status == "expired" else last.decided_at
    refused = last.status in ("rejected", "expired")
    return refused and at is not None and datetime.fromisoformat(at) > datetime.fromisoformat(since)
