from __future__ import annotations

import sqlite3
from datetime import UTC, datetime, timedelta
from itertools import product

import pytest

from registry import approvals, audit
from registry.tenants import RegistryError

WEEK_S = 7 * 24 * 3600


def ask(connection: sqlite3.Connection) -> approvals.Approval:
    return approvals.request(connection, "support", "2", {"lift": 0.3}, WEEK_S)


def test_asking_twice_for_one_version_is_one_approval(connection: sqlite3.Connection) -> None:
    assert ask(connection).id == ask(connection).id


def test_a_second_yes_is_a_no_op_that_says_so(connection: sqlite3.Connection) -> None:
    id = ask(connection).id
    first, changed = approvals.decide(connection, id, "approved", "dana", "cli")
    again, changed_again = approvals.decide(connection, id, "approved", "eli", "prefect-ui")
    assert (changed, changed_again) == (True, False)
    assert again.decided_by == first.decided_by == "dana"


def test_only_an_approver_of_the_agent_decides(connection: sqlite3.Connection) -> None:
    with pytest.raises(RegistryError, match="approvers: dana, eli"):
        approvals.decide(connection, ask(connection).id, "approved", "mallory", "cli")


def test_an_approval_waits_for_days(connection: sqlite3.Connection) -> None:
    id = ask(connection).id
    thursday = datetime.now(UTC) + timedelta(days=3)
    assert approvals.decide(connection, id, "approved", "dana", "cli", at=thursday)[0].status == "approved"


def test_an_expired_approval_is_a_rejection(connection: sqlite3.Connection) -> None:
    id = ask(connection).id
    late = datetime.now(UTC) + timedelta(days=8)
    with pytest.raises(RegistryError, match="already expired"):
        approvals.decide(connection, id, "approved", "dana", "cli", at=late)


@pytest.mark.parametrize(("first", "second"), [p for p in product(("approved", "rejected"), repeat=2) if p[0] != p[1]])
def test_what_is_decided_stays_decided(connection: sqlite3.Connection, first: str, second: str) -> None:
    id = ask(connection).id
    approvals.decide(connection, id, first, "dana", "cli")  # type: ignore[arg-type]
    with pytest.raises(RegistryError, match=f"already {first}"):
        approvals.decide(connection, id, second, "eli", "cli")  # type: ignore[arg-type]


def test_request_and_decision_are_audited(connection: sqlite3.Connection) -> None:
    id = ask(connection).id
    approvals.decide(connection, id, "rejected", "dana", "cli", "wrong tone")
    entries = audit.entries(connection, id)
    assert [(e.actor, e.action) for e in entries] == [
        ("deliver", "approval.requested"),
        ("dana", "approval.rejected"),
    ]
    assert entries[-1].detail["reason"] == "wrong tone"
