"""Rewards by source and how far they agree, on made-up and on recorded signals."""

from __future__ import annotations

from dataclasses import dataclass
from math import isnan
from typing import Any

import pytest

from evaluators.rewards import DEFAULT_RULE, RewardRule, declare, resolve
from evaluators.rewards.agreement import by_source, calibrate, cohens_kappa, pair_rows, source_rows
from evaluators.rewards.rule import Calibrated
from tests.evaluators.conftest import make_case
from tests.evaluators.rewards.making import says


@dataclass
class Said:
    user: float | None = None
    judge: float | None = None


def cases(*said: Said, rule: RewardRule = DEFAULT_RULE) -> list[Any]:
    made = []
    for number, each in enumerate(said):
        id = f"tr{number}"
        annotations = []
        if each.user is not None:
            annotations.append(says(f"u{number}", each.user, trajectory=id))
        if each.judge is not None:
            by = {"kind": "llm_judge", "id": "m", "version": "v1"}
            annotations.append(says(f"j{number}", each.judge, "judge.x", by, trajectory=id))  # type: ignore[arg-type]
        found = resolve(annotations, rule)
        reward = None if found.trajectory is None else found.trajectory.reward
        made += [make_case(trajectory_id=id, reward=reward, signals=found.signals) for _ in range(2)]
    return made


MOSTLY = [*[Said(1, 1)] * 20, *[Said(1, 0)] * 5, *[Said(0, 1)] * 10, *[Said(0, 0)] * 15]


def test_kappa_and_its_interval_are_those_of_statsmodels() -> None:
    # statsmodels.stats.inter_rater.cohens_kappa([[20, 5], [10, 15]]): 0.4000 [0.1511, 0.6489]
    found = cohens_kappa(20, 5, 10, 15)
    assert (found.value, found.low, found.high) == pytest.approx((0.4, 0.1511, 0.6489), abs=1e-4)


def test_kappa_is_undefined_where_one_source_never_varies() -> None:
    assert isnan(cohens_kappa(9, 1, 0, 0).value)


def test_a_pair_is_compared_by_trajectory_not_by_decision_or_signal() -> None:
    (pair,) = by_source(cases(*MOSTLY)).pairs
    assert (pair.state, pair.agreement.n, pair.agreement.value) == ("ok", 50, 0.7)
    assert (pair.only_one, pair.only_other) == (10, 5)  # judge.x, resolved


def test_few_common_trajectories_are_not_enough_data() -> None:
    (pair,) = by_source(cases(*[Said(1, 1)] * 10, *[Said(0, 0)] * 10, *[Said(1)] * 40)).pairs
    assert (pair.state, pair.agreement.n) == ("not enough data", 20)


def test_a_source_that_says_the_same_of_everything_agrees_by_chance_alone() -> None:
    (pair,) = by_source(cases(*[Said(1, 1)] * 20, *[Said(0, 1)] * 20)).pairs
    assert pair.state == "no variation"


def test_sources_show_what_they_said_and_what_the_rule_made_of_it() -> None:
    found = by_source(cases(*MOSTLY))
    judge, user = found.sources
    assert (judge.source.id, judge.signals, judge.counted, judge.positive.value) == ("m@v1", 50, 0, 0.6)
    assert judge.ignored == {"no clause of the rule names it": 50}
    assert (user.counted, user.trajectories) == (50, 50)
    assert {p.one.name: p.agreement.value for p in found.resolved} == {"judge.x": 0.7, "resolved": 1.0}
    assert [row["n"] for row in pair_rows(found)] == [50, 50, 50]
    assert source_rows(found)[0]["ignored"] == "50× no clause of the rule names it"


def test_what_was_taken_back_agrees_with_nobody() -> None:
    said = [says("a", 1), says("b", None, supersedes="a", retracted=True)]
    found = by_source([make_case(signals=resolve(said).signals, reward=None)])
    assert found.sources[0].trajectories == 0
    assert found.sources[0].ignored == {"retracted by b": 1}


CALIBRATED = {
    "clauses": [
        {"name": "resolved", "about": "trajectory"},
        {"name": "judge.*", "precedence": 1, "min_agreement": 0.5},
    ]
}


def test_a_judge_counts_only_once_it_is_known_to_agree_with_the_reference() -> None:
    rule = declare(**CALIBRATED)
    alone = says("j", 1, "judge.x", {"kind": "llm_judge", "id": "m", "version": "v1"})  # type: ignore[arg-type]
    assert resolve([alone], rule).trajectory is None
    measured = calibrate(cases(*MOSTLY, rule=rule), rule)
    assert [(m.name, m.n, m.agreement) for m in measured] == [("judge.x", 50, 0.7)]
    trusted = RewardRule(rule.declared, tuple(measured))
    assert resolve([alone], trusted).trajectory is not None
    strict = declare(clauses=[{**CALIBRATED["clauses"][1], "min_agreement": 0.65}])
    (signal,) = resolve([alone], RewardRule(strict.declared, tuple(measured))).signals
    assert signal.ignored.startswith("agrees with the reference 0.70 (at least 0.5")
    other = says("k", 1, "judge.x", {"kind": "llm_judge", "id": "m", "version": "v2"})  # type: ignore[arg-type]
    assert resolve([other], trusted).trajectory is None  # another version is another judge


def test_too_few_common_trajectories_calibrate_nobody() -> None:
    rule = declare(**CALIBRATED)
    assert calibrate(cases(*MOSTLY[:20], rule=rule), rule) == []
    assert RewardRule(rule.declared, (Calibrated(name="a", kind="b", id="", n=1, agreement=1, low=0, at=""),)).digest
