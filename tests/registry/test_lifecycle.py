"""No path through the states that the tables do not have, whatever order things are done in."""

from __future__ import annotations

import contextlib
import sqlite3
from datetime import UTC, datetime, timedelta
from itertools import pairwise, product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from registry import approvals, audit, canaries, candidates, control, pointers, tenants
from registry.lifecycle import APPROVAL, CANARY, CANDIDATE, MACHINES, IllegalTransition, Machine
from registry.manifest import AgentVersion, Manifest, Policy
from registry.tenants import RegistryError

AGENT = "support"
VERSIONS = ("1", "2", "3")


def prepared(folder: Path) -> sqlite3.Connection:
    connection = control.connect(folder / "control.sqlite")
    connection.execute("PRAGMA synchronous=OFF")
    tenants.create_tenant(connection, "acme", train="allow")
    tenants.create_agent(connection, AGENT, "model", approvers=("dana", "eli"))
    for number in VERSIONS:
        manifest = Manifest(policy=Policy(base="model", served_name=f"support-v{number}"))
        version = AgentVersion(agent=AGENT, version=number, digest=manifest.digest, manifest=manifest)
        pointers.put_version(connection, version)
    pointers.set_champion(connection, AGENT, "1", "first", "test")
    return connection


@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: m.name)
def test_a_table_names_every_state_with_its_meaning_and_leads_everywhere(machine: Machine) -> None:
    assert set(machine.meaning) == set(machine.states)
    assert set().union(*machine.transitions.values()) | {machine.initial} == set(machine.states)


def test_the_types_and_the_tables_have_the_same_states() -> None:
    assert set(get_args(candidates.State)) == set(CANDIDATE.states)
    assert set(get_args(canaries.State)) == set(CANARY.states)
    assert set(get_args(approvals.Status)) == set(APPROVAL.states)


def test_every_move_of_a_candidate_that_the_table_does_not_have_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    connection = prepared(tmp_path)
    for before, after in product(CANDIDATE.states, repeat=2):
        connection.execute("DELETE FROM candidates")
        body = candidates.Candidate(agent=AGENT, version="2", state=before, since="")  # type: ignore[arg-type]
        connection.execute("INSERT INTO candidates VALUES (?,?,?,?)", (AGENT, "2", before, msgspec.json.encode(body)))
        legal = after == before or after in CANDIDATE.transitions[before]
        with contextlib.nullcontext() if legal else pytest.raises(IllegalTransition):
            candidates.move(connection, AGENT, "2", after)  # type: ignore[arg-type]
        known = candidates.get(connection, AGENT, "2")
        assert known is not None and known.state == (after if legal else before)


class Deliveries(RuleBasedStateMachine):
    """Operators, flows and approvers at work on one agent, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self._folder = TemporaryDirectory()
        self.connection = prepared(Path(self._folder.name))
        self.clock = datetime.now(UTC)
        self.champions = ["1"]

    def teardown(self) -> None:
        self.connection.close()
        self._folder.cleanup()

    @rule(version=st.sampled_from(VERSIONS), to=st.sampled_from(CANDIDATE.states))
    def move(self, version: str, to: Any) -> None:
        with contextlib.suppress(IllegalTransition):
            candidates.move(self.connection, AGENT, version, to)

    @rule(version=st.sampled_from(VERSIONS), weight=st.floats(0, 1))
    def start_canary(self, version: str, weight: float) -> None:
        with contextlib.suppress(RegistryError):
            pointers.start_canary(self.connection, AGENT, version, weight)

    @rule(end=st.sampled_from(get_args(canaries.End)))
    def clear_canary(self, end: Any) -> None:
        pointers.clear_canary(self.connection, AGENT, end=end)

    @rule(version=st.sampled_from(VERSIONS))
    def promote(self, version: str) -> None:
        pointers.set_champion(self.connection, AGENT, version, "", "test")

    @rule(to=st.sampled_from(("previous", *VERSIONS)))
    def roll_back(self, to: str) -> None:
        with contextlib.suppress(RegistryError):
            pointers.rollback(self.connection, AGENT, to, "", "test")

    @rule(version=st.sampled_from(VERSIONS), run=st.sampled_from(("run-1", "run-2")), needed=st.integers(1, 2))
    def ask(self, version: str, run: str, needed: int) -> None:
        approvals.request(self.connection, AGENT, version, {}, 3 * 24 * 3600, run, needed)

    @rule(days=st.integers(0, 2))
    def wait(self, days: int) -> None:
        self.clock += timedelta(days=days)

    @rule(
        which=st.integers(0, 5),
        by=st.sampled_from(("dana", "eli", "mallory")),
        decision=st.sampled_from(("approved", "rejected")),
    )
    def decide(self, which: int, by: str, decision: Any) -> None:
        asked = approvals.list_approvals(self.connection, AGENT)
        if not asked:
            return
        before = approvals.get(self.connection, asked[which % len(asked)].id, self.clock)
        try:
            after, changed = approvals.decide(self.connection, before.id, decision, by, "cli", at=self.clock)
        except RegistryError:
            assert by == "mallory" or before.status not in ("pending", decision)
            return
        assert by != "mallory"
        assert changed == (after != before)
        yes = {grant.by for grant in after.grants if grant.decision == "approved"}
        assert (after.status == "approved") == (len(yes) >= after.needed)

    @invariant()
    def a_route_names_a_canary_exactly_while_one_is_running(self) -> None:
        running = [c for c in canaries.list_canaries(self.connection, AGENT) if c.state == "running"]
        assert [c.version for c in running] == [v for v in [pointers.read_route(self.connection, AGENT).canary] if v]

    @invariant()
    def every_candidate_went_a_legal_way(self) -> None:
        ways: dict[str, list[str]] = {}
        for entry in audit.entries(self.connection, AGENT):
            if entry.action == "candidate.state":
                way = ways.setdefault(entry.detail["version"], [])
                assert (entry.detail["from"] or None) == (way[-1] if way else None)
                way.append(entry.detail["to"])
        for way in ways.values():
            assert way[0] == CANDIDATE.initial
            assert all(after in CANDIDATE.transitions[before] for before, after in pairwise(way))

    @invariant()
    def what_is_decided_stays_decided(self) -> None:
        for asked in approvals.list_approvals(self.connection, AGENT):
            decided = [e.action for e in audit.entries(self.connection, asked.id)]
            ends = [a for a in decided if a in ("approval.approved", "approval.rejected", "approval.expired")]
            assert len(ends) == (asked.status != "pending")

    @invariant()
    def nobody_can_alter_the_record_unseen(self) -> None:
        assert audit.verify(self.connection) == []


TestDeliveries = Deliveries.TestCase
TestDeliveries.settings = settings(
    max_examples=15, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
