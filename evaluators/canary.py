"""Is the canary worse than the champion? A sequential answer that may be read after every session.

Sessions of both arms arrive in some order. Each canary session is compared with the mean of the champion sessions of
the *same tenant* since that tenant's previous comparison: the difference is bounded and has expectation
canary - champion in that tenant whatever the traffic weights are, so weights may differ between tenants and rise on
the way. Over these differences runs, for every metric, a betting confidence sequence (Waudby-Smith & Ramdas 2024,
through `ville.BettingCS`): with probability 1 - alpha its interval holds the true difference at *every* time, so
looking after each session costs nothing in error probability.

All metrics, and all tenants, share one alpha (weighted Bonferroni): `POOLED` of it goes to the tenants together, the
rest to single tenants, the k-th that appears getting 6/(pi^2 k^2) of that, so that their number need not be known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import pi
from typing import TYPE_CHECKING, Literal

import msgspec

from evaluators.intervals import Interval

if TYPE_CHECKING:
    from ville import BettingCS

_GRID = 2000
"""Candidate means of the betting sequence: a resolution of 0.001 on [-1, 1]."""
POOLED = 0.8
"""Share of alpha for all tenants together."""

State = Literal["continue", "abort", "pass"]
Arm = Literal["champion", "canary"]


class Metric(msgspec.Struct, frozen=True):
    """What is compared, and its share of alpha."""

    name: str
    share: float
    harm: Literal["lower", "higher", "ratio"]
    """Harm is a lower mean, a higher one, or one more than `Tolerance` times the champion's."""
    words: str
    """Harm, as the verdict says it."""


METRICS = (
    Metric("reward", 0.50, "lower", "success is lower"),
    Metric("errors", 0.14, "higher", "calls fail more often"),
    Metric("corrections", 0.09, "higher", "users correct it more often"),
    Metric("tool_failures", 0.09, "higher", "tool calls fail more often"),
    Metric("guardrail_hits", 0.06, "higher", "guardrails are hit more often"),
    Metric("latency", 0.06, "ratio", "answers take longer"),
    Metric("cost", 0.06, "ratio", "sessions cost more"),
)
"""The shares sum to 1."""


class Outcome(msgspec.Struct, frozen=True):
    """One session of one arm, in the order in which it became known. What is None is not known."""

    arm: Arm
    success: float | None
    """Its resolved reward, 0 to 1."""
    error: bool = False
    """Did a call to the model fail?"""
    tenant: str = ""
    corrected: bool | None = None
    tool_failed: bool | None = None
    guardrail_hit: bool | None = None
    latency_ms: float | None = None
    cost: float | None = None
    """In any one unit: dollars, or tokens."""
    breach: str = ""
    """A breach of safety, in words: it needs no statistics."""


class Scale(msgspec.Struct, frozen=True):
    """For metrics without a natural bound: values are cut off at `limit`, and `tolerance` times the champion is fine.

    Both must be fixed before the canary begins.
    """

    limit: float
    tolerance: float = 1.5


class CanaryVerdict(msgspec.Struct, frozen=True):
    state: State
    reason: str
    success: Interval
    """canary - champion of the resolved reward; anytime-valid."""
    errors: Interval
    """canary - champion of the share of failed calls; anytime-valid."""
    canary: int
    champion: int
    metrics: dict[str, Interval] = {}
    """canary - champion by metric (of latency and cost: canary - tolerance x champion, in shares of the limit)."""
    tenants: dict[str, dict[str, Interval]] = {}
    """The same for each tenant."""
    breach: bool = False
    """Aborted for safety, not by a test?"""


