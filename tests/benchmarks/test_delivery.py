"""The benchmark's own parts: what it simulates, and what it compares with."""

from __future__ import annotations

import random

from benchmarks.delivery import rollouts
from evaluators.canary import Arm


def test_a_fixed_horizon_test_needs_the_textbooks_number_of_sessions() -> None:
    # Fleiss, Levin & Paik: 0.8 against 0.7, alpha 0.05 two-sided, power 0.8, without continuity correction
    assert rollouts.fixed_horizon(0.8, 0.1, 0.05, 0.8) == 294


def test_simulated_sessions_have_the_levels_they_should_have() -> None:
    seen: dict[Arm, list[float]] = {"champion": [], "canary": []}
    sessions = list(rollouts.sessions(random.Random(1), -0.1, 20_000, seen))
    assert abs(rollouts.mean(seen["champion"]) - 0.8) < 0.02 and abs(rollouts.mean(seen["canary"]) - 0.7) < 0.02
    assert {outcome.tenant for outcome in sessions} == {"large", "middle", "small"}


def test_a_broken_candidate_is_caught_after_a_few_dozen_sessions() -> None:
    end, exposed, threshold = rollouts.rollout(random.Random(2), -0.5, 1000)
    assert (end, threshold) == ("abort", True) and exposed < 80
