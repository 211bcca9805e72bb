"""Is the canary worse than the champion? A sequential answer that may be read after every session.

Sessions of both arms are judged in some order. Each judged canary session is compared with the mean
of the champion sessions judged since the previous comparison: the difference lies in [-1, 1] and has
expectation p(canary) - p(champion) whatever the traffic weight is, so the weight may rise on the way.
Over these differences runs a betting confidence sequence (Waudby-Smith & Ramdas 2024, through
`ville.BettingCS`): with probability 1 - alpha its interval holds the true difference at *every* time,
so looking after each session costs nothing in error probability.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from evaluators.intervals import Interval

_GRID = 2000
"""Candidate means of the betting sequence: a resolution of 0.001 on [-1, 1]."""

State = Literal["continue", "abort", "pass"]


class Outcome(msgspec.Struct, frozen=True):
    """One judged session of one arm, in the order the judgements arrived."""

    arm: Literal["champion", "canary"]
    success: bool
    error: bool = False


class CanaryVerdict(msgspec.Struct, frozen=True):
    state: State
    reason: str
    success: Interval
    """p(canary) - p(champion) for success; anytime-valid."""
    errors: Interval
    """p(canary) - p(champion) for failed calls; anytime-valid."""
    canary: int
    champion: int


def judge_canary(outcomes: Sequence[Outcome], *, alpha: float, harm_margin: float, min_sessions: int) -> CanaryVerdict:
    """The verdict after these sessions.

    abort: success is lower, or errors are more frequent, with confidence 1 - alpha over all times
    (alpha is split between the two). pass: at least `min_sessions` canary sessions, and success is
    not lower by `harm_margin` or more. Otherwise the canary continues.
    """
    success = difference([(o.arm, float(o.success)) for o in outcomes], alpha / 2)
    errors = difference([(o.arm, float(o.error)) for o in outcomes], alpha / 2)
    canary = sum(o.arm == "canary" for o in outcomes)
    champion = len(outcomes) - canary

    def verdict(state: State, reason: str) -> CanaryVerdict:
        return CanaryVerdict(state, reason, success, errors, canary, champion)

    if success.high < 0:
        return verdict("abort", f"success is lower: {success}")
    if errors.low > 0:
        return verdict("abort", f"calls fail more often: {errors}")
    if canary < min_sessions:
        return verdict("continue", f"{canary} of {min_sessions} judged sessions")
    if success.low > -harm_margin:
        return verdict("pass", f"success is not lower by {harm_margin}: {success}")
    return verdict("continue", f"a loss of {harm_margin} is not excluded yet: {success}")


def difference(observations: Sequence[tuple[str, float]], alpha: float) -> Interval:
    """Anytime-valid interval for mean(canary) - mean(champion) of values in [0, 1]."""
    differences = paired_differences(observations)
    if not differences:
        return Interval(value=0.0, low=-1.0, high=1.0, n=0)
    from ville import BettingCS

    sequence = BettingCS(bounds=(-1.0, 1.0), alpha=alpha, grid=_GRID)
    sequence.update(differences)
    return Interval(
        value=sum(differences) / len(differences),
        low=float(sequence.lower_[-1]),
        high=float(sequence.upper_[-1]),
        n=len(differences),
    )


def paired_differences(observations: Sequence[tuple[str, float]]) -> list[float]:
    """Each canary value minus the mean of the champion values since the last comparison.

    A canary value with no champion value since then waits for the next one.
    """
    waiting: list[float] = []
    block: list[float] = []
    out: list[float] = []
    for arm, value in observations:
        (waiting if arm == "canary" else block).append(value)
        if waiting and block:
            out.append(waiting.pop(0) - sum(block) / len(block))
            block.clear()
    return out
