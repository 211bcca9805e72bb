"""Approvals: durable, expiring, granted once, by as many people as it takes, each of whom may.

The record here is the truth; Prefect's form, MLflow's tag, the console and the command line are ways to write it, all
of them through `decide`. Expired means rejected, and one no is a no. A second yes changes nothing and says so. Every
delivery asks anew: a yes to one delivery of a version says nothing about the next.
"""

from __future__ import annotations

import sqlite3
import unicodedata
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import msgspec

from atdp.ids import uuid7
from registry import audit
from registry.control import transaction
from registry.lifecycle import APPROVAL
from registry.policies import Policies, principal, shipped
from registry.tenants import RegistryError, get_agent, key_digest, load_keys

Status = Literal["pending", "approved", "rejected", "expired"]

Decision = Literal["approved", "rejected"]


class Signer(msgspec.Struct, frozen=True, kw_only=True):
    """Who decides, and how that is known."""

    name: str
    key_id: str | None = None
    """The key that proved it; None when the name is only what somebody typed."""
    agent: str | None = None
    """The agent the key is for, about whose versions alone it may decide."""

    @property
    def authenticated(self) -> bool:
        return self.key_id is not None


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """One person's yes or no."""

    by: str
    decision: Decision
    at: str
    channel: str
    """Where it was given: cli, prefect-ui, mlflow, console, ..."""
    authenticated: bool = False
    """Was the name proven by a key, or typed?"""
    key_id: str | None = None
    reason: str = ""


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
    needed: int = 1
    """Distinct people who must say yes; 2 is four eyes."""
    grants: tuple[Grant, ...] = ()
    """Who said what so far."""

    @property
    def missing(self) -> int:
        """How many more people have to say yes."""
        said = sum(grant.decision == "approved" for grant in self.grants)
        return max(0, self.needed - said) if self.status == "pending" else 0

    def left_s(self, at: datetime | None = None) -> float:
        """Seconds until it expires."""
        return (datetime.fromisoformat(self.expires_at) - (at or datetime.now(UTC))).total_seconds()


def request(
    connection: sqlite3.Connection,
    agent: str,
    version: str,
    evidence: dict[str, Any],
    timeout_s: float,
    flow_run_id: str | None = None,
    needed: int = 1,
) -> Approval:
    """Ask for a decision on one delivery (`flow_run_id`) of a version, by `needed` distinct people.

    The same run asking again gets its own record. One that still waits for an earlier run of the same
    version is taken over, with the new evidence; what people said about the old evidence does not count any more.
    Raises `RegistryError` when nobody, or not enough people, could decide.
    """
    approvers = get_agent(connection, agent).approvers
    if not approvers:
        raise RegistryError(f"{agent} has no approvers: name one with `evoplane agent create {agent} --approver NAME`")
    people = len({_person(name) for name in approvers})
    if people < needed:
        raise RegistryError(f"{needed} people must approve versions of {agent}, and it names {people}")
    at = datetime.now(UTC)
    with transaction(connection):
        asked = [get(connection, a.id) for a in list_approvals(connection, agent) if a.version == version]
        for known in asked:
            if flow_run_id is not None and known.flow_run_id == flow_run_id:
                return known
        for known in asked:
            if known.status == "pending":
                adopted = msgspec.structs.replace(known, evidence=evidence, flow_run_id=flow_run_id, grants=())
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
            needed=needed,
        )
        APPROVAL.check(None, approval.status)
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
            grant = _grant(Signer(name="clock"), None, "expiry", _late(approval), moment)
            approval = _move(connection, approval, "expired", grant)
    return approval


def signer(connection: sqlite3.Connection, secret: str) -> Signer:
    """Who a key's secret belongs to; raises `RegistryError` for one that is not in force or may not approve."""
    key = load_keys(connection).get(key_digest(secret))
    if key is None:
        raise RegistryError("this key is not in force")
    if "approve" not in key.scopes:
        raise RegistryError(f"key {key.id} may not approve: make one with `evoplane key create --purpose operate`")
    return Signer(name=key.owner, key_id=key.id, agent=key.agent)


