"""The simulations behind `evoplane bench replay`, small: the bars they must meet at full size, with room for chance."""

from __future__ import annotations

from random import Random

from benchmarks.replay.deployment import delivered, interval_in
from benchmarks.replay.population import agents, replayed
from benchmarks.replay.simulation import agrees, interval_coverage, live_difference, replay_vs_canary_agreement
from evaluators.intervals import Interval
from registry import approvals, control, decisions, pointers, tenants
from registry.manifest import AgentVersion, Manifest, Policy


def test_stated_intervals_hold_the_true_improvement_about_as_often_as_they_say() -> None:
    found = interval_coverage(600)
    assert 0.93 <= found["interval_coverage"] <= 0.98
    assert found["interval_coverage_lowest"] > 0.84


def test_repeats_make_the_interval_narrower_but_not_as_if_they_were_new_cases() -> None:
    random = Random(3)
    who = agents(random, 0.6, 0.1)

    def width(repeats: int) -> float:
        found = [replayed(random, who, 200, 96, repeats).improvement for _ in range(8)]
        return sum(i.high - i.low for i in found) / len(found)

    once, often = width(1), width(6)
    assert once / 6**0.5 < often < once


def test_what_replay_promises_of_accepted_candidates_is_mostly_confirmed_live() -> None:
    found = replay_vs_canary_agreement(60)
    assert found["replay_vs_canary_agreement"] >= 0.8 and found["accepted_candidates"] > 20
    assert found["replay_optimism_when_accepted"] < 0.1


def test_agreement_counts_the_errors_of_both() -> None:
    promised = Interval(value=0.3, low=0.2, high=0.4, n=96)
    assert agrees(promised, Interval(value=0.2, low=0.05, high=0.35, n=100))
    assert not agrees(promised, Interval(value=0.0, low=-0.1, high=0.1, n=400))
    assert live_difference([True] * 90 + [False] * 10, [True] * 210 + [False] * 90).low > 0.1


def test_a_deployments_own_deliveries_are_compared_from_its_records(tmp_path) -> None:  # type: ignore[no-untyped-def]
    connection = control.connect(tmp_path / "control.sqlite")
    tenants.create_agent(connection, "support", "base", None, ("dana",))
    promised = {"value": 0.25, "low": 0.15, "high": 0.35, "n": 90}
    candidates = {"memory-1": {"replay": {"improvement": promised}}}
    decisions.put(connection, "dec_1", "support", {"parent": "1", "chosen": "memory-1", "candidates": candidates})
    manifest = Manifest(policy=Policy(base="base", served_name="base"))
    version = AgentVersion(agent="support", version="2", digest=manifest.digest, manifest=manifest, parent="1",
                           intervention="memory", lineage={"decision": "dec_1"})  # fmt: skip
    pointers.put_version(connection, version)
    seen = Interval(value=0.2, low=-0.1, high=0.5, n=24)
    approvals.request(connection, "support", "2", {"canary": {"difference": str(seen)}}, 3600)
    (found,) = delivered(connection, "support")
    assert (found.surface, found.replay.n, found.canary, found.agrees) == ("memory", 90, seen, True)
    assert interval_in("not observed") is None
