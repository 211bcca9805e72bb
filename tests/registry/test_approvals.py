from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path
from threading import Barrier

import pytest

from evoplane.cli import delivery
from evoplane.settings import Settings
from registry import approvals, audit, control, pointers, tenants
from registry.policies import Policies
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


def of_run(connection: sqlite3.Connection, run: str, **evidence: float) -> approvals.Approval:
    return approvals.request(connection, "support", "2", evidence, WEEK_S, run)


def test_every_delivery_asks_anew_and_one_asks_once(connection: sqlite3.Connection) -> None:
    first = of_run(connection, "run-1")
    approvals.decide(connection, first.id, "rejected", "dana", "cli")
    assert of_run(connection, "run-1").status == "rejected"
    second = of_run(connection, "run-2")
    assert (second.id != first.id, second.status) == (True, "pending")


def test_a_request_that_still_waits_is_taken_over_by_the_next_run(connection: sqlite3.Connection) -> None:
    first = of_run(connection, "run-1", lift=0.1)
    second = of_run(connection, "run-2", lift=0.2)
    assert (second.id, second.flow_run_id, second.evidence) == (first.id, "run-2", {"lift": 0.2})
    assert approvals.get(connection, first.id) == second


def test_an_expired_request_is_not_taken_over(connection: sqlite3.Connection) -> None:
    first = approvals.request(connection, "support", "2", {}, 0, "run-1")
    assert of_run(connection, "run-2").id != first.id
    assert approvals.get(connection, first.id).status == "expired"


def test_the_agents_present_approvers_decide(connection: sqlite3.Connection) -> None:
    id = ask(connection).id
    tenants.create_agent(connection, "support", "model", approvers=("fay",))
    with pytest.raises(RegistryError, match="approvers: fay"):
        approvals.decide(connection, id, "approved", "dana", "cli")
    assert approvals.decide(connection, id, "approved", "fay", "cli")[1]


def test_asking_where_nobody_may_answer_is_refused(connection: sqlite3.Connection) -> None:
    tenants.create_agent(connection, "support", "model")
    with pytest.raises(RegistryError, match="no approvers"):
        ask(connection)


def test_a_command_line_decision_records_the_account(connection: sqlite3.Connection) -> None:
    id = ask(connection).id
    approvals.decide(connection, id, "approved", "dana", "cli", os_user="root")
    assert audit.entries(connection, id)[-1].detail["os_user"] == "root"


def test_an_approval_ends_with_its_delivery_and_with_a_rollback(connection: sqlite3.Connection) -> None:
    ended, _ = approvals.decide(connection, of_run(connection, "run-1").id, "approved", "dana", "cli")
    assert approvals.in_force(connection, ended)
    audit.append(connection, "deliver", "delivery.ended", "support", {"version": "3"})
    assert approvals.in_force(connection, ended)
    audit.append(connection, "deliver", "delivery.ended", "support", {"version": "2"})
    assert not approvals.in_force(connection, ended)

    second, _ = approvals.decide(connection, of_run(connection, "run-2").id, "approved", "dana", "cli")
    pointers.set_champion(connection, "support", "2", "approved", "dana")
    assert approvals.in_force(connection, second)
    pointers.rollback(connection, "support", "previous", "worse", "dana")
    assert not approvals.in_force(connection, second)


def test_promote_refuses_an_approval_from_before_a_rollback(
    connection: sqlite3.Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Settings, "control_db", property(lambda _: tmp_path / "control.sqlite"))
    monkeypatch.setattr(delivery, "mirror", lambda *_: None)
    approvals.decide(connection, ask(connection).id, "approved", "dana", "cli")
    delivery.promote("support", "2", json=True)
    assert pointers.read_route(connection, "support").champion == "2"
    pointers.rollback(connection, "support", "previous", "worse", "dana")
    with pytest.raises(RegistryError, match="no approval in force"):
        delivery.promote("support", "2", json=True)


def four_eyes(connection: sqlite3.Connection) -> approvals.Approval:
    return approvals.request(connection, "support", "2", {}, WEEK_S, "run-1", needed=2)


def test_four_eyes_needs_two_distinct_people_and_the_same_one_twice_is_a_no_op(connection: sqlite3.Connection) -> None:
    id = four_eyes(connection).id
    first, changed = approvals.decide(connection, id, "approved", "dana", "cli", "looks right")
    assert (first.status, first.missing, changed) == ("pending", 1, True)
    again, changed = approvals.decide(connection, id, "approved", "dana", "prefect-ui")
    assert (again, changed) == (first, False)
    second, changed = approvals.decide(connection, id, "approved", "eli", "console")
    assert (second.status, second.missing, changed) == ("approved", 0, True)
    assert [(g.by, g.channel, g.reason) for g in second.grants] == [
        ("dana", "cli", "looks right"),
        ("eli", "console", ""),
    ]


def test_one_no_is_a_no_also_after_a_yes(connection: sqlite3.Connection) -> None:
    id = four_eyes(connection).id
    approvals.decide(connection, id, "approved", "dana", "cli")
    assert approvals.decide(connection, id, "rejected", "eli", "cli")[0].status == "rejected"


