"""Grants: leave to open what is sealed, for one purpose, for named data, until a time.

A grant names who approved it and what it covers; every use of it is in the audit log. Expired and revoked
are final.
"""

from __future__ import annotations

import sqlite3
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, get_args

import msgspec

from atdp.ids import uuid7
from registry import audit, tenants
from registry.control import transaction
from registry.policies import Policies, Principal, principal, require
from registry.tenants import RegistryError

Purpose = Literal["debug", "train", "export"]
Status = Literal["active", "expired", "revoked"]

TRANSITIONS: dict[Status, frozenset[Status]] = {
    "active": frozenset({"expired", "revoked"}),
    "expired": frozenset(),
    "revoked": frozenset(),
}
"""Every legal change of a grant: what has ended begins no more."""

LONGEST = timedelta(days=90)
"""Whoever needs longer asks again."""


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    tenant: str
    purpose: Purpose
    approver: str
    holder: str
    """Who may use it."""
    reason: str
    created_at: str
    expires_at: str
    snapshot: str | None = None
    """Covers the trajectories of this snapshot, as whoever opens it lists them."""
    trajectories: tuple[str, ...] = ()
    """Covers these."""
    status: Status = "active"
    ended_by: str | None = None


class GrantRefused(RegistryError):
    """The grant does not cover this."""


def create(
    connection: sqlite3.Connection,
    policies: Policies,
    tenant: str,
    purpose: Purpose,
    approver: str,
    holder: str,
    reason: str,
    lasts: timedelta,
    snapshot: str | None = None,
    trajectories: tuple[str, ...] = (),
) -> Grant:
    """Approve access; raises `Forbidden` when `approver` may not, `RegistryError` for what is no grant."""
    if purpose not in get_args(Purpose):
        raise RegistryError(f"purpose must be one of {', '.join(get_args(Purpose))}, not {purpose!r}")
    if tenant not in {t.id for t in tenants.list_tenants(connection)}:
        raise RegistryError(f"no tenant {tenant!r}: see `evoplane tenant list`")
    if bool(snapshot) == bool(trajectories):
        raise RegistryError("a grant names either one snapshot or trajectories")
    if not timedelta(0) < lasts <= LONGEST:
        raise RegistryError(f"a grant lasts {LONGEST.days} days at most")
    if approver == holder:
        raise RegistryError("nobody approves a grant for themselves")
    who = principal(connection, approver)
    require(connection, policies, who, "grant", f"Tenant::{tenant}", {"privacy_role": f"{tenant}/privacy_officer"})
    at = datetime.now(UTC)
    grant = Grant(
        id=f"gr_{uuid7()}",
        tenant=tenant,
        purpose=purpose,
        approver=approver,
        holder=holder,
        reason=reason,
        created_at=_text(at),
        expires_at=_text(at + lasts),
        snapshot=snapshot,
        trajectories=trajectories,
    )
    with transaction(connection):
        _write(connection, grant)
        detail = {"tenant": tenant, "purpose": purpose, "holder": holder, "reason": reason, "until": grant.expires_at}
        covers = {"snapshot": snapshot, "trajectories": list(trajectories)}
        audit.append(connection, approver, "grant.create", grant.id, detail | covers)
    return grant


def get(connection: sqlite3.Connection, id: str, at: datetime | None = None) -> Grant:
    """The grant as of `at` (now): one past its time has become expired."""
    with transaction(connection):
        row = connection.execute("SELECT body FROM grants WHERE id=?", (id,)).fetchone()
        if row is None:
            raise RegistryError(f"no grant {id!r}: see `evoplane grant list`")
        grant = msgspec.json.decode(row["body"], type=Grant)
        if grant.status == "active" and (at or datetime.now(UTC)) >= datetime.fromisoformat(grant.expires_at):
            grant = _end(connection, grant, "expired", "clock")
    return grant


def revoke(connection: sqlite3.Connection, id: str, actor: str) -> Grant:
    """End a grant now; raises `RegistryError` when it has ended already."""
    with transaction(connection):
        grant = get(connection, id)
        if "revoked" not in TRANSITIONS[grant.status]:
            raise RegistryError(f"grant {id} is already {grant.status}")
        return _end(connection, grant, "revoked", actor)


def list_grants(connection: sqlite3.Connection, tenant: str | None = None) -> list[Grant]:
    rows = connection.execute("SELECT id FROM grants WHERE ?1 IS NULL OR tenant=?1 ORDER BY id", (tenant,)).fetchall()
    return [get(connection, row["id"]) for row in rows]


def use(
    connection: sqlite3.Connection,
    policies: Policies,
    id: str,
    who: Principal,
    tenant: str,
    trajectory_id: str,
    snapshot: str | None = None,
    denied: tuple[str, ...] = (),
) -> Grant:
    """The grant, if it lets `who` open this trajectory now; written to the audit log either way.

    `snapshot` is the snapshot the trajectory is read from; `denied` are purposes the trajectory's own
    governance denies. Raises `GrantRefused` or `Forbidden`.
    """
    grant = get(connection, id)
    problem = _problem(grant, who, tenant, trajectory_id, snapshot)
    if problem is not None:
        audit.append(connection, who.name, "grant.refused", id, {"trajectory": trajectory_id, "why": problem})
        raise GrantRefused(f"grant {id} {problem}")
    context: dict[str, Any] = {"grant": grant.status, "purpose": grant.purpose}
    require(connection, policies, who, "read_sealed", f"Tenant::{tenant}", {"denied": sorted(denied)}, context)
    detail = {"trajectory": trajectory_id, "snapshot": snapshot, "purpose": grant.purpose, "tenant": tenant}
    audit.append(connection, who.name, "grant.use", id, detail)
    return grant


def _problem(grant: Grant, who: Principal, tenant: str, trajectory_id: str, snapshot: str | None) -> str | None:
    if grant.status != "active":
        return f"is {grant.status}"
    if grant.tenant != tenant:
        return f"is for another tenant than {tenant}"
    if grant.holder != who.name:
        return f"is not for {who.name!r}"
    if grant.snapshot is not None:
        return None if grant.snapshot == snapshot else f"covers snapshot {grant.snapshot} only"
    return None if trajectory_id in grant.trajectories else f"does not cover {trajectory_id}"


def _end(connection: sqlite3.Connection, grant: Grant, to: Status, actor: str) -> Grant:
    ended = msgspec.structs.replace(grant, status=to, ended_by=actor)
    _write(connection, ended)
    audit.append(connection, actor, f"grant.{to}", grant.id)
    return ended


def _write(connection: sqlite3.Connection, grant: Grant) -> None:
    connection.execute(
        "INSERT INTO grants VALUES (?,?,?,?) ON CONFLICT (id) DO UPDATE SET status=excluded.status, body=excluded.body",
        (grant.id, grant.tenant, grant.status, msgspec.json.encode(grant)),
    )


def _text(at: datetime) -> str:
    return at.isoformat(timespec="microseconds")
