"""The demo's report: what was measured, in numbers with intervals, and whether it is good enough."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from evaluators.intervals import Interval, PairedCounts, paired_difference, wilson

MIN_POLICY_SUCCESS = 0.6
"""Held-out success the policy update must reach."""
MAX_SECONDS_TO_ALL_BACK = 1.0


class Lift(msgspec.Struct, frozen=True):
    """Success on the same held-out requests before and after one promoted change."""

    before: Interval
    after: Interval
    lift: Interval

    def as_json(self) -> dict[str, Any]:
        return {
            "before": self.before.value,
            "after": self.after.value,
            "lift_low": self.lift.low,
            "n": self.lift.n,
            "before_interval": [self.before.low, self.before.high],
            "after_interval": [self.after.low, self.after.high],
            "lift": self.lift.value,
            "lift_high": self.lift.high,
        }


class BadCandidate(msgspec.Struct, frozen=True):
    rolled_back: bool
    sessions_touched: int
    seconds_to_all_back: float


def measure_lift(before: Sequence[bool], after: Sequence[bool]) -> Lift:
    """Paired: position i of both is the same held-out request."""
    pairs = list(zip(before, after, strict=True))
    counts = PairedCounts(
        both=pairs.count((True, True)),
        only_new=pairs.count((False, True)),
        only_old=pairs.count((True, False)),
        neither=pairs.count((False, False)),
    )
    return Lift(wilson(sum(before), len(before)), wilson(sum(after), len(after)), paired_difference(counts))


def shortcomings(lifts: dict[str, Lift], bad: BadCandidate, verify: dict[str, Any]) -> list[str]:
    """Every bar of the demo that was not met, in words; empty means the demo succeeded."""
    found = [f"no {surface} change was promoted" for surface in ("memory", "policy") if surface not in lifts]
    for surface, lift in lifts.items():
        if lift.lift.low <= 0:
            found.append(f"the {surface} change has no certain lift: {lift.lift}")
    if "policy" in lifts and lifts["policy"].after.value < MIN_POLICY_SUCCESS:
        found.append(f"held-out success after the policy update is {lifts['policy'].after}, not {MIN_POLICY_SUCCESS}")
    if not bad.rolled_back:
        found.append("the bad candidate was not rolled back")
    if bad.seconds_to_all_back > MAX_SECONDS_TO_ALL_BACK:
        found.append(f"it took {bad.seconds_to_all_back:.2f} s until all traffic was back")
    if not verify["ok"]:
        found.append(f"{len(verify['problems'])} records fail verification")
    return found
