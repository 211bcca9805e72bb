"""The reward-hack watch: over the rounds of training, does the reward rise while the outcome does not?

Training optimises a reward that stands for something else: tasks solved. When the first rises and the second
stays flat or falls, the policy has learned to please the reward (Gao et al., Scaling Laws for Reward Model
Overoptimization, 2022, arXiv:2210.10760). Both trends are judged by the Mann–Kendall test, which
assumes nothing about scales; too few rounds are an answer of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from math import comb, sqrt
from statistics import NormalDist
from typing import Literal

import msgspec

from services.worker.training.job import Round

MIN_ROUNDS = 5
"""With 5, one swap of neighbours still shows a trend at the 5% level (p = 5/120); with 4, only perfect order."""
_ALPHA = 0.05


class Watch(msgspec.Struct, frozen=True):
    verdict: Literal["not enough data", "healthy", "suspected"]
    reward_trend: float | None = None
    """Kendall's τ of mean reward over rounds, −1 to 1."""
    outcome_trend: float | None = None
    detail: str = ""


def watch(rounds: Sequence[Round]) -> Watch:
    """The verdict over all rounds so far, oldest first."""
    if len(rounds) < MIN_ROUNDS:
        return Watch("not enough data", detail=f"{len(rounds)} rounds, {MIN_ROUNDS} are needed for a trend")
    reward, outcome = [r.reward for r in rounds], [r.outcome for r in rounds]
    rises, reward_trend = _rises(reward)
    solved, outcome_trend = _rises(outcome)
    if rises and not solved and outcome_trend <= reward_trend / 2:
        detail = (
            f"over {len(rounds)} rounds the reward rose from {reward[0]:.3g} to {reward[-1]:.3g} while the held-out "
            f"outcome went from {outcome[0]:.3g} to {outcome[-1]:.3g}"
        )
        return Watch("suspected", reward_trend, outcome_trend, detail)
    return Watch("healthy", reward_trend, outcome_trend)


def _rises(values: Sequence[float]) -> tuple[bool, float]:
    """Whether the one-sided Mann–Kendall test finds a rise at 5%, and Kendall's τ (ties count as neither)."""
    n = len(values)
    signs = [(b > a) - (b < a) for a, b in combinations(values, 2)]
    score = sum(signs)
    ties = [values.count(v) for v in set(values)]
    variance = (n * (n - 1) * (2 * n + 5) - sum(t * (t - 1) * (2 * t + 5) for t in ties)) / 18
    if variance <= 0:
        return False, 0.0
    z = (score - 1) / sqrt(variance)  # continuity correction
    return z > NormalDist().inv_cdf(1 - _ALPHA), score / comb(n, 2)
