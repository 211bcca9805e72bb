"""What a rule makes of signals: precedence, conflicts, age, confidence, corrections of the record, causal credit."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from evaluators.rewards import DEFAULT_RULE, declare, resolve
from evaluators.rewards.rule import decode, encode
from tests.evaluators.rewards.making import at, event, says

ANY = {"name": "*"}


def reward(annotations: list[dict[str, Any]], **rule: Any) -> float | None:
    judged = resolve(annotations, declare(**rule)).trajectory
    return None if judged is None else judged.reward


def why(annotations: list[dict[str, Any]], **rule: Any) -> dict[str, str]:
    return {s.id: s.ignored for s in resolve(annotations, declare(**rule)).signals if s.ignored}


def test_by_default_the_latest_resolved_is_every_steps_reward_whatever_else_is_said() -> None:
    said = [says("a", 1, at=at(1)), says("b", 0, at=at(2), about="e1"), says("c", 1, "judge", "llm_judge", at=at(3))]
    found = resolve(said)
    assert found.trajectory is not None
    assert (found.trajectory.reward, found.of("e9"), found.rule) == (0, found.trajectory, DEFAULT_RULE.digest)
    assert {s.id: s.ignored for s in found.signals} == {
        "a": "older than b",
        "b": "",
        "c": "no clause of the rule names it",
    }


def test_before_any_signal_there_is_no_reward() -> None:
    assert resolve([]).trajectory is None


def test_the_sources_with_the_lowest_precedence_that_spoke_decide() -> None:
    clauses = [{"kinds": ["environment"]}, {"kinds": ["end_user"], "precedence": 1}]
    user, environment = says("u", 1, at=at(9)), says("e", 0, "tests", "environment")
    assert reward([user], clauses=clauses) == 1
    assert reward([user, environment], clauses=clauses) == 0
    assert why([user, environment], clauses=clauses) == {"u": "outranked by tests"}


@pytest.mark.parametrize(("conflict", "expected"), [("latest", 1), ("mean", 0.5), ("lowest", 0), ("abstain", None)])
def test_contradicting_signals_are_handled_as_the_rule_says(conflict: str, expected: float | None) -> None:
    said = [says("a", 0, at=at(1)), says("b", 1, at=at(2))]
    assert reward(said, clauses=[ANY], conflict=conflict) == expected


def test_signals_that_agree_are_no_conflict_for_a_rule_that_abstains() -> None:
    assert reward([says("a", 0.6), says("b", 1)], clauses=[ANY], conflict="abstain") == pytest.approx(0.8)


def test_weights_and_confidences_multiply_in_the_mean() -> None:
    said = [says("a", 1, "tests", confidence=0.5), says("b", 0, "lint", confidence=1.0)]
    clauses = [{"name": "tests", "weight": 6}, {"name": "lint", "weight": 1}]
    assert reward(said, clauses=clauses, conflict="mean") == pytest.approx(3 / 4)


def test_a_contradicted_reward_is_less_confident_than_an_unanimous_one() -> None:
    rule = declare(clauses=[ANY], conflict="mean")
    agreed = resolve([says("a", 1), says("b", 1), says("c", 1)], rule).trajectory
    divided = resolve([says("a", 1), says("b", 1), says("c", 0)], rule).trajectory
    assert agreed is not None and divided is not None
    assert (agreed.confidence, round(divided.confidence, 3)) == (1, 0.667)


def test_a_signal_counts_half_for_every_half_life_it_is_older_than_the_newest() -> None:
    said = [says("old", 0, at=at(0)), says("new", 1, at=at(120))]
    assert reward(said, clauses=[{"half_life_s": 60}], conflict="mean") == pytest.approx(0.8)


def test_less_confident_signals_and_rewards_than_the_rule_asks_for_are_none() -> None:
    weak = says("w", 0, "user_thanks", "implicit", confidence=0.7)
    assert why([weak], clauses=[{"min_confidence": 0.8}]) == {"w": "confidence 0.70 is below 0.80"}
    assert reward([weak], clauses=[ANY], min_confidence=0.8) is None
    assert reward([weak], clauses=[ANY], min_confidence=0.7) == 0


@pytest.mark.parametrize(
    ("value", "scale", "expected"),
    [
        (-1, {"min": -1, "max": 1, "higher_is_better": True}, 0),
        (0, {"min": -1, "max": 1}, 0.5),
        (2, {"min": 0, "max": 10, "higher_is_better": False}, 0.8),
        (True, None, 1),
        (0.3, None, 0.3),
        (7, None, None),
        (7, {"min": 0, "max": 5}, None),
        (1, {"min": 1, "max": 1}, None),
    ],
)
def test_values_are_put_on_one_scale_and_none_is_guessed(value: Any, scale: Any, expected: float | None) -> None:
    said = says("a", value, **({"scale": scale} if scale else {}))
    assert reward([said], clauses=[ANY]) == expected


def test_the_rule_may_give_a_scale_and_the_worth_of_labels() -> None:
    rated = says("a", 3, "stars")
    used = says("b", None, "tool_result", "code", kind="label", label="corrected")
    assert reward([rated], clauses=[{"name": "stars", "scale": (1, 5)}]) == 0.5
    assert reward([used], clauses=[{"name": "tool_result", "labels": {"corrected": 0.1}}]) == 0.1
    assert reward([used], clauses=[ANY]) is None


def test_superseded_and_retracted_signals_are_named_but_do_not_count() -> None:
    said = [
        says("a", 1),
        says("b", 0, supersedes="a", at=at(1)),
        says("c", 0, "other"),
        says("d", None, "other", supersedes="c", retracted=True, at=at(2)),
    ]
    assert reward(said, clauses=[ANY]) == 0
    assert why(said, clauses=[ANY]) == {"a": "superseded by b", "c": "retracted by d"}


def test_a_reward_is_a_view_as_of_a_time_by_when_it_was_written_not_by_when_it_happened() -> None:
    late = says("late", 0, at=at(30), observed_at=at(1))
    early = says("early", 1, at=at(10), observed_at=at(9))
    then, now = resolve([late, early], as_of=at(20)), resolve([late, early])
    assert then.trajectory is not None and then.trajectory.signals == ("early",)
    assert next(s.ignored for s in then.signals if s.id == "late") == f"written after {at(20)}"
    assert now.trajectory is not None and now.trajectory.signals == ("early",)  # what happened last is the last word


def test_a_signal_about_an_event_is_that_steps_reward_and_no_others() -> None:
    found = resolve([says("a", 0, about="e2"), says("b", 1)], declare(clauses=[ANY]))
    assert found.of("e2") is not None and found.of("e2").reward == 0  # type: ignore[union-attr]
    assert found.of("e1") is found.trajectory
    assert resolve([says("a", 0, about="e2"), says("b", 1)], declare(clauses=[ANY], steps_from="none")).of("e1") is None


def test_a_signal_may_name_a_step_by_its_number() -> None:
    said = says("a", 0)
    said["targets"] = [{"trajectory_id": "tr", "step": 2}]
    events = [
        event("e1", step=1),
        event("t1", "tool_call", step=1),
        event("e2", step=2),
        event("t2", "tool_call", step=2),
    ]
    assert set(resolve([said], declare(clauses=[ANY]), events=events).steps) == {"e2"}


@pytest.mark.parametrize(
    ("how", "expected"), [("none", None), ("mean", 0.5), ("last", 0.8), ("min", 0.2), ("max", 0.8)]
)
def test_a_trajectory_nobody_judged_gets_what_the_rule_makes_of_its_steps(how: str, expected: float | None) -> None:
    said = [says("b", 0.8, about="e2"), says("a", 0.2, about="e1")]
    found = resolve(said, declare(clauses=[ANY], trajectory_from=how), events=[event("e1"), event("e2")]).trajectory
    assert (None if found is None else found.reward) == expected


def test_credit_goes_back_along_causal_links_and_decays_with_each() -> None:
    events = [
        event("u1", "user_message"),
        event("c1", causes=(("u1", "input"),)),
        event("t1", "tool_call", causes=(("c1", "decided_by"),)),
        event("c2", causes=(("t1", "input"),)),
        event("side"),
    ]
    said = [says("bad", 0, "tests", about="t1"), says("good", 1, about="c2")]
    found = resolve(said, declare(clauses=[ANY], credit_decay=0.5), events=events)
    # c1 decided t1 (one link, reward 0) and led to c2 (two links, reward 1): 1·0.25 / (0.5 + 0.25)
    assert found.steps["c1"].reward == pytest.approx(1 / 3)
    assert found.steps["c1"].confidence == 0.5
    assert found.steps["c1"].signals == ("bad", "good")
    assert found.steps["t1"].reward == 0  # what was said about it itself outweighs credit
    assert "side" not in found.steps


def test_no_credit_flows_from_another_attempt_or_branch() -> None:
    events = [event("c1"), event("c2", causes=(("c1", "retry_of"),)), event("c3", causes=(("c1", "branch_of"),))]
    said = [says("a", 1, about="c2"), says("b", 1, about="c3")]
    assert set(resolve(said, declare(clauses=[ANY], credit_decay=0.9), events=events).steps) == {"c2", "c3"}


def test_a_rules_digest_is_its_version_and_survives_being_kept() -> None:
    rule, other = declare(clauses=[ANY]), declare(clauses=[ANY], conflict="mean")
    assert rule.digest == declare(clauses=[{"name": "*", "weight": 1}]).digest != other.digest
    assert decode(encode(other)).digest == other.digest


@pytest.mark.parametrize(
    "wrong",
    [{"clauses": []}, {"clauses": [{"nmae": "x"}]}, {"clauses": [{"scale": (1, 1)}]}, {"clauses": [{"weight": 0}]}],
)
def test_a_rule_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        declare(**wrong)
