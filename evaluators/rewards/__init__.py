"""Rewards: signals, the rule that weighs them, and what a trajectory and its steps are worth (docs/rewards.md)."""

from __future__ import annotations

from evaluators.rewards.resolution import Resolution, resolve
from evaluators.rewards.rule import DEFAULT_RULE, RewardRule, declare, rule_of
from evaluators.rewards.signals import Signal, SourceKey
from evaluators.rewards.weighing import Judged

__all__ = [
    "DEFAULT_RULE",
    "Judged",
    "Resolution",
    "RewardRule",
    "Signal",
    "SourceKey",
    "declare",
    "resolve",
    "rule_of",
]
