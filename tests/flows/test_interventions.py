"""What each surface proposes, and what its proposals do to a manifest."""

from __future__ import annotations

import msgspec
import pytest

from evaluators import corrections, dataset, diagnosis
from evaluators.canary import Outcome
from evaluators.canary_outcomes import Arrivals
from evoplane.settings import Settings
from flows import exposure
from flows.interventions import INTERVENTIONS, Evidence
from registry.manifest import Manifest, MemoryItem, Policy
from tests.evaluators.conftest import calling, make_case

CONFIG = Settings()


def manifest() -> Manifest:
    def item(tenant: str, topic: str, text: str, trust: str = "vetted") -> MemoryItem:
        return MemoryItem(id=f"mem_{tenant}_{topic}", tenant=tenant, topic=topic, text=text, trust=trust)  # type: ignore[arg-type]

    memory = (
        item("northwind", "warranty", "The warranty is 12 months."),
        item("northwind", "returns window", "The returns window is 30 days.", "candidate"),
        item("lumen", "warranty", "The warranty is 36 months."),
    )
    return Manifest(policy=Policy(base="m", served_name="m"), memory=memory)


def evidence(cases: list) -> Evidence:
    facts = corrections.established(cases)
    return Evidence(agent="support", snapshot="x.dir", cases=cases, current=cases, manifest=manifest(), facts=facts,
                    diagnosis=diagnosis.diagnose(cases, facts), split=dataset.split(cases, 0.25))  # fmt: skip


def corrected(text: str = "The warranty is 24 months.", n: int = 5) -> list:
    return [make_case(corrections=[text]) for _ in range(n)]


def test_memory_proposes_what_users_say_and_the_agent_does_not_know():
    (proposal,) = INTERVENTIONS["memory"].propose(evidence(corrected()), CONFIG)
    (item,) = proposal.content["items"]
    assert (item["tenant"], item["text"]) == ("northwind", "The warranty is 24 months.")
    assert len(item["provenance"]) == len(proposal.source_sessions) == 3
    assert "- northwind: The warranty is 12 months." in proposal.diff


def test_memory_proposes_nothing_the_agent_knows_already():
    assert INTERVENTIONS["memory"].propose(evidence(corrected("The warranty is 12 months.")), CONFIG) == []


def test_a_new_item_replaces_its_tenants_old_one_and_no_other():
    (proposal,) = INTERVENTIONS["memory"].propose(evidence(corrected()), CONFIG)
    changed = INTERVENTIONS["memory"].apply(manifest(), proposal, {})
    texts = {(i.tenant, i.topic): (i.text, i.trust) for i in changed.memory}
    assert texts["northwind", "warranty"] == ("The warranty is 24 months.", "candidate")
    assert texts["lumen", "warranty"] == ("The warranty is 36 months.", "vetted")
    assert texts["northwind", "returns window"][1] == "vetted"  # it came with a version a person approved


def test_policy_is_proposed_only_for_failures_it_could_mend_and_with_enough_demonstrations():
    def shown(n: int) -> list:
        words = ["Stop", "Please cancel", "Drop it now,", "Never mind my"] * n
        orders = [(word, f"A{i}0") for i, word in enumerate(words, 100)]
        return [
            make_case(f"{w} order {o}.", demonstration=calling("cancel_order", order_id=o), demonstration_id=f"an_{o}")
            for w, o in orders
        ]

    assert INTERVENTIONS["policy"].propose(evidence(corrected()), CONFIG) == []
    assert all(p.refused for p in INTERVENTIONS["policy"].propose(evidence(shown(2)), CONFIG))
    assert not INTERVENTIONS["policy"].propose(evidence(shown(20)), CONFIG)[0].refused


def test_the_same_change_from_the_same_evidence_is_recognised_and_new_evidence_is_new():
    cases = corrected()
    (once,) = INTERVENTIONS["memory"].propose(evidence(cases), CONFIG)
    (again,) = INTERVENTIONS["memory"].propose(evidence(cases), CONFIG)
    (more,) = INTERVENTIONS["memory"].propose(evidence([*cases, *corrected(n=1)]), CONFIG)
    assert once.fingerprint == again.fingerprint != more.fingerprint


def test_a_canary_session_counts_once_and_only_for_its_own_version():
    def seen(role: str, version: str, **given):
        return make_case(role=role, agent_version=version, at="2026-02-01T00:00:00Z", reward=1.0, **given)

    cases = [seen("canary", "2", session_id="s1"), seen("canary", "2", session_id="s1"), seen("canary", "9"),
             seen("champion", "1"), seen("champion", "1", purpose="evaluate"), seen("shadow", "2")]  # fmt: skip
    arrivals = Arrivals("2", "2026-01-31T00:00:00Z")
    assert sorted(o.arm for o in arrivals.new(cases)) == ["canary", "champion"]
    assert arrivals.new(cases) == []


def test_the_watch_compares_each_new_session_with_its_share_of_the_old_ones():
    before = [make_case(reward=0.0) for _ in range(4)]
    dealt = exposure.interleave(before, [make_case(reward=1.0), make_case(reward=1.0)], 2)
    assert [o.arm for o in dealt] == ["champion", "champion", "canary"] * 2
    assert msgspec.to_builtins(dealt[-1]) == msgspec.to_builtins(Outcome("canary", True))


@pytest.mark.parametrize("surface", sorted(INTERVENTIONS))
def test_an_intervention_names_its_surface_and_cost(surface: str):
    intervention = INTERVENTIONS[surface]
    assert intervention.surface == surface
    assert (intervention.cost(CONFIG) > 0) is (surface != "no-op")
    assert intervention.risk(CONFIG) >= 0
