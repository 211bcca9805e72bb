"""Confidence intervals for rates and for paired differences of rates.

Wilson's score interval for one rate (Wilson 1927) and Newcombe's hybrid score interval for the
difference of two *paired* rates (Newcombe 1998, "Improved confidence intervals for the difference
between binomial proportions based on paired data", method 10). Both keep their coverage at the
small counts a replay has, where the normal approximation does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, nan, sqrt
from statistics import NormalDist

import msgspec


class Interval(msgspec.Struct, frozen=True):
    """An estimate with its confidence bounds; `n` observations stand behind it."""

    value: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}] (n={self.n})"


UNKNOWN_RATE = Interval(value=float("nan"), low=0.0, high=1.0, n=0)
"""What is known about a rate nobody has observed."""


class PairedCounts(msgspec.Struct, frozen=True):
    """The 2x2 table of a paired comparison: who succeeded on each case."""

    both: int
    only_new: int
    only_old: int
    neither: int

    @property
    def n(self) -> int:
        return self.both + self.only_new + self.only_old + self.neither


def wilson(successes: float, n: float, alpha: float = 0.05) -> Interval:
    """Wilson score interval for `successes` of `n` at confidence 1 - alpha; fractions are effective counts."""
    if not 0 <= successes <= n:
        raise ValueError(f"{successes} successes of {n} is not a rate")
    if n == 0:
        return UNKNOWN_RATE
    z = _z(alpha)
    p = successes / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return Interval(value=p, low=max(0.0, centre - half), high=min(1.0, centre + half), n=round(n))


def clustered_rate(shares: Sequence[float], alpha: float = 0.05) -> Interval:
    """Mean of one share in [0, 1] for each case, as Wilson's interval with the effective number of observations.

    With one observation a case the shares are 0 or 1 and this is `wilson`. With more, a case's observations are alike:
    `n_eff = p(1 - p) / (s² / n)` independent ones would tell as much as they do (Kish's design effect).
    """
    n = len(shares)
    if n == 0:
        return UNKNOWN_RATE
    p = sum(shares) / n
    spread = sum((s - p) ** 2 for s in shares)
    if all(s in (0.0, 1.0) for s in shares) or not spread:
        return wilson(min(n, max(0, p * n)), n, alpha)
    effective = p * (1 - p) * n * (n - 1) / spread
    found = wilson(p * effective, effective, alpha)
    return Interval(value=p, low=found.low, high=found.high, n=n)


def paired_difference(counts: PairedCounts, alpha: float = 0.05) -> Interval:
    """Newcombe's method 10 interval for rate(new) - rate(old) on the same cases."""
    a, b, c, d, n = counts.both, counts.only_new, counts.only_old, counts.neither, counts.n
    if n == 0:
        return Interval(value=0.0, low=-1.0, high=1.0, n=0)
    new = wilson(a + b, n, alpha)
    old = wilson(a + c, n, alpha)
    margins = float(a + b) * (c + d) * (a + c) * (b + d)
    covariance = float(a * d - b * c)
    if covariance > 0:
        covariance = max(covariance - n / 2, 0.0)
    phi = covariance / sqrt(margins) if margins else 0.0
    new_down, new_up = new.value - new.low, new.high - new.value
    old_down, old_up = old.value - old.low, old.high - old.value
    difference = new.value - old.value
    low = difference - sqrt(max(0.0, new_down**2 - 2 * phi * new_down * old_up + old_up**2))
    high = difference + sqrt(max(0.0, new_up**2 - 2 * phi * new_up * old_down + old_down**2))
    return Interval(value=difference, low=max(-1.0, low), high=min(1.0, high), n=n)


def rate_difference(new: Interval, old: Interval) -> Interval:
    """Difference of two independent rates, new - old, by Newcombe's method 10 (1998): square and add the distances to
    Wilson's bounds. Without observations on either side, all of [-1, 1]."""
    if not new.n or not old.n:
        return Interval(value=0.0, low=-1.0, high=1.0, n=0)
    value = new.value - old.value
    low = value - sqrt((new.value - new.low) ** 2 + (old.high - old.value) ** 2)
    high = value + sqrt((new.high - new.value) ** 2 + (old.value - old.low) ** 2)
    return Interval(value=value, low=max(-1.0, low), high=min(1.0, high), n=new.n + old.n)


def mean_interval(values: Sequence[float], alpha: float = 0.05, *, least: float = -inf, most: float = inf) -> Interval:
    """Normal interval for a mean of independent values; all of [least, most] below two of them.

    No value lies outside [least, most], so neither does their mean: bounds are cut there, which costs no coverage.
    """
    n = len(values)
    if n == 0:
        return Interval(value=nan, low=least, high=most, n=0)
    mean = sum(values) / n
    if n == 1:
        return Interval(value=mean, low=least, high=most, n=1)
    variance = sum((v - mean) ** 2 for v in values) / (n - 1)
    half = _z(alpha) * sqrt(variance / n)
    return Interval(value=mean, low=max(least, mean - half), high=min(most, mean + half), n=n)


def _z(alpha: float) -> float:
    if not 0 < alpha < 1:
        raise ValueError(f"alpha must lie between 0 and 1, not {alpha}")
    return NormalDist().inv_cdf(1 - alpha / 2)
