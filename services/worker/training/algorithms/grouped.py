"""Advantages out of the rewards of a group: the answers to one task, compared with each other."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from services.worker.training.examples import Example, groups

EPSILON = 1e-4
"""Added to a standard deviation before dividing by it (as in TRL)."""


def grouped(examples: Sequence[Example], of_group: Callable[[list[float]], list[float]]) -> list[float]:
    """Advantages by group from rewards; rows that bring an advantage keep theirs."""
    found = [example.advantage or 0.0 for example in examples]
    for members in groups(examples).values():
        rewarded = [(i, reward) for i in members if (reward := examples[i].reward) is not None]
        if len(rewarded) > 1:
            for (i, _), advantage in zip(rewarded, of_group([r for _, r in rewarded]), strict=True):
                found[i] = advantage
    return found


def centred(rewards: Sequence[float]) -> list[float]:
    """r_i − mean"""
    mean = sum(rewards) / len(rewards)
    return [reward - mean for reward in rewards]


def deviation(values: Sequence[float]) -> float:
    """Sample standard deviation (n−1); 0 for fewer than two."""
    if len(values) < 2:
        return 0.0
    return math.sqrt(sum(x * x for x in centred(values)) / (len(values) - 1))


def standardised(rewards: Sequence[float]) -> list[float]:
    """(r_i − mean) / (standard deviation + ε)"""
    scale = deviation(rewards) + EPSILON
    return [reward / scale for reward in centred(rewards)]
