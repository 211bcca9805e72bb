"""Failures are told apart by their evidence, and named only where there are more than chance brings."""

from __future__ import annotations

import random

import msgspec
import pytest

from evaluators import corrections
from evaluators.diagnosis import diagnose, page
from evaluators.diagnosis.chance import concentration, holm
from evaluators.diagnosis.mix import change
from evaluators.diagnosis.outcomes import outcomes_of
from evaluators.steps import Step

TOOLS = ("track_order", "cancel_order", "start_return", "change_address")
TENANTS = ("northwind", "lumen", "tundra")
ORDER = {"order_id": "A10"}
REJECTED = "error: reason must be one of damaged, wrong_item, changed_mind"


def fine(case, n: int = 120, **given) -> list:
    """Work that succeeded, over all tools and tenants."""
    return [case("Do it.", reward=1.0, tenant=TENANTS[i % 3], calls=[(TOOLS[i % 4], ORDER)], **given) for i in range(n)]


def failing(case, n: int, demonstration, tenant: str = "", **given) -> list:
    return [
        case("Do it.", tenant=tenant or TENANTS[i % 3], demonstration=demonstration, demonstration_id=f"d{i}", **given)
        for i in range(n)
    ]


def first(cases, **given):
    return diagnose(cases, corrections.established(cases), **given).clusters[0]


def test_a_fact_several_people_state_suggests_memory(case):
    found = first([*fine(case), *(case(corrections=["The warranty is 12 months."]) for _ in range(4))])
    assert (found.name, found.surface) == ('missing or stale fact: "warranty" (northwind)', "memory")
    assert found.kinds == ("warranty",) and found.tenants == ("northwind",)


def test_a_fact_the_model_was_shown_is_not_missing(case):
    shown = [case(corrections=["The warranty is 12 months."], overlay_text="- The warranty is 12 months.")
             for _ in range(6)]  # fmt: skip
    assert first([*fine(case), *shown]).surface == "policy"


def test_one_tool_in_place_of_another_suggests_the_tools_words(case, demonstrated):
    wrong = failing(case, 12, demonstrated("start_return", **ORDER), calls=[("cancel_order", ORDER)])
    found = first([*fine(case), *wrong])
    assert (found.name, found.surface) == ("cancel_order called instead of start_return", "tools")


def test_of_several_calls_wanted_any_may_be_the_mistaken_one(case, demonstrated):
    shown = demonstrated("send_label", **ORDER)
    shown["tool_calls"] += demonstrated("change_address", **ORDER)["tool_calls"]
    done = [("cancel_order", ORDER), ("change_address", ORDER)]
    found = first([*fine(case), *failing(case, 12, shown, calls=done)])
    assert (found.name, found.surface) == ("cancel_order called instead of send_label", "tools")


def test_values_of_a_form_the_tool_rejects_suggest_its_schema(case, demonstrated):
    rejected = Step("tool_call", "start_return", {"reason": "broken"}, "error", "invalid_arguments", REJECTED, "t")
    wrong = failing(case, 12, demonstrated("start_return", reason="damaged"),
                    calls=[("start_return", {"reason": "broken"})], steps=(rejected,))  # fmt: skip
    found = first([*fine(case), *wrong])
    assert (found.name, found.surface, found.argument) == ("start_return: wrong reason", "tools", "reason")
    assert any(REJECTED in line for line in found.why)


def test_an_argument_that_several_tools_reject_is_one_cluster_and_no_lack_of_ability(case, demonstrated):
    said = Step("tool_call", "x", {"order_id": "A10"}, "error", "invalid_arguments", "error: it looks like ORD-A1", "t")
    bad = [c for t in TOOLS for c in failing(case, 12, demonstrated(t, order_id="ORD-A10"),
           calls=[(t, {"order_id": "A10"})], steps=(msgspec.structs.replace(said, name=t),))]  # fmt: skip
    found = first([*(case(reward=1.0, text="12 months", tenant=TENANTS[i % 3]) for i in range(80)), *bad])
    assert found.surface == "tools" and found.argument == "order_id" and len(found.events) == 48
    assert found.kinds == tuple(sorted(TOOLS))


def test_values_of_a_form_no_right_value_has_suggest_the_schema_and_wrong_content_the_model(case, demonstrated):
    def wrong(given: str):
        bad = failing(case, 14, demonstrated("track_order", order_id="B7000"),
                      calls=[("track_order", {"order_id": given})])  # fmt: skip
        return first([*fine(case), *bad]).surface

    assert wrong("order B7000") == "tools"
    assert wrong("C1234") == "policy"


