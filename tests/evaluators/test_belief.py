"""A judge that goes by length is not believed; one that others bear out is."""

from __future__ import annotations

import random

from msgspec.structs import replace

from evaluators.cases import Action
from evaluators.diagnosis import diagnose
from evaluators.diagnosis.belief import believed, doubted
from evaluators.rewards import Signal


def signal(value: float, source: str) -> Signal:
    return Signal(
        id=f"{source}-{value}", name="resolved", value=value, source=source, source_id="j", at="t", written="t"
    )


def judged(case, n: int, known: float, score, seed: int = 0) -> list:
    """Work with a judge's scores; a share of it also has an outcome. 9 of 10 are good."""
    rng, cases = random.Random(seed), []
    for _ in range(n):
        good, length = rng.random() < 0.9, rng.randrange(10, 200)
        said = score(rng, good, length)
        signals = [signal(said, "llm_judge")]
        if rng.random() < known:
            signals.append(signal(float(good), "environment"))
        cases.append(case(text="x" * length, reward=signals[-1].value, signals=tuple(signals)))
    return cases


def by_length(rng, good, length):
    return float(length + rng.gauss(0, 30) > 100)


def by_merit(rng, good, length):
    return float(good if rng.random() < 0.9 else not good)


def test_a_judge_that_goes_by_length_is_not_believed_and_what_only_it_judged_is_left_out(case):
    cases = judged(case, 200, 0.5, by_length)
    found = doubted(cases, 0.05)
    kept = believed(cases, found)
    assert found is not None and "length" in found.why[0] and len(cases) - len(kept) > 50
    assert sum(c.reward for c in kept) / len(kept) > 0.8


def test_a_judge_that_goes_by_length_is_not_believed_either_where_nobody_else_judges(case):
    cases = judged(case, 200, 0.0, by_length)
    found = doubted(cases, 0.05)
    assert found is not None and believed(cases, found) == []


def test_a_judge_whose_scores_follow_the_outcomes_is_believed(case):
    assert [doubted(judged(case, 200, 0.5, by_merit, seed), 0.05) for seed in range(20)] == [None] * 20


def test_longer_answers_that_are_better_are_no_reason_for_doubt(case):
    def merit_is_length(rng, good, length):
        return float(good)

    cases = judged(case, 200, 1.0, merit_is_length)
    cases = [replace(c, action=Action("x" * (150 if c.reward else 20))) for c in cases]
    assert doubted(cases, 0.05) is None and believed(cases, None) == cases


def test_a_diagnosis_says_whose_rewards_it_left_out(case):
    found = diagnose(judged(case, 200, 0.5, by_length))
    assert found.disbelief is not None and found.disbelief.judge.startswith("resolved (llm_judge")
    assert found.failures < 0.2 * found.judged
