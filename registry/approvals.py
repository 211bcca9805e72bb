"""Approvals: durable, expiring, granted once, by someone who may.

The record here is the truth; Prefect's form, the CLI and the consoles are ways to write it. Expired
means rejected. A second yes changes nothing and says so. Every delivery asks anew: a yes to one delivery
of a version says nothing about the next.
"""

from __future__ import annotations

import sqlite3
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import msgspec

from atdp.ids import uuid7
from registry import audit
from registry.control import transaction
from registry.policies import Policies, principal, shipped
from registry.tenants import RegistryError, get_agent

Status = Literal["pending", "approved", "rejected", "expired"]

TRANSITIONS: dict[Status, frozenset[Status]] = {
    "pending": frozenset({"approved", "rejected", "expired"}),
    "approved": frozenset(),
    "rejected": frozenset(),
    "expired": frozenset(),
}
"""Every legal change of an approval; whatever is decided stays decided."""


class Approval(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    agent: str
    version: str
    evidence: dict[str, Any]
    """What the approver should read: numbers with intervals, the diff, the decision's id."""
    requested_at: str
    expires_at: str
    approvers: tuple[str, ...]
    status: Status = "pending"
    decided_by: str | None = None
    decided_at: str | None = None
    channel: str | None = None
    """Where the decision was made: cli, prefect-ui, ..."""
    reason: str | None = None
    flow_run_id: str | None = None
    """The suspended Prefect run that waits for this decision."""


def request(
    connection: sqlite3.Connection,
    agent: str,
    version: str,
    evidence: dict[str, Any],
    timeout_s: float,
    flow_run_id: str | None = None,
) -> Approval:
    """Ask for a decision on one delivery (`flow_run_id`) of a version.

    The same run asking again gets its own record. One that still waits for an earlier run of the same
    version is taken over, with the new evidence. Raises `RegistryError` when nobody could decide.
    """
    approvers = get_agent(connection, agent).approvers
    if not approvers:
        raise RegistryError(f"{agent} has no approvers: name one with `evoplane agent create {agent} --approver NAME`")
    at = datetime.now(UTC)
    with transaction(connection):
        asked = [get(connection, a.id) for a in list_approvals(connection, agent) if a.version == version]
        for known in asked:
            if flow_run_id is not None and known.flow_run_id == flow_run_id:
                return known
        for known in asked:
            if known.status == "pending":
                adopted = msgspec.structs.replace(known, evidence=evidence, flow_run_id=flow_run_id)
                _write(connection, adopted)
                if flow_run_id is not None:
                    detail = {"agent": agent, "version": version, "from": known.flow_run_id, "run": flow_run_id}
                    audit.append(connection, "deliver", "approval.adopted", known.id, detail)
                return adopted
        approval = Approval(
            id=f"apr_{uuid7()}",
            agent=agent,
            version=version,
            evidence=evidence,
            requested_at=_text(at),
            expires_at=_text(at + timedelta(seconds=timeout_s)),
            approvers=approvers,
            flow_run_id=flow_run_id,
        )
        _write(connection, approval)
        audit.append(connection, "deliver", "approval.requested", approval.id, {"agent": agent, "version": version})
    return approval


def get(connection: sqlite3.Connection, id: str, at: datetime | None = None) -> Approval:
    """The record as of `at` (now): a pending one past its time has become expired."""
    with transaction(connection):
        row = connection.execute("SELECT body FROM approvals WHERE id=?", (id,)).fetchone()
        if row is None:
            raise RegistryError(f"no approval {id!r}: see `evoplane approvals list`")
        approval = msgspec.json.decode(row["body"], type=Approval)
        moment = at or datetime.now(UTC)
        if approval.status == "pending" and moment >= datetime.fromisoformat(approval.expires_at):
            approval = _move(connection, approval, "expired", "clock", "expiry", "nobody decided in time", moment)
    return approval


def decide(
    connection: sqlite3.Connection,
    id: str,
    decision: Literal["approved", "rejected"],
    by: str,
    channel: str,
    reason: str = "",
    at: datetime | None = None,
    os_user: str | None = None,
    policies: Policies | None = None,
) -> tuple[Approval, bool]:
    """Approve or reject; returns the record and whether this call changed it.

    `os_user` is the account a command ran under: `by` is only what the caller says. `policies` say who may
    decide; those that ship permit the agent's approvers. Raises `RegistryError` when `by` may not decide about
    the agent now, or when the record was already decided the other way or has expired.
    """
    rules = policies or shipped()
    with transaction(connection):
        approval = get(connection, id, at)
        approvers = get_agent(connection, approval.agent).approvers
        attributes = {"approvers": list(approvers), "name": approval.agent, "version": approval.version}
        if not rules.allows(principal(connection, by), "approve", f"Agent::{approval.agent}", attributes):
            allowed = ", ".join(approvers) or "nobody"
            raise RegistryError(f"{by!r} may not decide about {approval.agent}; approvers: {allowed}")
        if approval.status == decision:
            return approval, False
        if decision not in TRANSITIONS[approval.status]:
            raise RegistryError(f"approval {id} is already {approval.status}")
        moved = _move(connection, approval, decision, by, channel, reason, at or datetime.now(UTC), os_user)
    return moved, True


def in_force(connection: sqlite3.Connection, approval: Approval) -> bool:
    """May this approval still promote its version? Not after a delivery of it ended or it was rolled back from."""
    if approval.status != "approved" or approval.decided_at is None:
        return False
    decided = datetime.fromisoformat(approval.decided_at)
    for entry in audit.entries(connection, approval.agent):
        over = entry.action == "delivery.ended" and entry.detail.get("version") == approval.version
        away = entry.action == "rollback" and entry.detail.get("from") == approval.version != entry.detail.get("to")
        if (over or away) and datetime.fromisoformat(entry.at) >= decided:
            return False
    return True


def list_approvals(connection: sqlite3.Connection, agent: str | None = None) -> list[Approval]:
    where, arguments = ("WHERE agent = ?", (agent,)) if agent else ("", ())
    rows = connection.execute(f"SELECT body FROM approvals {where} ORDER BY id", arguments)  # noqa: S608
    return [msgspec.json.decode(row["body"], type=Approval) for row in rows]


def _move(
    connection: sqlite3.Connection,
    approval: Approval,
    to: Status,
    by: str,
    channel: str,
    reason: str,
    at: datetime,
    os_user: str | None = None,
) -> Approval:
    changed = msgspec.structs.replace(
        approval, status=to, decided_by=by, decided_at=_text(at), channel=channel, reason=reason
    )
    _write(connection, changed)
    detail: dict[str, Any] = {
        "agent": approval.agent,
        "version": approval.version,
        "channel": channel,
        "reason": reason,
    }
    if os_user is not None:
        detail["os_user"] = os_user
    audit.append(connection, by, f"approval.{to}", approval.id, detail)
    return changed


def _write(connection: sqlite3.Connection, approval: Approval) -> None:
    connection.execute(
        "INSERT INTO approvals VALUES (?,?,?,?,?)"
        " ON CONFLICT (id) DO UPDATE SET status=excluded.status, body=excluded.body",
        (approval.id, approval.agent, approval.version, approval.status, msgspec.json.encode(approval)),
    )


def _text(at: datetime) -> str:
    return at.isoformat(timespec="microseconds")