def decide(
    connection: sqlite3.Connection,
    id: str,
    decision: Decision,
    by: str | Signer,
    channel: str,
    reason: str = "",
    at: datetime | None = None,
    os_user: str | None = None,
    policies: Policies | None = None,
) -> tuple[Approval, bool]:
    """One person's yes or no; returns the record and whether this call changed it.

    A yes decides once `needed` distinct people have given it, a no at once. `by` is a `signer` whose key proved the
    name, or a name somebody typed: the record tells the two apart, and a deployment's policies may permit only the
    first (`context.authenticated`). `os_user` is the account a command ran under. Raises `RegistryError` when the
    person may not decide about the agent now, or when the record was already decided the other way or has expired.
    """
    who = Signer(name=by) if isinstance(by, str) else by
    get(connection, id, at)  # an expiry is written down although this decision is refused for it
    with transaction(connection):
        approval = get(connection, id, at)
        _permitted(connection, approval, who, channel, policies or shipped())
        if approval.status == decision:
            return approval, False
        APPROVAL.check(approval.status, decision, f"{id} is already {approval.status}:")
        if any(_person(grant.by) == _person(who.name) and grant.decision == decision for grant in approval.grants):
            return approval, False
        grant = _grant(who, decision, channel, reason, at or datetime.now(UTC))
        granted = msgspec.structs.replace(approval, grants=(*approval.grants, grant))
        if decision == "approved" and granted.missing:
            _write(connection, granted)
            detail = _detail(approval, grant, os_user) | {"missing": granted.missing}
            audit.append(connection, who.name, "approval.granted", id, detail)
            return granted, True
        return _move(connection, granted, decision, grant, os_user), True


def _permitted(connection: sqlite3.Connection, approval: Approval, who: Signer, channel: str, rules: Policies) -> None:
    if who.agent is not None and who.agent != approval.agent:
        raise RegistryError(f"key {who.key_id} is for {who.agent}: it may not decide about {approval.agent}")
    approvers = get_agent(connection, approval.agent).approvers
    attributes = {"approvers": list(approvers), "name": approval.agent, "version": approval.version}
    context = {"authenticated": who.authenticated, "channel": channel}
    if not rules.allows(principal(connection, who.name), "approve", f"Agent::{approval.agent}", attributes, context):
        allowed = ", ".join(approvers) or "nobody"
        raise RegistryError(f"{who.name!r} may not decide about {approval.agent}; approvers: {allowed}")


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
    connection: sqlite3.Connection, approval: Approval, to: Status, last: Grant, os_user: str | None = None
) -> Approval:
    APPROVAL.check(approval.status, to, approval.id)
    changed = msgspec.structs.replace(
        approval, status=to, decided_by=last.by, decided_at=last.at, channel=last.channel, reason=last.reason
    )
    _write(connection, changed)
    audit.append(connection, last.by, f"approval.{to}", approval.id, _detail(approval, last, os_user))
    return changed


def _grant(who: Signer, decision: Decision | None, channel: str, reason: str, at: datetime) -> Grant:
    return Grant(
        by=who.name, decision=decision or "rejected", at=_text(at), channel=channel, reason=reason,
        authenticated=who.authenticated, key_id=who.key_id,
    )  # fmt: skip


def _detail(approval: Approval, grant: Grant, os_user: str | None) -> dict[str, Any]:
    detail: dict[str, Any] = {
        "agent": approval.agent,
        "version": approval.version,
        "channel": grant.channel,
        "reason": grant.reason,
        "authenticated": grant.authenticated,
    }
    if grant.key_id is not None:
        detail["key"] = grant.key_id
    if os_user is not None:
        detail["os_user"] = os_user
    return detail


def _late(approval: Approval) -> str:
    if not approval.grants:
        return "nobody decided in time"
    said = ", ".join(grant.by for grant in approval.grants)
    return f"{approval.missing} more would have had to approve in time (approved: {said})"


def _write(connection: sqlite3.Connection, approval: Approval) -> None:
    connection.execute(
        "INSERT INTO approvals VALUES (?,?,?,?,?)"
        " ON CONFLICT (id) DO UPDATE SET status=excluded.status, body=excluded.body",
        (approval.id, approval.agent, approval.version, approval.status, msgspec.json.encode(approval)),
    )


def _person(name: str) -> str:
    """Spelled otherwise (Dana, dana, "dana ") it is the same person, who has one voice."""
    return " ".join(unicodedata.normalize("NFKC", name).casefold().split())


def _text(at: datetime) -> str:
    return at.isoformat(timespec="microseconds")
