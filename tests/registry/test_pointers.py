from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from registry import audit, control, pointers
from registry.manifest import AgentVersion, Manifest, Policy
from registry.tenants import RegistryError


def test_a_promotion_keeps_the_old_champion_as_previous(connection: sqlite3.Connection) -> None:
    route = pointers.set_champion(connection, "support", "2", "better", "test")
    assert (route.champion, route.previous) == ("2", "1")


def test_promoting_the_champion_again_changes_nothing(connection: sqlite3.Connection) -> None:
    before = pointers.read_route(connection, "support")
    assert pointers.set_champion(connection, "support", "1", "again", "test") == before


def test_a_promotion_ends_the_canary(connection: sqlite3.Connection) -> None:
    pointers.start_canary(connection, "support", "2", 0.2)
    assert pointers.set_champion(connection, "support", "2", "passed", "test").canary is None


def test_rollback_goes_to_previous_and_ends_canary_and_shadow(connection: sqlite3.Connection) -> None:
    pointers.set_champion(connection, "support", "2", "better", "test")
    pointers.start_shadow(connection, "support", "3", 0.5)
    pointers.start_canary(connection, "support", "3", 0.2)
    route = pointers.rollback(connection, "support", "previous", "worse after all", "test")
    assert (route.champion, route.canary, route.shadow) == ("1", None, None)


def test_rollback_without_a_previous_version_is_refused(connection: sqlite3.Connection) -> None:
    with pytest.raises(RegistryError, match="no previous version"):
        pointers.rollback(connection, "support", "previous", "", "test")


@pytest.mark.parametrize("weight", [-0.1, 1.1])
def test_a_weight_outside_0_and_1_is_refused(connection: sqlite3.Connection, weight: float) -> None:
    with pytest.raises(RegistryError, match="between 0 and 1"):
        pointers.start_canary(connection, "support", "2", weight)


def test_an_unknown_version_serves_nobody(connection: sqlite3.Connection) -> None:
    with pytest.raises(RegistryError, match="no version '9'"):
        pointers.set_champion(connection, "support", "9", "", "test")


def test_a_version_label_never_changes_its_manifest(connection: sqlite3.Connection) -> None:
    other = Manifest(policy=Policy(base="model", served_name="other"))
    with pytest.raises(RegistryError, match="exists with another manifest"):
        pointers.put_version(
            connection, AgentVersion(agent="support", version="2", digest=other.digest, manifest=other)
        )


def test_a_new_canary_draws_other_sessions_and_the_same_one_keeps_its_own(connection: sqlite3.Connection) -> None:
    first = pointers.start_canary(connection, "support", "2", 0.2)
    same = pointers.start_canary(connection, "support", "2", 0.5)
    other = pointers.start_canary(connection, "support", "3", 0.2)
    assert first.salt == same.salt != other.salt


def test_another_connection_notices_a_flip(connection: sqlite3.Connection, tmp_path: Path) -> None:
    watcher = control.connect(tmp_path / "control.sqlite", read_only=True)
    before = pointers.data_version(watcher)
    pointers.set_champion(connection, "support", "2", "better", "test")
    assert pointers.data_version(watcher) != before


def test_every_flip_is_audited_and_the_chain_holds(connection: sqlite3.Connection) -> None:
    pointers.start_canary(connection, "support", "2", 0.2)
    pointers.clear_canary(connection, "support", "worse")
    actions = [entry.action for entry in audit.entries(connection, "support")]
    assert actions[-2:] == ["canary.start", "canary.stop"]
    assert audit.verify(connection) == []


def test_an_altered_audit_entry_is_found(connection: sqlite3.Connection) -> None:
    connection.execute("UPDATE audit SET actor='someone else' WHERE seq=1")
    assert audit.verify(connection) == ["entry 1 was altered"]


def test_a_removed_audit_entry_is_found(connection: sqlite3.Connection) -> None:
    connection.execute("DELETE FROM audit WHERE seq=1")
    assert any("missing" in problem for problem in audit.verify(connection))


def test_a_second_rollback_does_not_bring_back_what_the_first_took_out(connection: sqlite3.Connection) -> None:
    pointers.set_champion(connection, "support", "2", "better", "test")
    pointers.rollback(connection, "support", "previous", "worse", "test")
    with pytest.raises(RegistryError, match="--to VERSION"):
        pointers.rollback(connection, "support", "previous", "impatient", "test")
    assert pointers.read_route(connection, "support").champion == "1"
    assert pointers.rollback(connection, "support", "2", "it was not the cause", "test").champion == "2"


def test_a_promotion_makes_previous_a_way_back_again(connection: sqlite3.Connection) -> None:
    pointers.set_champion(connection, "support", "2", "better", "test")
    pointers.rollback(connection, "support", "previous", "worse", "test")
    pointers.set_champion(connection, "support", "3", "better", "test")
    assert pointers.rollback(connection, "support", "previous", "worse", "test").champion == "1"


def test_a_promotion_or_rollback_decided_about_another_champion_is_refused(connection: sqlite3.Connection) -> None:
    with pytest.raises(pointers.RouteChanged, match="version 1 is champion now"):
        pointers.set_champion(connection, "support", "2", "better", "test", expected="3")
    with pytest.raises(pointers.RouteChanged):
        pointers.rollback(connection, "support", "3", "worse", "test", expected="2")
    assert pointers.set_champion(connection, "support", "2", "better", "test", expected="1").champion == "2"


def test_clearing_one_version_leaves_anothers_canary_and_shadow(connection: sqlite3.Connection) -> None:
    pointers.start_shadow(connection, "support", "3", 0.5)
    pointers.start_canary(connection, "support", "3", 0.2)
    pointers.clear_canary(connection, "support", only="2")
    pointers.set_canary_weight(connection, "support", 0.9, only="2")
    route = pointers.clear_shadow(connection, "support", only="2")
    assert (route.canary, route.canary_weight, route.shadow) == ("3", 0.2, "3")
    pointers.clear_canary(connection, "support", only="3")
    assert pointers.clear_shadow(connection, "support", only="3").shadow is None


def test_a_pointer_is_resolved_to_a_version_and_an_unset_one_is_an_error(connection: sqlite3.Connection) -> None:
    assert pointers.resolve(connection, "support", "champion").version == "1"
    assert pointers.resolve(connection, "support", "2").version == "2"
    with pytest.raises(RegistryError, match="has no canary"):
        pointers.resolve(connection, "support", "canary")


def test_a_version_that_a_pointer_names_is_not_deleted(connection: sqlite3.Connection) -> None:
    pointers.set_champion(connection, "support", "2", "better", "test")
    for label in ("1", "2"):
        with pytest.raises(RegistryError, match="move that pointer first"):
            pointers.delete_version(connection, "support", label)
    pointers.delete_version(connection, "support", "3")
    assert set(pointers.versions(connection, "support")) == {"1", "2"}
