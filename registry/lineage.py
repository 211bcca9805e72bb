"""Lineage: from the version that gave an answer back to why it exists and who let it through."""

from __future__ import annotations

import sqlite3
from typing import Any

from registry import approvals, audit, decisions, pointers
from registry.tenants import RegistryError


def lineage(connection: sqlite3.Connection, agent: str, version: str) -> list[dict[str, Any]]:
    """The version and its ancestors, newest first; each with intervention, evidence and approval.

    Raises `RegistryError` for a version the agent never had.
    """
    known = pointers.versions(connection, agent)
    by_id = {a.id: a for a in approvals.list_approvals(connection, agent)}
    asked = {a.version: a for a in by_id.values()}
    decided = {d["id"]: d for d in decisions.list_decisions(connection, agent)}
    served = [e for e in audit.entries(connection, agent) if e.action in ("promote", "rollback")]
    chain: list[dict[str, Any]] = []
    label: str | None = version
    while label is not None:
        if label not in known:
            raise RegistryError(f"{agent} has no version {label!r}")
        entry = known[label]
        approval = by_id.get(entry.lineage.get("approval", "")) or asked.get(label)
        decision = decided.get(entry.lineage.get("decision", ""))
        chain.append(
            {
                "version": label,
                "digest": entry.digest,
                "intervention": entry.intervention,
                "description": entry.description,
                "parent": entry.parent,
                "created_at": entry.created_at,
                "evidence": entry.lineage,
                "decision": decision and {k: decision[k] for k in ("id", "at") if k in decision},
                "approval": approval
                and {
                    "id": approval.id,
                    "status": approval.status,
                    "by": approval.decided_by,
                    "at": approval.decided_at,
                    "channel": approval.channel,
                    "reason": approval.reason,
                },
                "served_from": [e.at for e in served if e.detail.get("champion") == label],
            }
        )
        label = entry.parent
    return chain
