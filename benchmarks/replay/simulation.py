"""What only a simulation can say: do the stated intervals cover, and does live traffic confirm what replay promised?

Agents are dice with a chance for each kind of task (`population.py`); selection, comparison and decision are real.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from random import Random

from benchmarks.replay.population import Agents, agents, covers, live, replayed
from evaluators.decision import NO_OP, Evaluated, decide
from evaluators.intervals import Interval, wilson

EFFECTS = ((0.7, -0.1), (0.7, 0.0), (0.7, 0.05), (0.7, 0.2), (0.5, 0.3), (0.85, 0.05))
"""(the champion's success, the candidate's true improvement)"""
_POPULATION, _CASES = 240, 96
_CANARY, _CHAMPION = 100, 300


def interval_coverage(replays: int, seed: int = 1) -> dict[str, float]:
    """Share of replays whose stated 95% interval holds the true improvement: over all, and the worst effect's."""
    random = Random(seed)
    each = max(1, replays // (2 * len(EFFECTS)))
    covered: dict[tuple[float, float, int], list[bool]] = {}
    for base, effect in EFFECTS:
        for repeats in (1, 3):
            for _ in range(each):
                who = agents(random, base, effect)
                found = replayed(random, who, _POPULATION, _CASES, repeats)
                covered.setdefault((base, effect, repeats), []).append(covers(found.improvement, who.effect))
    shares = [sum(c) / len(c) for c in covered.values()]
    return {
        "interval_coverage": sum(shares) / len(shares),
        "interval_coverage_lowest": min(shares),
        "interval_coverage_highest": max(shares),
        "simulated_replays": float(each * len(covered)),
    }


def replay_vs_canary_agreement(lives: int, seed: int = 2) -> dict[str, float]:
    """Share of accepted candidates whose live improvement agrees with the replayed one.

    Each life has three candidates, one of them no better than the champion; what the decision accepts goes live. It
    agrees when the interval of replayed less live improvement holds 0 (`agrees`).
    """
    random = Random(seed)
    agreed: list[bool] = []
    optimism: list[float] = []
    for _ in range(lives):
        base = random.uniform(0.5, 0.8)
        champion = agents(random, base, 0.0)
        tried = [
            _variant(random, champion, effect) for effect in (0.0, random.uniform(0, 0.15), random.uniform(0.1, 0.3))
        ]
        replays = [replayed(random, who, _POPULATION, _CASES) for who in tried]
        evaluated = [Evaluated(f"c{i}", "memory", 0.005, r) for i, r in enumerate(replays)]
        chosen = decide(evaluated, max_regression=0.1).chosen
        if chosen == NO_OP:
            continue
        who, promised = tried[int(chosen[1:])], replays[int(chosen[1:])].improvement
        seen = live_difference(live(random, who.candidate, _CANARY), live(random, who.champion, _CHAMPION))
        agreed.append(agrees(promised, seen))
        optimism.append(promised.value - who.effect)
    return {
        "replay_vs_canary_agreement": sum(agreed) / len(agreed) if agreed else float("nan"),
        "accepted_candidates": float(len(agreed)),
        "replay_optimism_when_accepted": sum(optimism) / len(optimism) if optimism else float("nan"),
    }


def live_difference(canary: Sequence[bool], champion: Sequence[bool], alpha: float = 0.05) -> Interval:
    """p(canary) - p(champion) of different sessions (Newcombe 1998, unpaired, method 10)."""
    new, old = wilson(sum(canary), len(canary), alpha), wilson(sum(champion), len(champion), alpha)
    value = new.value - old.value
    low = value - sqrt((new.value - new.low) ** 2 + (old.high - old.value) ** 2)
    high = value + sqrt((new.high - new.value) ** 2 + (old.value - old.low) ** 2)
    return Interval(value=value, low=low, high=high, n=new.n + old.n)


def agrees(promised: Interval, seen: Interval) -> bool:
    """Is 0 within the interval of their difference? Both have errors, independent of each other."""
    gap = promised.value - seen.value
    if gap > 0:
        return gap <= sqrt((promised.value - promised.low) ** 2 + (seen.high - seen.value) ** 2)
    return -gap <= sqrt((promised.high - promised.value) ** 2 + (seen.value - seen.low) ** 2)


def _variant(random: Random, champion: Agents, effect: float) -> Agents:
    """Another candidate for the same champion."""
    chances = [min(0.98, max(0.02, p + effect + random.gauss(0, 0.1))) for p in champion.champion]
    return Agents(champion.champion, chances)
