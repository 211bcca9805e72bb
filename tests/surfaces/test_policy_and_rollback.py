"""Policy updates by what the data allow; the way back when a version is certainly worse."""

from __future__ import annotations

from typing import Any

from evaluators.cases import Case
from evoplane.settings import Settings
from flows.interventions.rollback import history
from registry.manifest import AgentVersion, Harness, Manifest
from tests.evaluators.conftest import make_case
from tests.surfaces.making import applied, evidence, manifest, ordinary, propose, showing

ALL = Settings.model_validate(
    {
        "surfaces": {"algorithms": ["sft", "rft", "dpo", "grpo", "opd"], "max_proposals": 9},
        "evolve": {"min_demonstrations": 8},
    }
)


def unable(n: int = 48) -> list[Case]:
    """It fails at several tools for several tenants, and people show what is right and say so."""
    cases = []
    for number in range(n):
        name = ("cancel", "refund", "track", "exchange")[number % 4]
        words = ("Please {} {}", "{} {} now", "I want to {} {}", "Can you {} {}?")[number // 4 % 4]
        cases.append(
            make_case(
                words.format(name, f"A{1000 + number}"),
                calls=[("nothing", {})],
                demonstration=showing((name, {"order_id": f"A{1000 + number}"})),
                demonstration_id=f"an_{number}",
                corrections=["That is not what I asked for."],
                tenant=("northwind", "lumen")[number % 2],
            )
        )
    return cases


def test_each_algorithm_is_proposed_for_the_data_it_learns_from() -> None:
    mixed = [make_case("Say hello to my friend.", reward=float(n % 2), text="Hello.") for n in range(20)]
    seen = evidence([*unable(), *mixed, *ordinary()])
    found = {p.content["algorithm"]: p for p in propose("policy", seen, ALL)}
    assert {"sft", "rft", "dpo", "opd"} <= set(found)
    assert len({p.fingerprint for p in found.values()}) == len(found)
    assert found["dpo"].evidence and set(found["dpo"].evidence) <= {f"an_{n}" for n in range(48)}
    assert "grpo" in found


def test_only_what_the_settings_allow_is_proposed_and_only_where_failures_call_for_it() -> None:
    seen = evidence([*unable(), *ordinary()])
    assert [p.content["algorithm"] for p in propose("policy", seen)] == ["sft"]
    assert propose("policy", evidence(ordinary(120, failing=0.3)), ALL) == []


def version(label: str, parent: str | None, manifest: Manifest) -> AgentVersion:
    return AgentVersion(agent="support", version=label, digest=manifest.digest, manifest=manifest, parent=parent)


OLD, NEW = manifest(), manifest(harness=Harness(system_append="Be very strict."))
VERSIONS = {"1": version("1", None, OLD), "2": version("2", "1", NEW)}


def served(label: str, n: int, good: int, **given: Any) -> list[Case]:
    return [make_case(f"Where is A{i}?", reward=float(i < good), agent_version=label, **given) for i in range(n)]


def seen(before: list[Case], after: list[Case]) -> Any:
    found = evidence(after, NEW, versions=history(VERSIONS, "2"))
    return type(found)(**{**{f: getattr(found, f) for f in found.__struct_fields__}, "cases": [*before, *after]})


def test_a_version_that_is_certainly_worse_is_taken_back() -> None:
    found = seen(served("1", 60, 57), served("2", 60, 36))
    (proposal,) = propose("rollback", found)
    assert proposal.content["version"] == "1"
    assert applied(found, proposal) == OLD


def test_a_difference_that_may_be_chance_or_of_few_sessions_is_not() -> None:
    assert propose("rollback", seen(served("1", 60, 54), served("2", 60, 51))) == []
    assert propose("rollback", seen(served("1", 10, 10), served("2", 60, 20))) == []
    assert propose("rollback", seen(served("1", 60, 57, purpose="evaluate"), served("2", 60, 36))) == []


def test_the_first_version_has_nothing_to_go_back_to() -> None:
    assert history(VERSIONS, "1") == (VERSIONS["1"],)
    assert propose("rollback", evidence(served("1", 60, 10))) == []
