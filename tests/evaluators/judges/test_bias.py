"""Whether a judge may be believed: recorded judges beside the environment, and made-up ones with one fault each."""

from __future__ import annotations

import json
import random
from math import isnan

import pytest

from evaluators.judges.bias import JudgeBias, Judgement, judge_bias, length_effect
from tests.shared import DATA, REASON

AIRLINE = DATA / "tau2-airline"


def drawn(seed: int, n: int, right: float, likes_length: float = 0.0) -> list[Judgement]:
    """A judge that is right with probability `right`, and with probability `likes_length` goes by length alone."""
    chance, made = random.Random(seed), []
    for _ in range(n):
        outcome, length = chance.random() < 0.5, chance.randrange(100, 1000)
        verdict = outcome if chance.random() < right else not outcome
        if chance.random() < likes_length:
            verdict = length > 550
        made.append(Judgement(verdict, outcome, length))
    return made


def test_a_judge_that_agrees_with_outcomes_is_trusted() -> None:
    report = judge_bias(drawn(1, 200, 0.9))
    assert (report.state, report.reasons) == ("trusted", ())


def test_a_judge_that_likes_length_is_found_out_at_equal_outcome() -> None:
    report = judge_bias(drawn(1, 200, 0.95, likes_length=0.5), min_agreement=0.5)
    assert report.state == "not trusted"
    assert any("likes length" in reason for reason in report.reasons)


def test_right_answers_may_be_longer_without_the_judge_liking_length() -> None:
    chance = random.Random(3)
    known = [(o := chance.random() < 0.5, 100 + 900 * o + chance.randrange(200)) for _ in range(300)]
    judged = [Judgement(o if chance.random() < 0.9 else not o, o, length) for o, length in known]
    assert judge_bias(judged).state == "trusted"


def test_the_interval_of_the_length_effect_covers_none_where_there_is_none() -> None:
    covered = 0
    for seed in range(200):
        effect = length_effect(drawn(seed, 60, 0.8))
        covered += effect.low <= 0 <= effect.high
    assert 0.90 <= covered / 200 <= 0.99


def test_a_judge_that_goes_by_the_order_is_not_trusted() -> None:
    report = judge_bias(drawn(1, 200, 0.95), swaps=[False] * 30 + [True] * 30)
    assert (report.state, report.inconsistent.value) == ("not trusted", 0.5)


def test_one_that_passes_everything_has_no_length_effect_and_no_kappa_but_is_lenient() -> None:
    report = judge_bias([Judgement(True, n % 2 == 0, n) for n in range(100)])
    assert report.state == "not trusted"
    assert isnan(report.length.value) and isnan(report.kappa.value)
    assert report.leniency.low > 0.3


def test_few_outcomes_are_not_enough_data() -> None:
    assert judge_bias(drawn(1, 10, 1.0)).state == "not enough data"
    assert judge_bias([]).state == "not enough data"


def recorded(prompt: str) -> JudgeBias:
    runs = json.loads((AIRLINE / "gpt-4o_airline.json").read_text())["simulations"]
    length = {run["id"]: len(json.dumps(run["messages"])) for run in runs}
    lines = map(json.loads, (AIRLINE / f"judge_airline_{prompt}_v1.jsonl").read_text().splitlines())
    read = {"pass": True, "fail": False}  # whatever else it says is not of the asked form
    return judge_bias([Judgement(read.get(v["judge_verdict"]), v["tau2_success"], length[v["simulation_id"]])
                       for v in lines])  # fmt: skip


@pytest.mark.skipif(not AIRLINE.exists(), reason=REASON)
@pytest.mark.parametrize(
    ("prompt", "passes", "agree", "n"),
    [("quick_triage", 46, 25, 50), ("customer_outcome", 35, 20, 50), ("policy_conversation", 29, 34, 50),
     ("policy_chain_of_thought", 10, 10, 23)],
)  # fmt: skip
def test_none_of_four_recorded_judges_is_trusted_as_reward(prompt: str, passes: int, agree: int, n: int) -> None:
    """Run with -s for the table in docs/rewards.md."""
    report = recorded(prompt)
    print(f"\n| {prompt} | {passes} | {report.agreement} | {report.kappa} | {report.leniency} | {report.length} |")
    assert (round(report.passes.value * n), round(report.agreement.value * n), report.agreement.n) == (passes, agree, n)
    assert report.state == ("not trusted" if n >= 30 else "not enough data")
    assert any("agrees with the environment" in reason for reason in report.reasons)
