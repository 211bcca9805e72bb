"""Simulated rollouts: the canary's own test, a fixed-horizon test and a threshold rule on the same candidates.

A rollout is a stream of sessions of three tenants of unequal size and level. Each goes to the canary with the weight of
the step (0.25, then 0.5), and is judged at once. The canary's test is the product's own (`evaluators.canary`).
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from math import ceil, sqrt
from statistics import NormalDist, median
from typing import Any

from evaluators.canary import Arm, CanaryTest, Outcome, Scale

ALPHA = 0.05
HARM = 0.10
POWER = 0.9
LEVEL = 0.8
"""The champion's success, over all tenants."""
_TENANTS = (("large", 0.6, 0.05), ("middle", 0.3, -0.05), ("small", 0.1, -0.15))
"""Name, share of the sessions, and level above the mean."""
_WEIGHTS = (0.25, 0.5)
_STEP_SESSIONS = 20
_MIN_SESSIONS = 24
_LOOK_EVERY = 4
"""Canary sessions between two looks; a delivery looks every 1.5 seconds."""
_THRESHOLD = 0.05
_THRESHOLD_SESSIONS = 50
_SCALES = {"latency": Scale(3000.0), "cost": Scale(3000.0)}


def simulate(rollouts: int, most: int, seed: int = 1) -> dict[str, Any]:
    """Shares and medians over `rollouts` of an equal and of a worse candidate, `most` sessions each at the most."""
    equal = [rollout(random.Random(f"{seed}/equal/{n}"), 0.0, most) for n in range(rollouts)]
    worse = [rollout(random.Random(f"{seed}/worse/{n}"), -HARM, most) for n in range(rollouts)]
    broken = [rollout(random.Random(f"{seed}/broken/{n}"), -4 * HARM, most) for n in range(max(10, rollouts // 4))]
    caught = [exposed for end, exposed, _ in worse if end == "abort"]
    fixed = fixed_horizon()
    untouched = CanaryTest(alpha=ALPHA, harm_margin=HARM, min_sessions=_MIN_SESSIONS)
    return {
        "equal_candidate_abort_share": share(end == "abort" for end, _, _ in equal),
        "worse_candidate_caught_share": share(end == "abort" for end, _, _ in worse),
        "worse_candidate_passed_share": share(end == "pass" for end, _, _ in worse),
        "median_sessions_exposed": median(caught) if caught else None,
        "fixed_horizon_sessions": fixed,
        "broken_candidate_median_sessions_exposed": median(exposed for _, exposed, _ in broken),
        "threshold_equal_abort_share": share(threshold for _, _, threshold in equal),
        "threshold_worse_caught_share": share(threshold for _, _, threshold in worse),
        "threshold_sessions": _THRESHOLD_SESSIONS,
        "verdict_without_traffic": untouched.verdict().state,
    }


def rollout(rng: random.Random, change: float, most: int) -> tuple[str, int, bool]:
    """How one ends, the canary sessions until then, and whether the threshold rule would have aborted it."""
    test = CanaryTest(alpha=ALPHA, harm_margin=HARM, min_sessions=_MIN_SESSIONS, scales=_SCALES)
    seen: dict[Arm, list[float]] = {"champion": [], "canary": []}
    threshold: bool | None = None
    end, exposed = "pause", 0
    for outcome in sessions(rng, change, most, seen):
        if end == "pause":
            test.add([outcome])
        if outcome.arm != "canary":
            continue
        if threshold is None and len(seen["canary"]) == _THRESHOLD_SESSIONS:
            threshold = mean(seen["canary"]) < mean(seen["champion"]) - _THRESHOLD
        if end == "pause" and len(seen["canary"]) % _LOOK_EVERY == 0:
            state, exposed = test.verdict().state, len(seen["canary"])
            end = "pause" if state == "continue" else state
        if end != "pause" and threshold is not None:
            break
    return end, exposed, bool(threshold)


def sessions(rng: random.Random, change: float, most: int, seen: dict[Arm, list[float]]) -> Iterator[Outcome]:
    """Judged sessions as they arrive; `seen` gets the rewards of either arm."""
    mean_level = sum(size * above for _, size, above in _TENANTS)
    for _ in range(most):
        ((tenant, _size, above),) = rng.choices(_TENANTS, [size for _, size, _ in _TENANTS])
        weight = _WEIGHTS[0] if len(seen["canary"]) < _STEP_SESSIONS else _WEIGHTS[1]
        arm: Arm = "canary" if rng.random() < weight else "champion"
        level = LEVEL + above - mean_level + (change if arm == "canary" else 0.0)
        good = rng.random() < level
        seen[arm].append(float(good))
        yield Outcome(
            arm,
            float(good),
            error=rng.random() < 0.01,
            tenant=tenant,
            corrected=not good and rng.random() < 0.5,
            tool_failed=rng.random() < 0.05,
            guardrail_hit=rng.random() < 0.01,
            latency_ms=rng.lognormvariate(6.5, 0.5),
            cost=rng.lognormvariate(6.0, 0.6),
        )


def fixed_horizon(level: float = LEVEL, harm: float = HARM, alpha: float = ALPHA, power: float = POWER) -> int:
    """Sessions of each arm a two-proportion z-test needs (Fleiss, Levin & Paik 2003, eq. 4.14), looked at once."""
    z_alpha, z_power = NormalDist().inv_cdf(1 - alpha / 2), NormalDist().inv_cdf(power)
    worse = level - harm
    pooled = (level + worse) / 2
    spread = z_alpha * sqrt(2 * pooled * (1 - pooled)) + z_power * sqrt(level * (1 - level) + worse * (1 - worse))
    return ceil((spread / harm) ** 2)


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def share(happened: Any) -> float:
    each = list(happened)
    return sum(each) / len(each)