class CanaryTest:
    """The test of one canary against one champion. It only grows: a new candidate needs a new one."""

    def __init__(
        self, *, alpha: float, harm_margin: float, min_sessions: int, scales: Mapping[str, Scale] | None = None
    ) -> None:
        """`scales` are latency's and cost's; without one the metric is not compared."""
        self._alpha = alpha
        self._harm_margin = harm_margin
        self._min_sessions = min_sessions
        self._scales = dict(scales or {})
        self._pooled = {m.name: self._comparison(m, alpha * POOLED * m.share) for m in METRICS}
        self._tenants: dict[str, dict[str, _Comparison]] = {}
        self._sessions: dict[Arm, int] = {"champion": 0, "canary": 0}
        self._judged = 0
        self._breach = ""

    def add(self, outcomes: Iterable[Outcome]) -> None:
        """Sessions that became known since the last call."""
        for outcome in outcomes:
            self._sessions[outcome.arm] += 1
            if outcome.arm == "canary":
                self._judged += outcome.success is not None or outcome.error
                self._breach = self._breach or outcome.breach
            own = self._of(outcome.tenant)
            for metric in METRICS:
                value = self._value(metric, outcome)
                if value is not None:
                    for difference in own[metric.name].add(outcome.arm, value):
                        self._pooled[metric.name].take(difference)

    def verdict(self) -> CanaryVerdict:
        """What may be said now.

        abort: a breach of safety, or harm in some metric, of all tenants or of one, with confidence 1 - alpha over
        all metrics, tenants and times. pass: at least `min_sessions` judged canary sessions, and the reward is not
        lower by `harm_margin` or more. Otherwise the canary continues.
        """
        intervals = {name: comparison.interval() for name, comparison in self._pooled.items()}
        tenants = {t: {n: c.interval() for n, c in own.items() if c.n} for t, own in self._tenants.items()}
        found: State = "continue"
        if self._breach:
            found, reason = "abort", f"safety: {self._breach}"
        elif harm := self._harm(intervals, tenants):
            found, reason = "abort", harm
        elif self._judged < self._min_sessions:
            reason = f"{self._judged} of {self._min_sessions} judged sessions"
        elif intervals["reward"].low > -self._harm_margin:
            found, reason = "pass", f"success is not lower by {self._harm_margin}: {intervals['reward']}"
        else:
            reason = f"a loss of {self._harm_margin} is not excluded yet: {intervals['reward']}"
        shown = {name: interval for name, interval in intervals.items() if interval.n}
        return CanaryVerdict(
            found, reason, intervals["reward"], intervals["errors"], self._judged, self._sessions["champion"],
            shown, tenants if len(tenants) > 1 else {}, bool(self._breach),
        )  # fmt: skip

    def _harm(self, pooled: Mapping[str, Interval], tenants: Mapping[str, Mapping[str, Interval]]) -> str:
        for where, intervals in [("", pooled), *((f" for tenant {t}", own) for t, own in tenants.items())]:
            for metric in METRICS:
                interval = intervals.get(metric.name)
                if interval is None:
                    continue
                if interval.high < 0 if metric.harm == "lower" else interval.low > 0:
                    return f"{metric.words}{where}: {interval}"
        return ""

    def _of(self, tenant: str) -> dict[str, _Comparison]:
        if tenant not in self._tenants:
            share = (1 - POOLED) * 6 / (pi * (len(self._tenants) + 1)) ** 2
            self._tenants[tenant] = {m.name: self._comparison(m, self._alpha * share * m.share) for m in METRICS}
        return self._tenants[tenant]

    def _comparison(self, metric: Metric, alpha: float) -> _Comparison:
        return _Comparison(alpha, self._scales[metric.name].tolerance if metric.name in self._scales else 1.0)

    def _value(self, metric: Metric, outcome: Outcome) -> float | None:
        if metric.harm == "ratio":
            seen = outcome.latency_ms if metric.name == "latency" else outcome.cost
            scale = self._scales.get(metric.name)
            return None if seen is None or scale is None else min(1.0, seen / scale.limit)
        flag = {
            "reward": outcome.success,
            "errors": outcome.error,
            "corrections": outcome.corrected,
            "tool_failures": outcome.tool_failed,
            "guardrail_hits": outcome.guardrail_hit,
        }[metric.name]
        return None if flag is None else float(flag)


class _Comparison:
    """One metric's differences, as they come, and the confidence sequence over them."""

    def __init__(self, alpha: float, tolerance: float) -> None:
        self._alpha = alpha
        self._tolerance = tolerance
        self._waiting: list[float] = []
        self._block: list[float] = []
        self._new: list[float] = []
        self._sequence: BettingCS | None = None
        self._sum = 0.0
        self.n = 0

    def add(self, arm: Arm, value: float) -> list[float]:
        """One more session; returns the differences (one at most) that it completes."""
        (self._waiting if arm == "canary" else self._block).append(value)
        if not (self._waiting and self._block):
            return []
        difference = self._waiting.pop(0) - self._tolerance * sum(self._block) / len(self._block)
        self._block.clear()
        self.take(difference)
        return [difference]

    def take(self, difference: float) -> None:
        self._new.append(difference)
        self._sum += difference
        self.n += 1

    def interval(self) -> Interval:
        """The sequence is brought up to date here, with all that came since: one step costs as much as twenty."""
        if self.n == 0:
            return Interval(value=0.0, low=-self._tolerance, high=1.0, n=0)
        if self._sequence is None:
            from ville import BettingCS

            self._sequence = BettingCS(bounds=(-self._tolerance, 1.0), alpha=self._alpha, grid=_GRID)
        if self._new:
            self._sequence.update(self._new)
            self._new = []
        low, high = float(self._sequence.lower_[-1]), float(self._sequence.upper_[-1])
        return Interval(value=self._sum / self.n, low=low, high=high, n=self.n)


def judge_canary(outcomes: Sequence[Outcome], *, alpha: float, harm_margin: float, min_sessions: int) -> CanaryVerdict:
    """The verdict after these sessions; see `CanaryTest`."""
    test = CanaryTest(alpha=alpha, harm_margin=harm_margin, min_sessions=min_sessions)
    test.add(outcomes)
    return test.verdict()


def paired_differences(observations: Sequence[tuple[Arm, float]]) -> list[float]:
    """Each canary value minus the mean of the champion values since the last comparison.

    A canary value with no champion value since then waits for the next one.
    """
    comparison = _Comparison(0.05, 1.0)
    return [difference for arm, value in observations for difference in comparison.add(arm, value)]