def test_without_the_second_approver_it_expires_and_says_who_had_said_yes(connection: sqlite3.Connection) -> None:
    id = four_eyes(connection).id
    approvals.decide(connection, id, "approved", "dana", "cli")
    late = approvals.get(connection, id, datetime.now(UTC) + timedelta(days=8))
    assert late.status == "expired" and not approvals.in_force(connection, late)
    assert late.reason == "1 more would have had to approve in time (approved: dana)"


def test_more_eyes_than_approvers_is_refused_when_it_is_asked(connection: sqlite3.Connection) -> None:
    with pytest.raises(RegistryError, match="3 people must approve"):
        approvals.request(connection, "support", "2", {}, WEEK_S, needed=3)


def test_a_yes_to_evidence_that_changed_does_not_count(connection: sqlite3.Connection) -> None:
    id = four_eyes(connection).id
    approvals.decide(connection, id, "approved", "dana", "cli")
    adopted = approvals.request(connection, "support", "2", {"lift": 0.1}, WEEK_S, "run-2", needed=2)
    assert (adopted.id, adopted.missing) == (id, 2)


def test_the_record_tells_a_name_a_key_proved_from_one_that_was_typed(connection: sqlite3.Connection) -> None:
    id = four_eyes(connection).id
    key, secret = tenants.create_key(connection, "acme", "support", "operate", owner="dana")
    approvals.decide(connection, id, "approved", approvals.signer(connection, secret), "console")
    done, _ = approvals.decide(connection, id, "approved", "eli", "prefect-ui")
    assert [(g.by, g.authenticated, g.key_id) for g in done.grants] == [("dana", True, key.id), ("eli", False, None)]
    assert [e.detail["authenticated"] for e in audit.entries(connection, id)[1:]] == [True, False]


def test_a_key_decides_about_its_own_agent_and_only_with_the_scope(connection: sqlite3.Connection) -> None:
    tenants.create_agent(connection, "other", "model", approvers=("dana",))
    _, foreign = tenants.create_key(connection, "acme", "other", "operate", owner="dana")
    with pytest.raises(RegistryError, match="is for other"):
        approvals.decide(connection, ask(connection).id, "approved", approvals.signer(connection, foreign), "console")
    _, serving = tenants.create_key(connection, "acme", "support", "serve", owner="dana")
    for secret, why in ((serving, "may not approve"), ("evo_wrong", "not in force")):
        with pytest.raises(RegistryError, match=why):
            approvals.signer(connection, secret)


def test_a_deployment_may_take_no_typed_names(connection: sqlite3.Connection) -> None:
    strict = Policies(
        'permit (principal, action == Action::"approve", resource)'
        " when { resource.approvers.contains(principal.name) && context.authenticated };"
    )
    id = ask(connection).id
    with pytest.raises(RegistryError, match="may not decide"):
        approvals.decide(connection, id, "approved", "dana", "prefect-ui", policies=strict)
    _, secret = tenants.create_key(connection, "acme", "support", "operate", owner="dana")
    who = approvals.signer(connection, secret)
    assert approvals.decide(connection, id, "approved", who, "console", policies=strict)[0].status == "approved"


def test_four_eyes_are_not_two_spellings_of_one_name(connection: sqlite3.Connection) -> None:
    tenants.create_agent(connection, "support", "model", approvers=("dana", "Dana ", "eli"))
    id = approvals.request(connection, "support", "2", {}, WEEK_S, needed=2).id
    approvals.decide(connection, id, "approved", "dana", "cli")
    again, changed = approvals.decide(connection, id, "approved", "Dana ", "cli")
    assert (again.status, again.missing, changed) == ("pending", 1, False)
    assert approvals.decide(connection, id, "approved", "eli", "cli")[0].status == "approved"


def test_one_person_under_two_spellings_is_not_enough_people(connection: sqlite3.Connection) -> None:
    tenants.create_agent(connection, "support", "model", approvers=("dana", "DANA"))
    with pytest.raises(RegistryError, match="it names 1"):
        approvals.request(connection, "support", "2", {}, WEEK_S, needed=2)


def test_of_ways_that_grant_at_once_one_does(connection: sqlite3.Connection) -> None:
    id = ask(connection).id
    (file,) = [row["file"] for row in connection.execute("PRAGMA database_list") if row["name"] == "main"]
    ways = ("cli", "console", "mlflow", "prefect-ui") * 2
    together = Barrier(len(ways))

    def grant(way: str) -> bool:
        own = control.connect(Path(file))
        together.wait()
        return approvals.decide(own, id, "approved", "dana", way)[1]

    with ThreadPoolExecutor(len(ways)) as pool:
        changed = list(pool.map(grant, ways))
    assert sum(changed) == 1
    assert [e.action for e in audit.entries(connection, id)] == ["approval.requested", "approval.approved"]
    assert audit.verify(connection) == []
