"""Intervals for figures about decisions, which come in trajectories and are not independent within one.

The trajectory is what was drawn at random. A rate of decisions gets Wilson's interval at its *effective* number, the
number divided by the design effect (Kish 1965); a ratio, and a mean over decisions, get the delta method over
trajectories; a quantile the order statistics that hold it (no assumption about the distribution).

What is measured here (durations, tokens, money) is never below 0, so no bound is: a bound below it is cut off at 0.
The truth is never in what is cut, so the interval holds it as often as before.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from math import ceil, floor, inf, nan, sqrt
from statistics import NormalDist

from evaluators.intervals import UNKNOWN_RATE, Interval

UNKNOWN = Interval(value=nan, low=0.0, high=inf, n=0)
"""What is known about a measurement nobody took."""


def rate(values: Sequence[bool], clusters: Sequence[Hashable], alpha: float = 0.05) -> Interval:
    """The share of true values; `n` is how many there are, the width that of the effective number."""
    n = len(values)
    if not n:
        return UNKNOWN_RATE
    p = sum(values) / n
    return _wilson(p, n / _design_effect(values, clusters, p), n, alpha)


def ratio(above: Sequence[float], below: Sequence[float], alpha: float = 0.05) -> Interval:
    """Σ above / Σ below, a pair for each trajectory; unbounded above while nothing is below."""
    n, total = len(above), sum(below)
    if not n:
        return UNKNOWN
    if not total:
        return Interval(value=inf, low=0.0, high=inf, n=n)
    r = sum(above) / total
    if n == 1:
        return Interval(value=r, low=0.0, high=inf, n=n)
    spread = sum((a - r * b) ** 2 for a, b in zip(above, below, strict=True)) * n / (n - 1)
    half = _z(alpha) * sqrt(spread) / total
    return Interval(value=r, low=max(0.0, r - half), high=r + half, n=n)


def mean(values: Sequence[float], clusters: Sequence[Hashable], alpha: float = 0.05) -> Interval:
    """The mean of values that are not below 0, as the ratio of their sum to their number; `n` is how many there are."""
    above: dict[Hashable, float] = defaultdict(float)
    below: dict[Hashable, float] = defaultdict(float)
    for value, cluster in zip(values, clusters, strict=True):
        above[cluster] += value
        below[cluster] += 1
    found = ratio(list(above.values()), list(below.values()), alpha)
    return Interval(value=found.value, low=found.low, high=found.high, n=len(values))


def quantile(values: Sequence[float], q: float, alpha: float = 0.05) -> Interval:
    """The q-quantile, between the order statistics that hold it with probability 1 - alpha; too few values for one of
    them leave that side open, down to 0 or up to any number."""
    ordered, n = sorted(values), len(values)
    if not n:
        return UNKNOWN
    half = _z(alpha) * sqrt(n * q * (1 - q))
    low, high = floor(n * q - half), ceil(n * q + half)
    return Interval(
        value=ordered[min(n - 1, floor(n * q))],
        low=ordered[low] if low >= 0 else 0.0,
        high=ordered[high] if high < n else inf,
        n=n,
    )


def _design_effect(values: Sequence[bool], clusters: Sequence[Hashable], p: float) -> float:
    """Variance of the rate over that of independent decisions, at least 1; at most the size of a cluster."""
    sizes: dict[Hashable, int] = defaultdict(int)
    hits: dict[Hashable, int] = defaultdict(int)
    for value, cluster in zip(values, clusters, strict=True):
        sizes[cluster] += 1
        hits[cluster] += bool(value)
    n, k = len(values), len(sizes)
    largest = sum(size * size for size in sizes.values()) / n
    if k < 2 or not 0 < p < 1:
        return max(1.0, largest)
    between = sum((hits[c] - p * size) ** 2 for c, size in sizes.items()) * k / (k - 1)
    return min(max(1.0, between / (n * p * (1 - p))), max(1.0, largest))


def _wilson(p: float, n: float, observed: int, alpha: float) -> Interval:
    z = _z(alpha)
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return Interval(value=p, low=max(0.0, centre - half), high=min(1.0, centre + half), n=observed)


def _z(alpha: float) -> float:
    return NormalDist().inv_cdf(1 - alpha / 2)