def test_steps_others_take_and_this_one_left_out_suggest_a_skill(case, demonstrated):
    calls = [call for tool in ("track_order", "cancel_order") for call in demonstrated(tool, **ORDER)["tool_calls"]]
    both = {"role": "assistant", "content": None, "tool_calls": calls}
    through = [case(reward=1.0, calls=[("track_order", ORDER), ("cancel_order", ORDER)]) for _ in range(3)]
    found = first([*fine(case), *through, *failing(case, 12, both, calls=[("cancel_order", ORDER)])])
    assert (found.name, found.surface) == ("cancel_order: left out track_order", "skill")
    assert "3 sessions went through all steps" in found.why[1]


def test_refusing_what_people_want_suggests_the_harness_if_the_prompt_forbids_it_and_else_the_model(case, demonstrated):
    def refusing(**given):
        refused = failing(case, 12, demonstrated("cancel_order", **ORDER), text="I'm not allowed to do that.", **given)
        return first([*fine(case), *refused])

    forbidden = refusing(overlay_text="Never change an order without a supervisor's approval.")
    assert forbidden.surface == "harness" and any("Never change an order" in line for line in forbidden.why)
    assert refusing().surface == "policy"


def test_failures_across_tools_and_tenants_that_stand_out_nowhere_suggest_the_model(case, demonstrated):
    bad = [c for t in TOOLS for c in failing(case, 12, demonstrated(t, **ORDER), text="Hm.")]
    found = first([*fine(case, 60), *bad])
    assert found.surface == "policy" and found.broad and len(found.events) == 48


def test_a_model_that_calls_no_tool_at_all_is_one_broad_failure_though_its_answers_are_right(case, demonstrated):
    bad = [c for t in TOOLS for c in failing(case, 20, demonstrated(t, **ORDER), text="I see.")]
    found = first([*(case(reward=1.0, text="12 months", tenant=TENANTS[i % 3]) for i in range(80)), *bad])
    assert found.surface == "policy" and found.broad and len(found.events) == 80


def test_noise_suggests_nothing(case, demonstrated):
    disturbed = 0
    for seed in range(20):
        rng = random.Random(seed)
        cases = fine(case, 180)
        for _ in range(14):
            kind = rng.choice(TOOLS)
            does = rng.choice([{"text": "Hm."}, {"calls": [(rng.choice(TOOLS), ORDER)]}, {"calls": [(kind, {})]}])
            cases += failing(case, 1, demonstrated(kind, **ORDER), tenant=rng.choice(TENANTS), **does)
        disturbed += not diagnose(cases).calls_for_nothing
    assert disturbed <= 1


def test_what_nobody_explained_is_counted_and_suggests_nothing(case):
    found = diagnose([*fine(case, 30), *(case() for _ in range(30))])
    assert (found.judged, found.failures) == (60, 30)
    assert [(c.name, c.surface) for c in found.clusters] == [("unexplained", "no-op")]


def test_decisions_judged_together_are_one_outcome(case):
    turns = [case("Hello.", trajectory_id="t", judged_at="x") for _ in range(9)]
    turns.append(case(trajectory_id="t", judged_at="x", corrections=["The warranty is 12 months."]))
    found = diagnose([*fine(case, 30), *turns])
    assert (found.judged, found.failures) == (31, 1) and found.clusters[0].events == (turns[-1].key,)


def test_a_version_that_does_the_same_work_worse_suggests_going_back(case, demonstrated):
    before = fine(case, 120, agent_version="1")
    bad = [c for t in TOOLS for c in failing(case, 8, demonstrated(t, **ORDER), text="Hm.", agent_version="2")]
    found = diagnose([*fine(case, 80, agent_version="2"), *bad], before=before)
    assert found.clusters[0].surface == "rollback" and found.regression is not None
    assert diagnose(fine(case, 80), before=before).regression is None


def test_another_mix_of_work_is_no_regression(case, demonstrated):
    """Half of returns always failed; now there are more of them."""

    def work(easy: int, hard: int) -> list:
        done = [case(reward=1.0, calls=[("track_order", ORDER)]) for _ in range(easy)]
        return done + [case(reward=float(i % 2), calls=[("start_return", ORDER)], demonstration=demonstrated(
            "start_return", **ORDER)) for i in range(hard)]  # fmt: skip

    moved = change(outcomes_of(work(50, 50)), outcomes_of(work(90, 10)), 0.05)
    assert moved.within.value == 0 and moved.mix == pytest.approx(-0.2)
    assert diagnose(work(50, 50), before=work(90, 10)).regression is None


def test_holm_rejects_as_the_textbook_does():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_concentration_is_fishers_tea():
    """The lady tasting tea: 3 of 4 right has p = 17/70."""
    assert concentration(3, 4, 1, 4) == pytest.approx(17 / 70)


def test_the_page_names_every_cluster_its_surface_and_its_trajectories(case, demonstrated):
    wrong = failing(case, 12, demonstrated("start_return", **ORDER), calls=[("cancel_order", ORDER)])
    text = page("support", "3", diagnose([*fine(case), *wrong]))
    assert "Suggests **tools**" in text and wrong[-1].trajectory_id in text and "cancel_order called instead" in text
