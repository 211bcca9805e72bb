"""Every figure with its interval and n; what was not measured is unknown."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from evaluators import clustered
from evaluators.cases import Case
from evaluators.statistics import Statistics, summarise, table
from evaluators.steps import Step
from evoplane.settings import Price


def stats(cases: list[Case], **given: Any) -> Statistics:
    return summarise(cases, **{"target": 0.9, "min_outcomes": 5, **given})


def step(name: str, error: str = "") -> Step:
    status = "error" if error else "ok"
    return Step(kind="tool_call", name=name, arguments={}, status=status, error_class=error, text="", event_id="ev")


def test_a_trajectory_counts_once_however_many_decisions_it_has(case):
    cases = [case(trajectory_id=f"tr{i}", reward=float(i % 2)) for i in range(10) for _ in range(8)]
    found = stats(cases)
    assert (found.judged, found.success.n, found.success.value) == (10, 10, 0.5)
    assert found.success.high - found.success.low > 0.4  # as wide as ten, not eighty


def test_below_min_outcomes_nothing_is_concluded(case):
    assert stats([case(reward=0.0) for _ in range(4)]).state == "not enough data"
    assert stats([case(reward=0.0) for _ in range(40)]).state == "degraded"
    assert stats([case(reward=0.0) for _ in range(40)], alarms=[]).state == "healthy"  # the triggers decide


def test_tool_failures_are_told_apart_by_tool_and_error_class(case):
    cases = [case(steps=(step("track"),)) for _ in range(6)] + [case(steps=(step("track", "timeout"),))]
    cases += [case(steps=(step("cancel", "not_found"),)) for _ in range(3)]
    found = stats(cases)
    assert (found.tool_failures.value, found.tool_failures.n) == (0.4, 10)
    assert found.failures_by_tool["track · timeout"].n == 7
    assert found.failures_by_tool["cancel · not_found"].value == 1.0


def test_an_unconfigured_price_or_unreported_usage_is_unknown_and_never_zero(case):
    price = Price(input_per_million=1.0, output_per_million=2.0)
    cases = [case(reward=1.0, input_tokens=100, output_tokens=50) for _ in range(6)]
    assert stats(cases).cost.per_success is None
    known = stats(cases, price_of=lambda _: price).cost.per_success
    assert known is not None and known.value == pytest.approx(200 / 1e6)
    silent = stats([*cases, case(reward=1.0, input_tokens=0)], price_of=lambda _: price)
    assert silent.cost.per_success is None and "usage" in silent.cost.why
    turn = [case(reward=1.0, input_tokens=100, output_tokens=50, later_tokens=(300, 0)) for _ in range(6)]
    whole = stats(turn, price_of=lambda _: price).cost.per_success
    assert whole is not None and whole.value == pytest.approx(500 / 1e6)
    assert stats([*turn, case(reward=1.0, later_tokens=None)], price_of=lambda _: price).cost.per_success is None
    shown = {row["statistic"]: row["value"] for row in table(silent)}
    assert shown["cost per success"] == "unknown" and shown["process reward"] == "unknown"


def test_cost_and_latency_per_success_count_what_failures_took(case):
    cases = [case(reward=1.0, latency_ms=100.0) for _ in range(5)] + [
        case(reward=0.0, latency_ms=300.0) for _ in range(5)
    ]
    assert stats(cases).latency_per_success_ms.value == pytest.approx(400)
    assert math.isinf(stats(cases[5:]).latency_per_success_ms.value)


def test_no_bound_of_a_duration_or_a_count_is_below_zero(case):
    slow = [case(reward=1.0, latency_ms=1.0, input_tokens=1, output_tokens=1) for _ in range(9)]
    slow.append(case(reward=1.0, latency_ms=60_000.0, input_tokens=90_000, output_tokens=90_000))
    for cases in (slow, slow[:1], []):
        found = stats(cases)
        for i in (found.latency_ms, found.latency_per_success_ms, found.input_tokens, found.output_tokens,
                  *found.latency_quantiles.values()):  # fmt: skip
            assert i.low >= 0 and not i.value < i.low, i
        assert 0 <= found.reward.low <= found.reward.high <= 1


def test_a_slow_conversation_s_decisions_tell_less_than_as_many_conversations(case):
    alike = [case(trajectory_id=f"tr{i}", latency_ms=100.0 + 50 * (i % 3)) for i in range(12) for _ in range(9)]
    apart = [case(latency_ms=c.latency_ms) for c in alike]
    wide, narrow = stats(alike).latency_ms, stats(apart).latency_ms
    assert (wide.n, wide.value) == (narrow.n, narrow.value)
    assert wide.high - wide.low > 2.5 * (narrow.high - narrow.low)


def test_asking_the_same_again_and_falling_silent_are_seen(case):
    again = [case("Where is A1?", session_id="s"), case("where is A1", session_id="s"), case("Thanks", session_id="s")]
    assert (stats(again).repeated.value, stats(again).repeated.n) == (0.5, 2)
    silent = case(reward=None, judged_at="")
    ended = {silent.trajectory: "idle", again[0].trajectory: "idle", again[1].trajectory: None}
    assert (stats([silent, *again], ended=ended).abandoned.value, stats([silent, *again], ended=ended).abandoned.n) == (
        0.5,
        2,
    )


def test_a_canary_is_compared_with_the_champion_beside_it(case):
    day = "2026-02-01T00:00:00Z"
    both = [(case(reward=1.0, at=day), case(reward=0.0, at=day, role="canary", agent_version="2")) for _ in range(60)]
    champion, canary = [c for c, _ in both], [c for _, c in both]
    found = stats(champion, canary=canary)
    assert found.canary["reward"].high < 0
    assert not stats(champion).canary


def test_the_window_is_split_by_what_was_asked(case):
    found = stats([case("Where is my order?") for _ in range(30)] + [case("Cancel it.") for _ in range(10)])
    assert found.mix["northwind: where is my order ?"].value == 0.75


def test_intervals_of_decisions_within_trajectories_cover():
    rng = np.random.default_rng(1)
    missed = missed_naively = 0
    for _ in range(400):
        rates = rng.beta(1, 1, 40)
        clusters = [i for i in range(40) for _ in range(6)]
        values = [bool(rng.random() < rates[i]) for i in clusters]
        found = clustered.rate(values, clusters)
        alone = clustered.rate(values, list(range(len(values))))
        missed += not found.low <= 0.5 <= found.high
        missed_naively += not alone.low <= 0.5 <= alone.high
    assert missed <= 400 * 0.05 + 3 * (400 * 0.05 * 0.95) ** 0.5 < missed_naively


def test_a_quantile_lies_between_the_order_statistics_that_hold_it():
    rng = np.random.default_rng(2)
    missed = 0
    for _ in range(400):
        found = clustered.quantile(list(rng.exponential(1, 200)), 0.9)
        missed += not found.low <= -math.log(0.1) <= found.high
    assert missed <= 33
    assert clustered.quantile([1.0, 2.0], 0.99).high == math.inf
