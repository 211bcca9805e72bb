"""How large a difference between two samples is, whatever its p-value says.

Cohen's h for a rate (Cohen 1988), Cramér's V with Bergsma's (2013) correction of its bias for a category, and the
Kolmogorov–Smirnov distance for a measurement. With 5,000 rows a p-value finds differences that nobody would act on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import asin, sqrt
from typing import Literal

import msgspec
import numpy as np

from evoplane.settings import Monitor

Name = Literal["cohen_h", "cramers_v", "ks_d", "auc"]


class Effect(msgspec.Struct, frozen=True):
    name: Name
    size: float
    """cohen_h is signed: above zero when the rate is larger now. The others are distances; auc is 0.5 for none."""
    least: float
    """What it must reach to matter (settings)."""

    @property
    def matters(self) -> bool:
        return abs(self.size) >= self.least

    def __str__(self) -> str:
        return f"{self.name} {self.size:+.2f}" if self.name == "cohen_h" else f"{self.name} {self.size:.2f}"


def least(name: Name, config: Monitor) -> float:
    """The smallest effect of this name that matters."""
    known = {"cohen_h": config.min_cohen_h, "cramers_v": config.min_cramers_v, "ks_d": config.min_ks_d}
    return known.get(name, config.min_auc)


def of_category(current: Sequence[str], reference: Sequence[str], config: Monitor) -> Effect:
    """Cohen's h of the rate of `True` where there is no other value than that and `False`, else Cramér's V."""
    return of_counts(Counter(current), Counter(reference), config)


def of_counts(current: Counter[str], reference: Counter[str], config: Monitor) -> Effect:
    names = sorted(set(current) | set(reference))
    if set(names) <= {"True", "False"}:
        now, then = (c["True"] / max(1, c.total()) for c in (current, reference))
        return Effect("cohen_h", cohen_h(now, then), least("cohen_h", config))
    table = np.array([[current[n] for n in names], [reference[n] for n in names]], dtype=float)
    return Effect("cramers_v", cramers_v(table), least("cramers_v", config))


def of_measure(current: Sequence[float], reference: Sequence[float], config: Monitor) -> Effect:
    """The largest vertical distance between the two distribution functions."""
    a, b = np.sort(np.asarray(current, dtype=float)), np.sort(np.asarray(reference, dtype=float))
    at = np.concatenate([a, b])
    gap = np.searchsorted(a, at, side="right") / len(a) - np.searchsorted(b, at, side="right") / len(b)
    return Effect("ks_d", float(np.max(np.abs(gap))), least("ks_d", config))


def cohen_h(now: float, then: float) -> float:
    """Difference of the rates' arcsine transforms."""
    return 2 * asin(sqrt(now)) - 2 * asin(sqrt(then))


def cramers_v(table: np.ndarray) -> float:
    """Bias-corrected Cramér's V of a 2 x categories table of counts."""
    table = table[:, table.sum(axis=0) > 0]
    n, (rows, columns) = float(table.sum()), table.shape
    if columns < 2 or n < 2 or 0 in table.sum(axis=1):
        return 0.0
    expected = np.outer(table.sum(axis=1), table.sum(axis=0)) / n
    phi2 = float(((table - expected) ** 2 / expected).sum()) / n
    corrected = max(0.0, phi2 - (rows - 1) * (columns - 1) / (n - 1))
    width = min(rows - (rows - 1) ** 2 / (n - 1), columns - (columns - 1) ** 2 / (n - 1)) - 1
    return sqrt(corrected / width) if width > 0 else 0.0
