from __future__ import annotations

import sqlite3
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from registry import audit, control, grants, policies, roles, tenants
from registry.grants import GrantRefused
from registry.policies import Forbidden, Policies, Principal, principal
from registry.tenants import RegistryError

RULES = Policies.load()
HOUR = timedelta(hours=1)


@pytest.fixture
def connection(tmp_path: Path) -> sqlite3.Connection:
    connection = control.connect(tmp_path / "control.sqlite")
    for tenant in ("a", "b"):
        tenants.create_tenant(connection, tenant)
    roles.give(connection, "iris", "privacy_officer", "a", "test")
    return connection


def granted(connection: sqlite3.Connection, **more: Any) -> grants.Grant:
    fields: dict[str, Any] = {
        "tenant": "a",
        "purpose": "debug",
        "approver": "iris",
        "holder": "sam",
        "reason": "r",
        "lasts": HOUR,
    }
    fields |= {"trajectories": ("t1",)} if "snapshot" not in more else {}
    return grants.create(connection, RULES, **{**fields, **more})


def test_a_grant_lets_its_holder_open_what_it_names_and_every_use_is_audited(connection: sqlite3.Connection) -> None:
    grant = granted(connection)
    grants.use(connection, RULES, grant.id, Principal("sam"), "a", "t1")
    actions = [entry.action for entry in audit.entries(connection, grant.id)]
    assert actions == ["grant.create", "grant.use"]
    assert audit.verify(connection) == []


@pytest.mark.parametrize(
    ("who", "tenant", "trajectory", "why"),
    [("eve", "a", "t1", "not for"), ("sam", "b", "t1", "another tenant"), ("sam", "a", "t2", "does not cover")],
)
def test_it_lets_nobody_else_and_nothing_else(
    connection: sqlite3.Connection, who: str, tenant: str, trajectory: str, why: str
) -> None:
    grant = granted(connection)
    with pytest.raises(GrantRefused, match=why):
        grants.use(connection, RULES, grant.id, Principal(who), tenant, trajectory)
    assert audit.entries(connection, grant.id)[-1].action == "grant.refused"


def test_a_grant_for_a_snapshot_covers_that_snapshot_only(connection: sqlite3.Connection) -> None:
    grant = granted(connection, snapshot="s1", purpose="train")
    grants.use(connection, RULES, grant.id, Principal("sam"), "a", "t9", snapshot="s1")
    for other in (None, "s2"):
        with pytest.raises(GrantRefused, match="snapshot s1 only"):
            grants.use(connection, RULES, grant.id, Principal("sam"), "a", "t9", snapshot=other)


def test_a_purpose_the_trajectory_denies_is_refused_whatever_was_granted(connection: sqlite3.Connection) -> None:
    grant = granted(connection, purpose="train")
    with pytest.raises(Forbidden):
        grants.use(connection, RULES, grant.id, Principal("sam"), "a", "t1", denied=("train",))


def test_a_grant_ends_by_time_or_revocation_and_begins_no_more(connection: sqlite3.Connection) -> None:
    grant = granted(connection)
    assert grants.get(connection, grant.id, datetime.now(UTC) + 2 * HOUR).status == "expired"
    with pytest.raises(RegistryError, match="already expired"):
        grants.revoke(connection, grant.id, "iris")
    other = granted(connection)
    assert grants.revoke(connection, other.id, "iris").status == "revoked"
    with pytest.raises(GrantRefused, match="is revoked"):
        grants.use(connection, RULES, other.id, Principal("sam"), "a", "t1")
    assert all(not after for state, after in grants.TRANSITIONS.items() if state != "active")


def test_only_a_privacy_officer_of_the_tenant_may_approve_and_not_for_themselves(
    connection: sqlite3.Connection,
) -> None:
    with pytest.raises(Forbidden, match="'sam' may not grant"):
        granted(connection, approver="sam", holder="tom")
    with pytest.raises(Forbidden):
        granted(connection, tenant="b")
    with pytest.raises(RegistryError, match="for themselves"):
        granted(connection, holder="iris")
    assert audit.entries(connection, "Tenant::b")[-1].action == "denied.grant"


@pytest.mark.parametrize(
    "wrong",
    [
        {"purpose": "fun"},
        {"lasts": timedelta(days=365)},
        {"trajectories": ()},
        {"snapshot": "s", "trajectories": ("t",)},
    ],
)
def test_what_is_no_grant_is_refused(connection: sqlite3.Connection, wrong: dict[str, Any]) -> None:
    with pytest.raises(RegistryError):
        granted(connection, **wrong)


def test_nothing_is_allowed_that_no_policy_permits(connection: sqlite3.Connection) -> None:
    nobody = principal(connection, "nobody")
    for action in ("read_sealed", "grant", "approve", "promote", "rollback", "export", "manage_keys"):
        attributes = {"approvers": ["dana"], "privacy_role": "a/privacy_officer", "denied": []}
        assert not RULES.allows(nobody, action, "Tenant::a", attributes)  # type: ignore[arg-type]
    assert not RULES.allows(nobody, "cross_tenant_aggregate", "Tenant::a", {"pooling": True})


def test_an_error_in_a_policy_is_a_no() -> None:
    rules = Policies("permit (principal, action, resource); forbid (principal, action, resource) when { resource.x };")
    assert not rules.allows(Principal("a"), "export", "Tenant::a")


def test_a_deployments_policies_take_the_place_of_those_that_ship(tmp_path: Path) -> None:
    (tmp_path / "own.cedar").write_text('permit (principal == User::"zoe", action, resource);')
    rules = policies.Policies.load(tmp_path)
    assert rules.allows(Principal("zoe"), "export", "Tenant::a")
    assert not rules.allows(Principal("x", local=True), "export", "Tenant::a")
    (tmp_path / "own.cedar").write_text("permit (")
    with pytest.raises(RegistryError, match="can't be read"):
        policies.Policies.load(tmp_path)
