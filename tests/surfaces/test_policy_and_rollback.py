"""Policy updates by what the data allow; the way back when a version is certainly worse."""

from __future__ import annotations

from typing import Any

import msgspec

from evaluators import dataset
from evaluators.cases import Case
from evoplane.settings import Settings
from flows.interventions import Evidence
from flows.interventions.policy import expected
from flows.interventions.rollback import history
from flows.tenancy import Learnable
from registry.manifest import AgentVersion, Harness, Manifest
from tests.evaluators.conftest import make_case
from tests.surfaces.making import applied, evidence, manifest, of, ordinary, propose, showing

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


def bare(cases: list[Case], *less: str) -> list[Case]:
    """The same failures, with less said about them."""
    without = {"demonstrations": {"demonstration": None, "demonstration_id": None},
               "corrections": {"corrections": ()}, "tokens": {"completion_token_ids": []}}  # fmt: skip
    given = {name: value for each in less for name, value in without[each].items()}
    return [of(c, prompt_token_ids=[n, 1], **given) for n, c in enumerate(cases)]


GREETINGS = (
    "Say hello to my friend.",
    "Wish mother luck.",
    "Welcome the whole team!",
    "Thank our neighbour kindly.",
    "Write a birthday card.",
    "Greet the new colleague warmly.",
    "Send regards home.",
    "Cheer grandfather up.",
)


def attempts(each: int, **given: Any) -> list[Case]:
    """Attempts at some prompts, half of each in vain, and at one that always fails."""
    mixed = [make_case(said, reward=float(i % 2), prompt_token_ids=[7, n], **given)
             for n, said in enumerate(GREETINGS) for i in range(each)]  # fmt: skip
    return mixed + [make_case("Whistle a tune backwards.", prompt_token_ids=[8], **given) for _ in range(4)]


def able_and_refused(cases: list[Case], config: Settings = ALL) -> tuple[list[str], dict[str, str]]:
    found = propose("policy", as_policys(cases), config)
    refused = {p.content["algorithm"]: p.refused for p in found if p.refused}
    return [p.content["algorithm"] for p in found if not p.refused], refused


def as_policys(cases: list[Case]) -> Evidence:
    """Evidence whose failures are the policy's, whatever was said about them."""
    found = evidence(cases)
    why = evidence([*unable(), *ordinary()]).diagnosis
    return msgspec.structs.replace(found, diagnosis=why)


def test_demonstrations_call_for_sft_and_what_was_done_instead_for_dpo_behind_it() -> None:
    able, refused = able_and_refused(bare(unable(), "corrections"))
    assert able == ["sft", "dpo"]
    assert set(refused) == {"rft", "grpo", "opd"}
    assert refused["rft"] == "rft needs 8 (evolve.min_demonstrations), and there are 0 of its own successes"
    able, refused = able_and_refused(bare(unable(), "corrections", "tokens"))
    assert able == ["sft"] and "0 pairs of what was shown and what was done" in refused["dpo"]


def test_rewarded_successes_alone_call_for_rft() -> None:
    well = [make_case(f"Say {word} to me.", reward=1.0, text="Yes.") for word in "abcdefghijkl"]
    able, refused = able_and_refused([of(c, prompt_token_ids=[n, 2]) for n, c in enumerate(well)])
    assert able == ["rft"] and "a group of one" in refused["grpo"]


def test_groups_that_ended_differently_at_temperature_1_call_for_grpo() -> None:
    able, refused = able_and_refused(attempts(4))
    assert able[0] == "grpo" and "sft" in refused
    able, refused = able_and_refused(attempts(4, params={"temperature": 0.2}))
    assert "grpo" not in able and "sampled at another temperature than 1" in refused["grpo"]
    able, refused = able_and_refused(attempts(1))
    assert "grpo" not in able and "a group of one" in refused["grpo"]
    assert dataset.contrasting(attempts(0), dataset.NONE_HELD_OUT) == ([], {"all of its group ended alike": 4})


def test_corrections_call_for_opd() -> None:
    able, refused = able_and_refused(bare(unable(), "demonstrations"))
    assert able == ["opd"] and set(refused) == {"sft", "rft", "dpo", "grpo"}


def test_a_setting_narrows_the_choice_and_failures_that_call_for_nothing_get_nothing() -> None:
    seen = evidence([*unable(), *ordinary()])
    only = Settings.model_validate({"surfaces": {"algorithms": ["dpo"]}, "evolve": {"min_demonstrations": 8}})
    assert [p.content["algorithm"] for p in propose("policy", seen, only)] == ["dpo"]
    assert propose("policy", seen)[0].content["algorithm"] == "sft"
    assert propose("policy", evidence(ordinary(120, failing=0.3)), ALL) == []


def test_only_the_data_of_tenants_that_share_a_set_are_counted() -> None:
    seen = evidence([*unable(), *ordinary()])

    def found(learnable: Learnable | None) -> dict[str, tuple[int, str]]:
        told = propose("policy", msgspec.structs.replace(seen, learnable=learnable), ALL)
        return {p.content["algorithm"]: (len(p.evidence), p.refused) for p in told}

    everybodys, half = found(None), found(Learnable(("northwind",)))
    assert 0 < half["sft"][0] < everybodys["sft"][0] and not half["sft"][1]
    assert 0 < half["opd"][0] < everybodys["opd"][0]
    nobodys = found(Learnable((), "none has agreed to pooling"))
    assert all(rows == 0 and "none has agreed to pooling" in refused for rows, refused in nobodys.values()), nobodys
    few = msgspec.structs.replace(seen, learnable=Learnable(("brightside",)))
    assert all(p.refused for p in propose("policy", few, ALL)), "a tenant with nothing to learn from"


def test_what_is_expected_grows_with_the_data_and_falls_with_what_a_row_costs() -> None:
    assert expected("sft", 100, 0.5, ALL) > expected("sft", 10, 0.5, ALL) > expected("sft", 10, 0.1, ALL)
    assert expected("sft", 50, 0.5, ALL) == 4 * expected("dpo", 50, 0.5, ALL), "a pair is two rows, each twice"
    assert expected("rft", 0, 0.5, ALL) == 0


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
